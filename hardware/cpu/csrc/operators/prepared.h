// Rows of x as kernels read them.
#pragma once

#include "../kernels/kernels.h"
#include "scratch.h"
#include "threads.h"

namespace trunnion_cpu {

constexpr int64_t kSharedPrepare = 1 << 15;  // elements below which one thread prepares

constexpr int64_t element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

struct PreparedRows {
  const void* data;
  int64_t stride;
};

// In this thread's scratch, or where they lie.
inline PreparedRows prepared(const Kernels& kernel, PrepareArgs args, int64_t rows, int64_t threads) {
  const int64_t width = kernel.prepared_size(args.element, args.size);
  // Rows that would be copied as they are need not be.
  if (width == args.size && kernel.prepared_bytes(args.element) == element_bytes(args.element)) {
    return {args.x, args.x_stride};
  }
  args.out = Scratch::of(rows * width * kernel.prepared_bytes(args.element));
  if (rows * width < kSharedPrepare) threads = 1;
  share(rows, threads, kernel.prepare, args);
  return {args.out, width};
}

}  // namespace trunnion_cpu
