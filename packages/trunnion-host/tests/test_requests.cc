// One request's life: where it ends, what is refused, cancellation, slow readers.
#include <thread>

#include "host_fixture.h"

TEST(request_ends_at_a_stop_id) {
  fake::config() = {};
  Host host(default_options());
  const auto free_run = host.wait(host.submit({1, 2}, sampling())).tokens;
  const int32_t stop = free_run[5];
  const auto first = std::find(free_run.begin(), free_run.end(), stop);
  const std::vector<int32_t> before(free_run.begin(), first);
  for (const bool eos : {false, true}) {
    const std::vector<int32_t> ids{49, stop, 48}, none;
    const Ended ended = host.wait(host.submit({1, 2}, sampling(), eos ? none : ids, eos ? ids : none));
    CHECK(ended.tokens == before);
    CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_STOP);
    CHECK_EQ(ended.finish.stop_id, stop);
    CHECK_EQ(ended.finish.num_output_tokens, std::ssize(before));
  }
  auto ignoring = sampling();
  ignoring.ignore_eos = 1;
  const Ended ended = host.wait(host.submit({1, 2}, ignoring, {}, {stop}));
  CHECK(ended.tokens == free_run);
  CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_LENGTH);
  CHECK_EQ(ended.finish.stop_id, -1);
}

TEST(request_min_tokens_bans_stop_ids) {
  fake::config() = {};
  Host host(default_options());
  std::vector<int32_t> most(49);
  for (int32_t id = 0; id < 49; ++id) most[id] = id;
  auto params = sampling(1);
  params.min_tokens = 4;
  const Ended ended = host.wait(host.submit({1}, params, most));
  CHECK(ended.tokens.size() >= 4);
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(ended.tokens[i], 49);
}

TEST(request_ends_at_max_model_len) {
  fake::config() = {};
  Host host(default_options());
  for (const int32_t max_tokens : {0, 1000}) {
    const Ended ended = host.wait(host.submit(std::vector<int32_t>(50, 3), sampling(0, max_tokens)));
    CHECK_EQ(ended.tokens.size(), 14u);
    CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_LENGTH);
  }
  CHECK_EQ(host.wait(host.submit(std::vector<int32_t>(63, 3), sampling(0, 5))).tokens.size(), 1u);
}

TEST(request_without_max_tokens_ends_where_the_pool_ends) {
  fake::config() = {};
  trn_host_options options = default_options();
  options.kv_blocks = 6;
  Host host(options);
  // 5 blocks hold 20 tokens; the 21st is never fed back.
  CHECK_EQ(host.wait(host.submit({1, 2, 3}, sampling(0, 0))).tokens.size(), 17u);
  CHECK_EQ(host.wait(host.submit({1, 2, 3}, sampling(0, 18))).tokens.size(), 18u);
}

TEST(requests_that_can_never_run_are_refused_by_name) {
  fake::config() = {};
  trn_host_options options = default_options();
  options.kv_blocks = 6;
  Host host(options);
  const auto refused = [&](const std::vector<int32_t>& prompt, const trn_host_sampling& params, const char* words) {
    const std::string line = host.refusal(prompt, params);
    if (line.find(words) == std::string::npos) CHECK_EQ(line, words);
  };
  refused({}, sampling(), "no tokens");
  refused(std::vector<int32_t>(64, 1), sampling(), "max_model_len is 64");
  refused(std::vector<int32_t>(21, 1), sampling(0, 1), "need 6 blocks of cache group 0, its pool has 5");
  refused({1, 2, 3}, sampling(0, 19), "need 6 blocks");
  refused({1, 50}, sampling(), "token_ids[1] is 50, the vocabulary has ids 0 ... 49");
  refused({-1}, sampling(), "token_ids[0] is -1");
  refused({1}, sampling(-1), "temperature");
  refused({1}, sampling(std::numeric_limits<double>::quiet_NaN()), "temperature");
  refused({1}, sampling(0, -3), "max_tokens is -3");
  auto params = sampling();
  params.top_p = 0;
  refused({1}, params, "top_p");
  params = sampling();
  params.min_p = 1.5;
  refused({1}, params, "min_p");
  params = sampling();
  params.top_k = -1;
  refused({1}, params, "top_k");
  params = sampling();
  params.min_tokens = 13;
  refused({1}, params, "min_tokens is 13, expected at most max_tokens, 12");
  params = sampling();
  params.num_logprobs = 21;
  refused({1}, params, "num_logprobs");
  CHECK_EQ(host.stats().steps, 0u);
}

