// Which requests a step holds, step by step, without an executor.
#include <numeric>

#include "check.h"
#include "serving/scheduler.h"

using namespace trunnion::serving;

namespace {

constexpr int32_t kBlockSize = 4;

// A scheduler over one full group, whose requests "sample" token 0.
class Bench {
 public:
  Bench(const trn_limits& limits, int32_t usable_blocks, bool prefix_caching = false)
      : cache_({{TRN_CACHE_FULL, kBlockSize, 1000, 0, 1}}, std::vector<int32_t>{usable_blocks + 1}, prefix_caching),
        hub_(1, [] {}),
        scheduler_(limits, cache_, hub_) {}

  Request& add(int32_t num_tokens) {
    Request& request = *requests_.emplace_back(std::make_unique<Request>());
    request.id = requests_.size();
    std::string sealed;
    request.channel = hub_.open(request.id, sealed);
    request.tokens.resize(static_cast<size_t>(num_tokens));
    std::iota(request.tokens.begin(), request.tokens.end(), 1);
    request.num_prompt_tokens = num_tokens;
    scheduler_.add(request);
    return request;
  }

  // Runs one step; its entries as "id:tokens", decodes marked with d, sampled rows with !.
  std::string step() {
    std::string text;
    const auto batch = scheduler_.schedule();
    for (const BatchEntry& entry : batch) {
      text += (text.empty() ? "" : " ") + std::to_string(entry.request->id) + ":" + std::to_string(entry.num_tokens) +
              (entry.is_decode ? "d" : "") + (entry.wants_logits ? "!" : "");
    }
    scheduler_.complete(batch);
    for (const BatchEntry& entry : batch) {
      if (entry.wants_logits) entry.request->tokens.push_back(0);
    }
    return text;
  }

  void fill_queue(Request& request) { hub_.push(*request.channel, {}); }
  void read_queue(Request& request) {
    trn_host_event event{};
    hub_.next(request.id, 0, event);
  }

  Scheduler& scheduler() { return scheduler_; }

 private:
  KvCache cache_;
  EventHub hub_;
  Scheduler scheduler_;
  std::vector<std::unique_ptr<Request>> requests_;
};

trn_limits limits(int32_t max_num_tokens, int32_t max_num_seqs = 8, int32_t max_logits_rows = 8) {
  return {max_num_tokens, max_num_seqs, 1000, max_logits_rows, kBlockSize, 1, 0};
}

}  // namespace

TEST(scheduler_fills_the_budget_decodes_first) {
  Bench bench(limits(10), 100);
  bench.add(4);
  bench.add(15);
  bench.add(3);
  CHECK_EQ(bench.step(), "1:4! 2:6");
  CHECK_EQ(bench.step(), "1:1d! 2:9!");
  CHECK_EQ(bench.step(), "1:1d! 2:1d! 3:3!");
  CHECK_EQ(bench.step(), "1:1d! 2:1d! 3:1d!");
}

TEST(scheduler_keeps_to_seats_and_rows) {
  Bench seats(limits(100, 2), 100);
  for (int i = 0; i < 3; ++i) seats.add(3);
  CHECK_EQ(seats.step(), "1:3! 2:3!");
  CHECK_EQ(seats.step(), "1:1d! 2:1d!");
  Bench rows(limits(100, 8, 1), 100);
  for (int i = 0; i < 3; ++i) rows.add(3);
  CHECK_EQ(rows.step(), "1:3! 2:2 3:2");
  CHECK_EQ(rows.step(), "1:1d!");
}

TEST(scheduler_preempts_the_youngest) {
  Bench bench(limits(100), 4);
  for (int i = 0; i < 2; ++i) bench.add(8);
  CHECK_EQ(bench.step(), "1:8! 2:8!");
  // Both need a third block and there is none: the younger goes, and does not come back in the same step.
  CHECK_EQ(bench.step(), "1:1d!");
  CHECK_EQ(bench.scheduler().num_preemptions(), 1u);
  CHECK_EQ(bench.scheduler().waiting().size(), 1u);
  CHECK_EQ(bench.step(), "1:1d!");
  bench.scheduler().remove(*bench.scheduler().running()[0]);
  CHECK_EQ(bench.step(), "2:9!");
}

TEST(scheduler_unschedules_a_young_decode_for_an_old_prompt) {
  Bench bench(limits(8), 5);
  Request& old = bench.add(16);
  bench.step();
  CHECK_EQ(bench.step(), "1:8!");
  // While its reader sleeps the old one loses its blocks to the young one, whom it drives out when it is back.
  bench.fill_queue(old);
  bench.add(7);
  CHECK_EQ(bench.step(), "2:7!");
  CHECK_EQ(bench.scheduler().num_preemptions(), 1u);
  bench.read_queue(old);
  CHECK_EQ(bench.step(), "2:1d! 1:7");
  CHECK_EQ(bench.step(), "1:7");
  CHECK_EQ(bench.step(), "1:3!");
  CHECK_EQ(bench.scheduler().num_preemptions(), 2u);
}

TEST(scheduler_lets_nobody_overtake_the_first_in_line) {
  Bench bench(limits(100), 5);
  bench.add(12);
  bench.add(12);
  bench.add(2);
  CHECK_EQ(bench.step(), "1:12!");
  CHECK_EQ(bench.step(), "1:1d!");
}

TEST(scheduler_puts_an_admitted_decode_before_a_running_prompt) {
  Bench bench(limits(12), 100, true);
  bench.add(5);
  CHECK_EQ(bench.step(), "1:5!");
  bench.scheduler().remove(*bench.scheduler().running()[0]);
  bench.add(11);
  // Tokens 1 ... 5 again: its one full block is cached, one token is left to compute.
  bench.add(5);
  CHECK_EQ(bench.step(), "3:1d! 2:7!");
}
