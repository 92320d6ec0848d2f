// Memory that one thread uses again and again within calls.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace trunnion_cpu {

class Scratch {
 public:
  // At least `bytes`, aligned to 64, valid until the next call on this thread.
  static void* of(size_t bytes) {
    static thread_local Scratch scratch;
    if (bytes > scratch.size_) {
      scratch.memory_.reset();
      scratch.memory_.reset(::operator new(bytes, std::align_val_t{64}));
      scratch.size_ = bytes;
    }
    return scratch.memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

}  // namespace trunnion_cpu