TEST(request_logprobs) {
  fake::config() = {};
  Host host(default_options());
  auto params = sampling(0, 3);
  params.num_logprobs = 2;
  const uint64_t id = host.submit({1}, params);
  for (int i = 0; i < 3; ++i) {
    const trn_host_event event = host.next(id);
    CHECK_EQ(event.num_top, 2);
    CHECK_EQ(event.top_ids[0], event.token_id);
    CHECK(event.logprob < 0 && event.logprob == event.top_logprobs[0]);
    CHECK(event.top_logprobs[1] <= event.top_logprobs[0]);
  }
}

TEST(cancel_frees_all_blocks) {
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 6}, {TRN_CACHE_RECURRENT}}};
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return TRN_OK;
  };
  Host host(default_options());
  std::vector<uint64_t> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(host.submit(std::vector<int32_t>(10, i), sampling(0, 50)));
  host.next(ids[0]);
  CHECK(host.stats().blocks_used > 0);
  for (const uint64_t id : ids) CHECK_EQ(trn_host_cancel(host.get(), id), TRN_HOST_OK);
  auto ended = host.wait_all(ids.size());
  CHECK_EQ(host.stats().blocks_used, 0);
  for (const uint64_t id : ids) {
    CHECK_EQ(ended[id].finish.finish_reason, TRN_FINISH_CANCELLED);
    CHECK(ended[id].tokens.size() < 50);
    CHECK_EQ(trn_host_cancel(host.get(), id), TRN_HOST_OK);
  }
  CHECK_EQ(trn_host_cancel(host.get(), 999), TRN_HOST_UNKNOWN_REQUEST);
  trn_host_event event{};
  event.struct_size = sizeof event;
  CHECK_EQ(trn_host_next_event(host.get(), ids[0], 0, &event), TRN_HOST_UNKNOWN_REQUEST);
}

TEST(slow_reader_stalls_only_itself) {
  fake::config() = {};
  for (const int32_t kv_blocks : {0, 17}) {
    trn_host_options options = default_options();
    options.queue_size = 3;
    options.kv_blocks = kv_blocks;
    options.prefix_caching = 0;
    const std::vector<int32_t> prompt(40, 2);
    Host host(options);
    const uint64_t slow = host.submit(prompt, sampling(0, 24));
    host.next(slow);
    // With 16 blocks the two cannot both stay: the one nobody reads has to go.
    const uint64_t quick = host.submit(std::vector<int32_t>(40, 3), sampling(0, 24));
    CHECK_EQ(host.wait(quick).tokens.size(), 24u);
    const trn_host_stats stats = host.stats();
    CHECK_EQ(stats.output_tokens, 24u + 4u);
    CHECK_EQ(stats.preemptions > 0, kv_blocks > 0);
    Ended rest = host.wait(slow);
    CHECK_EQ(rest.tokens.size(), 23u);
    CHECK_EQ(rest.finish.num_preemptions > 0, kv_blocks > 0);
    const auto expected = alone({prompt}, sampling(0, 24))[0];
    CHECK(rest.tokens == std::vector<int32_t>(expected.begin() + 1, expected.end()));
  }
}

TEST(slow_reader_waiting_in_line_lets_others_pass) {
  fake::config() = {};
  trn_host_options options = default_options();
  options.queue_size = 1;
  options.executor.limits.max_num_seqs = 1;
  options.executor.limits.max_logits_rows = 1;
  Host host(options);
  std::vector<uint64_t> slow;
  for (int i = 0; i < 5; ++i) slow.push_back(host.submit({1, 2, 3}, sampling(0, 6)));
  const uint64_t quick = host.submit({4}, sampling(0, 6));
  CHECK_EQ(host.wait(quick).tokens.size(), 6u);
  for (const uint64_t id : slow) CHECK_EQ(host.wait(id).tokens.size(), 6u);
}

