// The pool of csrc/operators/threads.cc by itself, for ThreadSanitizer. Prints the check that fails, and ends with 1.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../../csrc/operators/threads.h"

namespace {

using trunnion_cpu::share;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

// What one call counts, without atomics: a sanitizer sees items that two threads have, and results read too early.
struct Tally {
  std::vector<int> times;

  void once(int64_t threads, const char* what) {
    times.assign(times.size(), 0);
    share(static_cast<int64_t>(times.size()), threads, add, *this);
    for (const int count : times) check(count == 1, what);
  }

  static void add(const Tally& tally, int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) ++const_cast<Tally&>(tally).times[item];
  }
};

void each_item_once() {
  for (const int64_t threads : {1, 4, 2, 7, 1, 3}) {
    for (const size_t items : {0, 1, 2, 3, 5, 64, 1000}) {
      Tally tally{std::vector<int>(items)};
      for (int call = 0; call < 50; ++call) tally.once(threads, "each item is computed once");
    }
  }
}

// Items that wait for each other: a call in which too few threads help never ends by itself.
struct Meeting {
  std::atomic<int> present{0};
  int needed;
  std::atomic<bool> met{true};

  static void attend(const Meeting& given, int64_t, int64_t) {
    auto& meeting = const_cast<Meeting&>(given);
    ++meeting.present;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (meeting.present.load() < meeting.needed) {
      if (std::chrono::steady_clock::now() > until) {
        meeting.met = false;
        return;
      }
      std::this_thread::yield();
    }
  }
};

void sleepers_are_woken() {
  for (int pause : {0, 50, 120, 300, 2000}) {
    for (int call = 0; call < 20; ++call) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      Meeting meeting{.needed = 3};
      share(3, 3, Meeting::attend, meeting);
      check(meeting.met, "every thread that was asked for comes, asleep or not");
    }
  }
}

void most_threads_stay_out() {
  // Threads of earlier, larger calls exist by now.
  struct Seen {
    std::atomic<int> inside{0}, most{0};
    static void watch(const Seen& given, int64_t, int64_t) {
      auto& seen = const_cast<Seen&>(given);
      const int now = ++seen.inside;
      int most = seen.most.load();
      while (now > most && !seen.most.compare_exchange_weak(most, now)) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      --seen.inside;
    }
  } seen;
  share(200, 2, Seen::watch, seen);
  check(seen.most <= 2, "no more threads compute than were asked for");
}

void callers_at_the_same_time() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([] {
      Tally tally{std::vector<int>(97)};
      for (int call = 0; call < 500; ++call) tally.once(3, "each caller's items are its own");
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void calls_within_calls() {
  struct Outer {
    std::atomic<int> sum{0};
    static void nest(const Outer& given, int64_t, int64_t) {
      Tally tally{std::vector<int>(10)};
      tally.once(3, "a call within a call works alone");
      const_cast<Outer&>(given).sum += 1;
    }
  } outer;
  share(40, 3, Outer::nest, outer);
  check(outer.sum == 40, "calls within calls return");
}

}  // namespace

int main() {
  each_item_once();
  sleepers_are_woken();
  most_threads_stay_out();
  callers_at_the_same_time();
  calls_within_calls();
  std::puts("ok");
}
