// Memory that one thread uses again and again within calls.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "program.h"

namespace trunnion_cpu {

class Scratch {
 public:
  // At least `bytes`, aligned to 64, valid until the next call on this thread; a program's own while one is recorded.
  static void* of(size_t bytes) {
    if (Program* program = Program::recording()) return program->scratch(bytes);
    static thread_local Scratch scratch;
    if (bytes > scratch.size_) {
      scratch.memory_.reset();
      scratch.memory_.reset(::operator new(bytes, std::align_val_t{64}));
      scratch.size_ = bytes;
    }
    return scratch.memory_.get();
  }

 private:
  std::unique_ptr<void, FreeAligned> memory_;
  size_t size_ = 0;
};

}  // namespace trunnion_cpu
