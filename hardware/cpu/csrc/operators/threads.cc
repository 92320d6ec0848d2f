#include "threads.h"

#include <atomic>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trunnion_cpu {
namespace {

// Between the calls of a step there are microseconds; between steps a host may take milliseconds.
constexpr std::chrono::microseconds kSpin{100};
constexpr int kPollsPerLook = 64;
constexpr int kPollsBeforeYield = 2000;

void rest() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  void share(int64_t items, int64_t threads, ItemRange run, const void* args) {
    if (busy_.test_and_set(std::memory_order_acquire)) return run(args, 0, items);
    for (; workers_ + 1 < threads; ++workers_) {
      // Workers live as long as the process, asleep unless there is work.
      std::thread([this, number = workers_] { work(number); }).detach();
    }
    run_ = run;
    args_ = args;
    items_ = items;
    // Threads of an earlier, larger call stay out.
    helpers_.store(threads - 1, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    open_.store(++calls_, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      wake_.fetch_add(1, std::memory_order_seq_cst);
      wake_.notify_all();
    }
    take_items();
    open_.store(0, std::memory_order_seq_cst);
    for (int polls = 0; inside_.load(std::memory_order_seq_cst) != 0; ++polls) {
      rest();
      // Whoever is inside may be waiting for this core.
      if (polls >= kPollsBeforeYield) std::this_thread::yield();
    }
    busy_.clear(std::memory_order_release);
  }

 private:
  void take_items() {
    for (;;) {
      const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_) return;
      run_(args_, item, item + 1);
    }
  }

  void work(int64_t number) {
    uint64_t last = 0;
    for (;;) {
      last = wait_for_call(last);
      inside_.fetch_add(1, std::memory_order_seq_cst);
      // Only an open call's items may be looked at; the caller waits for who is inside.
      if (open_.load(std::memory_order_seq_cst) == last && number < helpers_.load(std::memory_order_relaxed)) {
        take_items();
      }
      inside_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  bool is_new(uint64_t last, uint64_t& call) const {
    call = open_.load(std::memory_order_acquire);
    return call != 0 && call != last;
  }

  uint64_t wait_for_call(uint64_t last) {
    uint64_t call;
    for (;;) {
      const auto until = std::chrono::steady_clock::now() + kSpin;
      do {
        for (int poll = 0; poll < kPollsPerLook; ++poll) {
          if (is_new(last, call)) return call;
          rest();
        }
      } while (std::chrono::steady_clock::now() < until);
      const uint32_t seen = wake_.load(std::memory_order_seq_cst);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      if (open_.load(std::memory_order_seq_cst) == 0 || !is_new(last, call)) wake_.wait(seen);
      sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  std::atomic_flag busy_;
  int64_t workers_ = 0;
  uint64_t calls_ = 0;
  ItemRange run_ = nullptr;
  const void* args_ = nullptr;
  int64_t items_ = 0;
  std::atomic<int64_t> helpers_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> open_{0};
  std::atomic<int64_t> inside_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int64_t> sleeping_{0};
};

// Never destroyed: detached workers may outlive every other object of the process.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

}  // namespace

void share(int64_t items, int64_t threads, ItemRange run, const void* args) {
  if (items <= 0) return;
  if (items == 1 || threads <= 1) return run(args, 0, items);
  pool().share(items, threads, run, args);
}

}  // namespace trunnion_cpu