TEST(events_of_any_request_come_in_turn) {
  fake::config() = {};
  Host host(default_options());
  const uint64_t one = host.submit({1}, sampling(0, 20)), two = host.submit({2}, sampling(0, 20));
  while (host.stats().output_tokens < 40) std::this_thread::yield();
  CHECK_EQ(host.next().request_id, one);
  CHECK_EQ(host.next().request_id, two);
  CHECK_EQ(host.next().request_id, one);
  CHECK_EQ(host.wait_all(2).size(), 2u);
}

TEST(next_event_times_out) {
  fake::config() = {};
  Host host(default_options());
  trn_host_event event{};
  event.struct_size = sizeof event;
  CHECK_EQ(trn_host_next_event(host.get(), 0, 20, &event), TRN_HOST_TIMEOUT);
  CHECK_EQ(trn_host_next_event(host.get(), 7, 20, &event), TRN_HOST_UNKNOWN_REQUEST);
}

TEST(stats_json_says_the_same) {
  fake::config() = {.groups = {{}, {TRN_CACHE_RECURRENT}}};
  Host host(default_options());
  host.wait(host.submit({1, 2, 3}, sampling()));
  std::string json(trn_host_stats_json(host.get(), nullptr, 0), ' ');
  trn_host_stats_json(host.get(), json.data(), json.size() + 1);
  const trn_host_stats stats = host.stats();
  for (const std::string& part :
       {"\"steps\": " + std::to_string(stats.steps), "\"execute_calls\": " + std::to_string(stats.execute_calls),
        "\"blocks_total\": " + std::to_string(stats.blocks_total), std::string("\"kind\": \"recurrent\""),
        std::string("\"prefix_caching\": false"), std::string("one state per request"),
        std::string("\"eager\": {\"odd \\\"reason\\\"\": 2, \"even\": 2}")}) {
    if (json.find(part) == std::string::npos) CHECK_EQ(json, part);
  }
  CHECK_EQ(stats.prefill_tokens, 3u);
  CHECK_EQ(stats.decode_tokens, 11u);
  CHECK_EQ(stats.output_tokens, 12u);
  CHECK_EQ(stats.steps, 12u);
  CHECK_EQ(stats.replays, 8u);
  CHECK_EQ(stats.eager_steps, 4u);
  CHECK_EQ(stats.padded_tokens, 7u);
}

TEST(a_step_gets_the_events_that_the_host_is_given) {
  // Every second call of the hook has events for its step.
  struct Hook {
    trn_kv_events events{sizeof(trn_kv_events), 0, nullptr, nullptr, 0};
    uint64_t calls = 0, tokens = 0;
  } hook;
  trn_host_options options = default_options();
  options.kv_events_context = &hook;
  options.kv_events_of = [](void* context, const trn_forward_batch* batch, const trn_input_buffers* inputs) {
    auto* mine = static_cast<Hook*>(context);
    mine->tokens += static_cast<uint64_t>(inputs->query_start_loc[batch->num_reqs]);
    return static_cast<const trn_kv_events*>(++mine->calls % 2 == 0 ? &mine->events : nullptr);
  };
  trn_host_stats stats{};
  {
    Host host(options);
    host.wait(host.submit({1, 2, 3}, sampling()));
    stats = host.stats();
    std::string json(trn_host_stats_json(host.get(), nullptr, 0), ' ');
    trn_host_stats_json(host.get(), json.data(), json.size() + 1);
    CHECK(json.find("\"kv_event_steps\": 6") != std::string::npos);
  }
  CHECK_EQ(hook.calls, stats.execute_calls);
  CHECK_EQ(hook.tokens, stats.prefill_tokens + stats.decode_tokens);
  CHECK_EQ(stats.kv_event_steps, 6u);
  options.executor.tp_size = 2;
  trn_host* refused = nullptr;
  char error[256] = "";
  CHECK_EQ(trn_host_create(&options, &refused, error, sizeof error), TRN_HOST_INVALID);
  CHECK(std::string(error).find("kv_events_of") != std::string::npos);
}
