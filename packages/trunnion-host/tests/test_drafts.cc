// Drafts and their verification: the text never depends on them, and what the fake checks of each batch holds.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "host_fixture.h"

namespace {

const std::vector<std::vector<fake::Group>> kModels{
    {{}}, {{}, {TRN_CACHE_WINDOW, 6}}, {{}, {TRN_CACHE_RECURRENT}}, {{}, {TRN_CACHE_WINDOW, 3}, {TRN_CACHE_RECURRENT}}};

trn_host_options drafting(int32_t num_drafts) {
  trn_host_options options = default_options();
  options.overlap = 0;
  options.num_drafts = num_drafts;
  options.executor.limits = {64, 8, 64, 64, 4, 0, 0};
  return options;
}

// As together(), but the first step waits until all are submitted: they run side by side however slow this thread is.
std::vector<std::vector<int32_t>> side_by_side(const trn_host_options& options,
                                               const std::vector<std::vector<int32_t>>& prompts,
                                               const trn_host_sampling& params) {
  std::atomic<bool> submitted = false;
  fake::config().fault = [&](uint64_t, const trn_forward_batch&) {
    submitted.wait(false);
    return TRN_OK;
  };
  std::vector<std::vector<int32_t>> texts;
  {
    Host host(options);
    std::vector<uint64_t> order;
    for (const auto& prompt : prompts) order.push_back(host.submit(prompt, params));
    submitted = true;
    submitted.notify_all();
    for (const uint64_t id : order) texts.push_back(host.wait(id).tokens);
  }
  fake::config().fault = {};
  return texts;
}

void check_sums(const trn_host_stats& stats) {
  uint64_t drafted = 0, accepted = 0;
  for (int32_t i = 0; i < TRN_HOST_MAX_DRAFTS; ++i) {
    drafted += stats.drafted_at[i];
    accepted += stats.accepted_at[i];
    CHECK(stats.accepted_at[i] <= stats.drafted_at[i]);
    CHECK(i == 0 || stats.accepted_at[i] <= stats.accepted_at[i - 1]);
  }
  CHECK_EQ(drafted, stats.drafted_tokens);
  CHECK_EQ(accepted, stats.accepted_tokens);
}

std::string creation_error(const trn_host_options& options) {
  try {
    const Host host(options);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(drafts_never_change_the_text) {
  const auto prompts = random_prompts(7, 12, 40);
  for (const auto& groups : kModels) {
    for (const double temperature : {0.0, 0.7}) {
      const auto params = sampling(temperature, 20);
      fake::config() = {.groups = groups, .required_fields = TRN_FIELD_KV_CSR};
      const auto expected = alone(prompts, params);
      for (const int32_t agreement : {0, 40, 100}) {
        for (int32_t k = 1; k <= 6; ++k) {
          fake::config().agreement = agreement;
          trn_host_stats stats{};
          CHECK(together(drafting(k), prompts, params, &stats) == expected);
          check_sums(stats);
          CHECK(stats.drafted_tokens > 0 && stats.verify_steps > 0);
          CHECK_EQ(stats.failed_draft_steps, 0u);
          if (temperature == 0.0 && agreement == 0) CHECK_EQ(stats.accepted_tokens, 0u);
          if (temperature == 0.0 && agreement == 100) CHECK_EQ(stats.accepted_tokens, stats.drafted_tokens);
          if (temperature == 0.0 && agreement == 40) CHECK(stats.accepted_tokens * 5 > stats.drafted_tokens || k > 2);
        }
      }
    }
  }
}

TEST(perfect_drafts_take_a_step_for_all_of_them) {
  fake::config() = {.agreement = 100};
  Host host(drafting(3));
  // The prompt's step, then four tokens a step.
  CHECK_EQ(host.wait(host.submit({1, 2, 3}, sampling(0, 41))).tokens.size(), 41u);
  const trn_host_stats stats = host.stats();
  CHECK_EQ(stats.steps, 11u);
  CHECK_EQ(stats.verify_steps, 10u);
  CHECK_EQ(stats.accepted_tokens, 30u);
  for (int32_t i = 0; i < 3; ++i) CHECK_EQ(stats.accepted_at[i], 10u);
  // The last step's tokens end the request: nothing is drafted after them.
  CHECK_EQ(stats.draft_steps, 30u);
  CHECK_EQ(stats.decode_tokens, 40u);
  CHECK_EQ(stats.prefill_tokens, 3u);
}

TEST(drafts_fill_the_step_to_its_limits) {
  fake::config() = {.groups = {{}, {TRN_CACHE_RECURRENT}}, .agreement = 60};
  const auto prompts = random_prompts(9, 6, 7);
  for (const int32_t k : {3, 6}) {
    const auto expected = alone(prompts, sampling(0, 24));
    trn_host_options options = drafting(k);
    // 6 x (1 + 6) = 42 rows, not one more.
    options.executor.limits = {6 * (1 + k), 6, 64, 6 * (1 + k), 4, 0, 0};
    CHECK(side_by_side(options, prompts, sampling(0, 24)) == expected);
    CHECK_EQ(fake::most_logits(), 6 * (1 + k));
    // With fewer rows, of either kind, some requests have fewer drafts, or none.
    options.executor.limits.max_logits_rows = 7;
    trn_host_stats stats{};
    CHECK(together(options, prompts, sampling(0, 24), &stats) == expected);
    CHECK(stats.accepted_tokens > 0);
    options.executor.limits.max_num_tokens = 2 * (1 + k) + 1;
    CHECK(together(options, prompts, sampling(0, 24), &stats) == expected);
    CHECK(stats.accepted_tokens > 0);
  }
}

TEST(drafts_end_with_the_request) {
  fake::config() = {.agreement = 100};
  const auto free_run = alone({{1, 2}}, sampling(0, 30))[0];
  Host host(drafting(4));
  for (size_t at = 0; at < 20; ++at) {
    const int32_t stop = free_run[at];
    const std::vector<int32_t> before(free_run.begin(), std::find(free_run.begin(), free_run.end(), stop));
    const Ended ended = host.wait(host.submit({1, 2}, sampling(0, 30), {stop}));
    CHECK(ended.tokens == before);
    CHECK_EQ(ended.finish.stop_id, stop);
  }
  for (int32_t most = 1; most < 12; ++most) {
    const Ended ended = host.wait(host.submit({1, 2}, sampling(0, most)));
    CHECK(ended.tokens == std::vector<int32_t>(free_run.begin(), free_run.begin() + most));
    CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_LENGTH);
  }
}

TEST(drafts_heed_min_tokens) {
  fake::config() = {.agreement = 100};
  std::vector<int32_t> most(49);
  for (int32_t id = 0; id < 49; ++id) most[id] = id;
  auto params = sampling(1);
  params.min_tokens = 6;
  const auto run = [&](const trn_host_options& options) {
    Host host(options);
    return host.wait(host.submit({1}, params, most)).tokens;
  };
  CHECK(run(drafting(3)) == run(drafting(0)));
}

TEST(drafts_end_at_max_model_len) {
  for (const auto& groups : kModels) {
    fake::config() = {.groups = groups, .agreement = 100};
    for (int32_t length = 54; length < 64; ++length) {
      const std::vector<int32_t> prompt(static_cast<size_t>(length), 3);
      const auto expected = alone({prompt}, sampling(0, 0))[0];
      CHECK_EQ(std::ssize(expected), 64 - length);
      for (const int32_t k : {1, 3, 6}) CHECK(together(drafting(k), {prompt}, sampling(0, 0))[0] == expected);
    }
  }
}

TEST(drafts_survive_preemption) {
  const auto prompts = random_prompts(11, 10, 30);
  for (const auto& groups : kModels) {
    fake::config() = {.groups = groups};
    const auto expected = alone(prompts, sampling(0.6, 24));
    fake::config().agreement = 80;
    for (const int32_t kv_blocks : {16, 20, 30}) {
      for (const bool prefix_caching : {false, true}) {
        trn_host_options options = drafting(3);
        options.kv_blocks = kv_blocks;
        options.prefix_caching = prefix_caching;
        trn_host_stats stats{};
        CHECK(together(options, prompts, sampling(0.6, 24), &stats) == expected);
        CHECK(kv_blocks == 30 || stats.preemptions > 0);
        CHECK(stats.accepted_tokens > 0);
      }
    }
  }
}

// What a hit takes over of the draft's cache is as good as computed: perfect drafts stay perfect. The fake compares the
// whole of it with the tokens.
TEST(drafts_after_a_prefix_hit_are_as_good) {
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 6}}, .agreement = 100};
  auto prompts = random_prompts(13, 16, 40);
  for (size_t i = 1; i < prompts.size(); ++i) {
    // Many part after a whole number of blocks.
    const size_t shared = std::min(prompts[i].size(), prompts[i - 1].size()) / 4 * 4;
    std::copy_n(prompts[i - 1].begin(), shared, prompts[i].begin());
  }
  const auto expected = alone(prompts, sampling(0, 16));
  fake::config().agreement = 100;
  Host host(drafting(3));
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(host.wait(host.submit(prompts[i], sampling(0, 16))).tokens == expected[i]);
    }
  }
  const trn_host_stats stats = host.stats();
  CHECK(stats.prefix_hit_tokens > 400);
  CHECK_EQ(stats.accepted_tokens, stats.drafted_tokens);
}

