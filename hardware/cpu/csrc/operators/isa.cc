#include "isa.h"

#include <atomic>
#include <cstring>

namespace trunnion_cpu {
namespace {

// Best first.
struct Offer {
  const Kernels& kernels;
  bool (*is_supported)();
};

#if defined(TRUNNION_X86)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

const Offer kOffers[] = {
#if defined(TRUNNION_X86)
    {avx512_bf16::kKernels, has_avx512_bf16},
    {avx512::kKernels, has_avx512},
    {avx2::kKernels, has_avx2},
#endif
    {portable::kKernels, [] { return true; }},
};

const Kernels* best() {
  for (const Offer& offer : kOffers) {
    if (offer.is_supported()) return &offer.kernels;
  }
  return nullptr;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> kernels{best()};
  return kernels;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

}  // namespace trunnion_cpu

// For Python's ctypes: names of the sets of kernels, best first; null past the end.
extern "C" __attribute__((visibility("default"))) const char* trunnion_cpu_isa(int index) {
  int seen = 0;
  for (const auto& offer : trunnion_cpu::kOffers) {
    if (offer.is_supported() && seen++ == index) return offer.kernels.name;
  }
  return nullptr;
}

extern "C" __attribute__((visibility("default"))) const char* trunnion_cpu_chosen_isa() {
  return trunnion_cpu::kernels().name;
}

// 0 on success, 1 if this processor or this build has no such set.
extern "C" __attribute__((visibility("default"))) int trunnion_cpu_choose_isa(const char* name) {
  for (const auto& offer : trunnion_cpu::kOffers) {
    if (offer.is_supported() && std::strcmp(offer.kernels.name, name) == 0) {
      trunnion_cpu::chosen().store(&offer.kernels);
      return 0;
    }
  }
  return 1;
}
