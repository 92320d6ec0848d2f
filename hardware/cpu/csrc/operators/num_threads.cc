#include "num_threads.h"

#include <torch/csrc/stable/ops.h>

namespace trunnion_cpu {
namespace {

thread_local int64_t own_threads = 0;

}  // namespace

int64_t num_threads() { return own_threads > 0 ? own_threads : torch::stable::get_num_threads(); }

}  // namespace trunnion_cpu

// For Python's ctypes: the number of the calling thread's operators from now on; 0: torch's.
extern "C" __attribute__((visibility("default"))) void trunnion_cpu_set_threads(int64_t threads) {
  trunnion_cpu::own_threads = threads;
}