// A request that ends with its prompt's step leaves blocks that the draft has not followed.
TEST(what_the_draft_has_not_followed_is_not_found) {
  fake::config() = {.agreement = 100};
  Host host(drafting(3));
  std::vector<int32_t> prompt(30, 5);
  std::iota(prompt.begin(), prompt.end(), 1);
  CHECK_EQ(host.wait(host.submit(prompt, sampling(0, 1))).tokens.size(), 1u);
  CHECK_EQ(host.wait(host.submit(prompt, sampling(0, 8))).tokens.size(), 8u);
  CHECK_EQ(host.stats().prefix_hit_tokens, 0u);
  CHECK_EQ(host.wait(host.submit(prompt, sampling(0, 8))).tokens.size(), 8u);
  CHECK_EQ(host.stats().prefix_hit_tokens, 28u);
  CHECK_EQ(host.stats().accepted_tokens, host.stats().drafted_tokens);
}

TEST(drafts_have_logprobs_of_their_own_rows) {
  fake::config() = {};
  auto params = sampling(0.8, 12);
  params.num_logprobs = 2;
  const auto run = [&](const trn_host_options& options) {
    Host host(options);
    std::vector<std::vector<float>> events;
    const uint64_t id = host.submit({1, 2, 3}, params);
    for (trn_host_event event = host.next(id); event.type == TRN_EVENT_TOKEN; event = host.next(id)) {
      CHECK_EQ(event.num_top, 2);
      events.push_back({static_cast<float>(event.token_id), event.logprob, static_cast<float>(event.top_ids[0]),
                        event.top_logprobs[0], event.top_logprobs[1]});
    }
    return events;
  };
  const auto expected = run(drafting(0));
  CHECK_EQ(expected.size(), 12u);
  fake::config().agreement = 100;
  CHECK(run(drafting(3)) == expected);
}

