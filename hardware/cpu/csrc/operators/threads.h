// Threads that share the items of one call. A core that is busy with something else takes fewer items.
#pragma once

#include <cstdint>

#include "program.h"

namespace trunnion_cpu {

using ItemRange = void (*)(const void* args, int64_t first, int64_t last);

// Calls `run` for all of [0, items) in ranges of one item, on the caller and up to `threads - 1` others, and returns
// when all are done. Each thread begins with consecutive items and takes them one by one; who has none left takes those
// of others, so that a thread that the system does not run takes none. Others spin for a moment between calls, then sleep. A second caller at the same time works alone, and so
// does a call within a call. `run` throws nothing.
void share(int64_t items, int64_t threads, ItemRange run, const void* args);

// As `share`, for a kernel and its arguments; not noted in a program.
template <class Args>
void share_once(int64_t items, int64_t threads, void (*kernel)(const Args&, int64_t, int64_t), const Args& args) {
  if (items <= 1 || threads <= 1) return kernel(args, 0, items);
  struct Call {
    void (*kernel)(const Args&, int64_t, int64_t);
    const Args& args;
  } call{kernel, args};
  share(
      items, threads,
      [](const void* opaque, int64_t first, int64_t last) {
        const auto& call = *static_cast<const Call*>(opaque);
        call.kernel(call.args, first, last);
      },
      &call);
}

// As `share_once`. While this thread records a program, the call is noted there: it is made again with the pointers of
// `args` and, unless `threads` is 1, as many threads as the program then has.
template <class Args>
void share(int64_t items, int64_t threads, void (*kernel)(const Args&, int64_t, int64_t), const Args& args) {
  if (Program* program = Program::recording()) {
    program->note([=](int64_t then) { share_once(items, threads > 1 ? then : 1, kernel, args); });
  }
  const NotRecorded within;
  share_once(items, threads, kernel, args);
}

}  // namespace trunnion_cpu
