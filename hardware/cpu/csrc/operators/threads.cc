#include "threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
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

// Consecutive items that one thread has and takes from the front; others take from the back what it has not come to.
// Neighbours in memory are thus read by one core: a core that reads every other block of a weight reaches half its rate.
class alignas(64) Run {
 public:
  void set(int64_t first, int64_t end) {
    items_.store(static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(first), std::memory_order_relaxed);
  }
  bool take_first(int64_t& item) {
    uint64_t seen = items_.load(std::memory_order_relaxed);
    do {
      if (first(seen) >= end(seen)) return false;
      item = first(seen);
    } while (!items_.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed));
    return true;
  }
  bool take_last(int64_t& item) {
    uint64_t seen = items_.load(std::memory_order_relaxed);
    do {
      if (first(seen) >= end(seen)) return false;
      item = end(seen) - 1;
    } while (!items_.compare_exchange_weak(seen, seen - (uint64_t{1} << 32), std::memory_order_relaxed));
    return true;
  }

 private:
  static int64_t first(uint64_t items) { return items & 0xffffffffu; }
  static int64_t end(uint64_t items) { return items >> 32; }

  std::atomic<uint64_t> items_{0};
};
constexpr int64_t kMostItems = std::numeric_limits<int32_t>::max();  // that a Run can hold

class Pool {
 public:
  void share(int64_t items, int64_t threads, ItemRange run, const void* args) {
    if (busy_.test_and_set(std::memory_order_acquire)) return run(args, 0, items);
    threads = std::min(threads, items);
    for (; workers_ + 1 < threads; ++workers_) {
      // Workers live as long as the process, asleep unless there is work.
      std::thread([this, number = workers_] { work(number); }).detach();
    }
    run_ = run;
    args_ = args;
    if (threads > num_runs_) {
      runs_ = std::make_unique<Run[]>(threads);
      num_runs_ = threads;
    }
    for (int64_t i = 0; i < threads; ++i) runs_[i].set(items * i / threads, items * (i + 1) / threads);
    // Threads of an earlier, larger call stay out.
    threads_.store(threads, std::memory_order_relaxed);
    open_.store(++calls_, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      wake_.fetch_add(1, std::memory_order_seq_cst);
      wake_.notify_all();
    }
    take_items(0, threads);
    open_.store(0, std::memory_order_seq_cst);
    for (int polls = 0; inside_.load(std::memory_order_seq_cst) != 0; ++polls) {
      rest();
      // Whoever is inside may be waiting for this core.
      if (polls >= kPollsBeforeYield) std::this_thread::yield();
    }
    busy_.clear(std::memory_order_release);
  }

 private:
  // Those of the thread's own run, then what others have left.
  void take_items(int64_t own, int64_t threads) {
    int64_t item;
    while (runs_[own].take_first(item)) run_(args_, item, item + 1);
    for (int64_t other = own + 1; other < own + threads; ++other) {
      while (runs_[other % threads].take_last(item)) run_(args_, item, item + 1);
    }
  }

  void work(int64_t number) {
    uint64_t last = 0;
    for (;;) {
      last = wait_for_call(last);
      inside_.fetch_add(1, std::memory_order_seq_cst);
      // Only an open call's items may be looked at; the caller waits for who is inside.
      if (open_.load(std::memory_order_seq_cst) == last) {
        const int64_t threads = threads_.load(std::memory_order_relaxed);
        if (number + 1 < threads) take_items(number + 1, threads);
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
  std::unique_ptr<Run[]> runs_;
  int64_t num_runs_ = 0;
  std::atomic<int64_t> threads_{0};
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
  if (items == 1 || threads <= 1 || items > kMostItems) return run(args, 0, items);
  pool().share(items, threads, run, args);
}

}  // namespace trunnion_cpu