TEST(failed_steps_with_drafts_are_computed_again) {
  const auto prompts = random_prompts(15, 6, 20);
  for (const auto& groups : kModels) {
    fake::config() = {.groups = groups};
    const auto expected = alone(prompts, sampling());
    fake::config().agreement = 70;
    for (uint64_t at = 1; at <= 5; ++at) {
      fake::config().fault = [at](uint64_t step, const trn_forward_batch&) { return step == at ? TRN_FAILED : TRN_OK; };
      trn_host_stats stats{};
      CHECK(together(drafting(3), prompts, sampling(), &stats) == expected);
      CHECK_EQ(stats.failed_steps, 1u);
      CHECK(stats.accepted_tokens > 0);
    }
  }
}

TEST(requests_go_on_when_a_draft_step_fails) {
  const auto prompts = random_prompts(17, 6, 50);
  for (const trn_status status : {TRN_FAILED, TRN_REFUSED}) {
    fake::config() = {};
    const auto expected = alone(prompts, sampling());
    fake::config().agreement = 100;
    for (uint64_t at = 1; at <= 10; ++at) {
      fake::config().draft_fault = [=](uint64_t step, const trn_forward_batch&) { return step == at ? status : TRN_OK; };
      Host host(drafting(3));
      std::vector<uint64_t> ids;
      for (const auto& prompt : prompts) ids.push_back(host.submit(prompt, sampling()));
      auto ended = host.wait_all(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) CHECK(ended[ids[i]].tokens == expected[i]);
      // Nothing that the failed step left is found by who comes later; the fake looks into the draft's cache.
      for (size_t i = 0; i < ids.size(); ++i) CHECK(host.wait(host.submit(prompts[i], sampling())).tokens == expected[i]);
      const trn_host_stats stats = host.stats();
      CHECK_EQ(stats.failed_draft_steps, 1u);
      CHECK_EQ(stats.failed_steps + stats.refused_steps, 0u);
      CHECK(stats.accepted_tokens > 0);
    }
    // A draft that never works costs nothing but its steps.
    fake::config().draft_fault = [=](uint64_t, const trn_forward_batch&) { return status; };
    trn_host_stats stats{};
    CHECK(together(drafting(3), prompts, sampling(), &stats) == expected);
    CHECK_EQ(stats.drafted_tokens, 0u);
    CHECK_EQ(stats.failed_draft_steps, stats.draft_steps);
  }
}

