// The pool of csrc/operators/threads.cc by itself, for ThreadSanitizer. Prints the check that fails, and ends with 1.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../../csrc/operators/threads.h"

namespace {

using trunnion_cpu::share_once;

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
    share_once(static_cast<int64_t>(times.size()), threads, add, *this);
    for (const int count : times) check(count == 1, what);
  }

  // A call of a program holds its arguments' copy: here, where the tally is.
  static void noted(Tally* const& tally, int64_t first, int64_t last) { add(*tally, first, last); }

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
      share_once(3, 3, Meeting::attend, meeting);
      check(meeting.met, "every thread that was asked for comes, asleep or not");
    }
  }
}

// An item that ends when all others have: whoever computes it, others take what its thread has not come to.
struct Held {
  int64_t held;
  std::atomic<int64_t> left;
  std::atomic<bool> taken{true};

  static void wait(const Held& given, int64_t item, int64_t) {
    auto& call = const_cast<Held&>(given);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (item == call.held && call.left.load() > 1) {
      if (std::chrono::steady_clock::now() > until) {
        call.taken = false;
        break;
      }
      std::this_thread::yield();
    }
    --call.left;
  }
};

void nobody_holds_items_of_others() {
  for (const int64_t threads : {2, 3}) {
    for (int64_t item = 0; item < 24; ++item) {
      Held call{.held = item, .left = 24};
      share_once(24, threads, Held::wait, call);
      check(call.taken, "items of a thread that is held up are computed by others");
    }
  }
}

// What the caller has computed, in its order.
struct Order {
  std::thread::id caller = std::this_thread::get_id();
  std::vector<int64_t> items;

  static void note(const Order& given, int64_t item, int64_t) {
    if (std::this_thread::get_id() == given.caller) const_cast<Order&>(given).items.push_back(item);
  }
};

void threads_begin_with_neighbours() {
  for (int call = 0; call < 50; ++call) {
    Order order;
    share_once(40, 2, Order::note, order);
    for (size_t i = 0; i < order.items.size(); ++i) {
      const int64_t expected = i < 20 ? static_cast<int64_t>(i) : order.items[i];
      check(order.items[i] == expected || order.items[i] >= 20, "a thread takes its own items from the front");
      check(i == 0 || order.items[i] < 20 || order.items[i - 1] < 20 || order.items[i] == order.items[i - 1] - 1,
            "and others' from the back");
    }
    check(!order.items.empty() && order.items[0] == 0, "the caller begins with the first item");
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
  share_once(200, 2, Seen::watch, seen);
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
  share_once(40, 3, Outer::nest, outer);
  check(outer.sum == 40, "calls within calls return");
}

void programs_make_calls_again() {
  trunnion_cpu::Program program;
  std::vector<Tally> tallies(20, Tally{std::vector<int>(100)});
  for (size_t i = 0; i < tallies.size(); ++i) {
    trunnion_cpu::Program::recording() = i % 2 == 0 ? &program : nullptr;
    trunnion_cpu::share(100, 3, Tally::noted, &tallies[i]);
  }
  trunnion_cpu::Program::recording() = nullptr;
  check(program.size() == 10, "calls are noted while a program is recorded, and those within them are not");
  for (const int64_t threads : {1, 3, 2}) program.run(0, program.size(), threads);
  for (size_t i = 0; i < tallies.size(); ++i) {
    for (const int count : tallies[i].times) check(count == (i % 2 == 0 ? 4 : 1), "a program makes its calls again");
  }
}

}  // namespace

int main() {
  each_item_once();
  sleepers_are_woken();
  nobody_holds_items_of_others();
  threads_begin_with_neighbours();
  most_threads_stay_out();
  callers_at_the_same_time();
  calls_within_calls();
  programs_make_calls_again();
  std::puts("ok");
}
