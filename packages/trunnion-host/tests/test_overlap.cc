// Planning ahead: it happens, and what a step turns out to do differently than planned leaves no trace.
#include <algorithm>
#include <thread>

#include "host_fixture.h"

namespace {

trn_host_options overlapping() {
  trn_host_options options = default_options();
  options.overlap = 1;
  return options;
}

// Steps long enough that submits from outside meet a running one.
void slow_down() {
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return TRN_OK;
  };
}

}  // namespace

TEST(overlap_plans_every_step_but_the_first) {
  fake::config() = {};
  Host host(overlapping());
  CHECK_EQ(host.wait(host.submit({1, 2, 3}, sampling(0, 12))).tokens.size(), 12u);
  // A request that ends at its length is known to end: no plan is made for it.
  const trn_host_stats stats = host.stats();
  CHECK_EQ(stats.steps, 12u);
  CHECK_EQ(stats.overlapped_steps, 11u);
  CHECK_EQ(stats.dropped_plans + stats.dropped_rows, 0u);
}

TEST(overlap_is_off_unless_asked_for) {
  fake::config() = {};
  trn_host_options options = default_options();
  options.overlap = 0;
  Host host(options);
  host.wait(host.submit({1, 2, 3}, sampling(0, 12)));
  CHECK_EQ(host.stats().overlapped_steps, 0u);
}

TEST(overlap_drops_the_plan_when_all_its_requests_have_stopped) {
  fake::config() = {};
  Host host(overlapping());
  const auto free_run = host.wait(host.submit({1, 2}, sampling())).tokens;
  const auto first = std::find(free_run.begin(), free_run.end(), free_run[5]);
  const uint64_t steps = host.stats().steps;
  const Ended ended = host.wait(host.submit({1, 2}, sampling(), {free_run[5]}));
  CHECK(ended.tokens == std::vector<int32_t>(free_run.begin(), first));
  // One step for each token and one for the stop id; the one planned after it never ran.
  CHECK_EQ(host.stats().steps - steps, ended.tokens.size() + 1);
  // The plan is dropped when the loop next looks for one.
  CHECK_EQ(host.wait(host.submit({9}, sampling(0, 1))).tokens.size(), 1u);
  CHECK_EQ(host.stats().dropped_plans, 1u);
  CHECK_EQ(host.stats().dropped_rows, 0u);
  CHECK_EQ(host.stats().blocks_used, 0);
}

TEST(overlap_drops_the_row_of_a_request_that_stopped_among_others) {
  for (const auto& groups : {std::vector<fake::Group>{{}, {TRN_CACHE_WINDOW, 6}},
                             std::vector<fake::Group>{{}, {TRN_CACHE_RECURRENT}}}) {
    fake::config() = {.groups = groups};
    const auto params = sampling(0.8, 30);
    const std::vector<std::vector<int32_t>> prompts{{1, 2}, {3, 4, 5}, {6}};
    const auto expected = alone(prompts, params);
    const int32_t stop = expected[1][8];
    const auto first = std::find(expected[1].begin(), expected[1].end(), stop);
    slow_down();
    Host host(overlapping());
    const uint64_t one = host.submit(prompts[0], params), two = host.submit(prompts[1], params, {stop}),
                   three = host.submit(prompts[2], params);
    auto ended = host.wait_all(3);
    CHECK(ended[one].tokens == expected[0]);
    CHECK(ended[two].tokens == std::vector<int32_t>(expected[1].begin(), first));
    CHECK_EQ(ended[two].finish.finish_reason, TRN_FINISH_STOP);
    CHECK(ended[three].tokens == expected[2]);
    CHECK_EQ(host.stats().dropped_rows, 1u);
    CHECK_EQ(host.stats().blocks_used, 0);
    // What the row wrote lies in blocks that are free: nobody finds it.
    CHECK(host.wait(host.submit(prompts[1], params)).tokens == expected[1]);
  }
}

TEST(overlap_forgets_blocks_that_a_failed_step_should_have_filled) {
  const auto params = sampling(0.7, 6);
  std::vector<std::vector<int32_t>> prompts(2, std::vector<int32_t>(20, 7));
  prompts[1].push_back(8);
  for (const trn_status status : {TRN_FAILED, TRN_REFUSED}) {
    fake::config() = {};
    const auto expected = alone(prompts, params);
    // One prompt per step: the second is planned, upon the first one's blocks, while the first step runs, and fails.
    fake::config().fault = [=](uint64_t step, const trn_forward_batch&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return step == 2 ? status : TRN_OK;
    };
    trn_host_options options = overlapping();
    options.executor.limits.max_num_tokens = 20;
    Host host(options);
    host.wait(host.submit({1}, sampling(0, 1)));
    const uint64_t one = host.submit(prompts[0], params), two = host.submit(prompts[1], params);
    auto ended = host.wait_all(2);
    CHECK(ended[two].tokens == expected[1]);
    if (status == TRN_FAILED) CHECK(ended[one].tokens == expected[0]);
    if (status == TRN_REFUSED) CHECK_EQ(ended[one].finish.finish_reason, TRN_FINISH_ERROR);
    CHECK_EQ(host.stats().dropped_plans, 1u);
    CHECK_EQ(host.stats().blocks_used, 0);
  }
}

TEST(overlap_cancels_requests_of_the_plan) {
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 6}}};
  const auto params = sampling(0.7, 40);
  const std::vector<std::vector<int32_t>> prompts{std::vector<int32_t>(9, 1), std::vector<int32_t>(9, 2)};
  const auto expected = alone(prompts, params);
  slow_down();
  Host host(overlapping());
  const uint64_t stays = host.submit(prompts[0], params), goes = host.submit(prompts[1], params);
  host.next(goes);
  trn_host_cancel(host.get(), goes);
  const Ended ended = host.wait(goes);
  CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_CANCELLED);
  CHECK(host.wait(stays).tokens == expected[0]);
  CHECK(host.stats().dropped_rows >= 1u);
  CHECK_EQ(host.stats().blocks_used, 0);
  CHECK(host.wait(host.submit(prompts[1], params)).tokens == expected[1]);
}

TEST(overlap_passes_on_a_fatal_error) {
  fake::config() = {};
  fake::config().fault = [](uint64_t step, const trn_forward_batch&) { return step == 5 ? TRN_FATAL : TRN_OK; };
  Host host(overlapping());
  const Ended ended = host.wait(host.submit({1}, sampling()));
  CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_ERROR);
  CHECK_EQ(ended.tokens.size(), 4u);
}