TEST(fatal_draft_step_kills_the_host) {
  fake::config() = {.agreement = 100};
  fake::config().draft_fault = [](uint64_t step, const trn_forward_batch&) { return step == 5 ? TRN_FATAL : TRN_OK; };
  Host host(drafting(3));
  const Ended ended = host.wait(host.submit({1}, sampling()));
  CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_ERROR);
  CHECK(std::string(ended.finish.error).find("as the test asked at step 5") != std::string::npos);
}

TEST(draft_options_that_cannot_work_are_refused_by_name) {
  fake::config() = {.agreement = 100};
  const auto refused = [&](auto change, const char* words) {
    trn_host_options options = drafting(3);
    change(options);
    const std::string line = creation_error(options);
    if (line.find(words) == std::string::npos) CHECK_EQ(line, words);
  };
  using Options = trn_host_options;
  refused([](Options& o) { o.num_drafts = -1; }, "num_drafts is -1, expected 0 ... 8");
  refused([](Options& o) { o.num_drafts = 9; }, "num_drafts is 9, expected 0 ... 8");
  refused([](Options& o) { o.overlap = 1; }, "num_drafts is 3 with overlap");
  refused([](Options& o) { o.num_drafts = 0, o.executor.draft_model = "here"; }, "draft_model is 'here', and num_drafts is 0");
  refused([](Options& o) { o.executor.limits.max_num_tokens = 3; }, "has 4 rows, max_num_tokens is 3");
  fake::config().agreement = -1;
  refused([](Options&) {}, "num_drafts is 3, but there is no draft to make them: role draft: the fake has none");
}

namespace {

void fuzz(uint64_t seed) {
  std::mt19937_64 random(seed);
  fake::config() = {.groups = kModels[seed % kModels.size()], .required_fields = TRN_FIELD_KV_CSR};
  auto prompts = random_prompts(seed, 20, 40);
  for (size_t i = 1; i < prompts.size(); i += 2) {
    std::copy_n(prompts[i - 1].begin(), std::min(prompts[i - 1].size(), prompts[i].size()), prompts[i].begin());
  }
  const auto params = sampling(seed % 3 == 0 ? 0.8 : 0);
  const auto expected = alone(prompts, params);
  fake::config().agreement = static_cast<int32_t>(random() % 101);
  fake::config().fault = [](uint64_t step, const trn_forward_batch&) { return step % 97 == 96 ? TRN_FAILED : TRN_OK; };
  fake::config().draft_fault = [](uint64_t step, const trn_forward_batch&) {
    return step % 61 == 60 ? TRN_FAILED : step % 89 == 88 ? TRN_REFUSED : TRN_OK;
  };
  const auto k = 1 + static_cast<int32_t>(random() % 6);
  trn_host_options options = drafting(k);
  options.queue_size = 1 + static_cast<int32_t>(random() % 6);
  options.executor.limits.max_num_tokens = 9 + static_cast<int32_t>(random() % 30);
  options.executor.limits.max_logits_rows = 1 + static_cast<int32_t>(random() % 9);
  options.kv_blocks = 16 + static_cast<int32_t>(random() % 20);
  options.prefix_caching = random() % 4 != 0;
  Host host(options);
  std::vector<std::thread> clients;
  std::atomic<int> wrong = 0;
  for (uint64_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937_64 choices(seed * 100 + c);
      for (int i = 0; i < 30; ++i) {
        const size_t index = choices() % prompts.size();
        const uint64_t id = host.submit(prompts[index], params);
        const bool cancels = choices() % 4 == 0;
        std::vector<int32_t> tokens;
        trn_host_event event = host.next(id);
        for (; event.type == TRN_EVENT_TOKEN; event = host.next(id)) {
          tokens.push_back(event.token_id);
          if (cancels && choices() % 5 == 0) trn_host_cancel(host.get(), id);
          if (choices() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(choices() % 300));
        }
        const bool whole = event.finish_reason == TRN_FINISH_LENGTH && tokens == expected[index];
        const bool part = event.finish_reason == TRN_FINISH_CANCELLED && cancels && tokens.size() <= expected[index].size() &&
                          std::equal(tokens.begin(), tokens.end(), expected[index].begin());
        wrong += !whole && !part;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK_EQ(wrong.load(), 0);
  const trn_host_stats stats = host.stats();
  CHECK_EQ(stats.blocks_used, 0);
  CHECK_EQ(stats.refused_steps, 0u);
  check_sums(stats);
}

}  // namespace

TEST(fuzz_of_drafts) {
  const char* rounds = std::getenv("TRUNNION_FUZZ_ROUNDS");
  const uint64_t count = rounds == nullptr ? 8 : std::strtoull(rounds, nullptr, 10);
  for (uint64_t seed = 0; seed < count; ++seed) fuzz(seed);
}
