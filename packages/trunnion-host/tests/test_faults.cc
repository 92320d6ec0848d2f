// REFUSED, FAILED, FATAL, hangs, NaN rows, bad options, and the end of a host.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "host_fixture.h"

namespace {

auto at_steps(std::vector<uint64_t> steps, trn_status status) {
  return [=](uint64_t step, const trn_forward_batch&) {
    return std::find(steps.begin(), steps.end(), step) != steps.end() ? status : TRN_OK;
  };
}

std::string creation_error(const trn_host_options& options) {
  try {
    const Host host(options);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void check_error(const Ended& ended, const char* words) {
  CHECK_EQ(ended.finish.finish_reason, TRN_FINISH_ERROR);
  if (std::string(ended.finish.error).find(words) == std::string::npos) {
    CHECK_EQ(std::string(ended.finish.error), std::string(words));
  }
}

}  // namespace

TEST(failed_step_is_computed_again) {
  const auto prompts = random_prompts(3, 10, 30);
  const auto params = sampling(0.8);
  for (const auto& groups : {std::vector<fake::Group>{{}, {TRN_CACHE_WINDOW, 6}},
                             std::vector<fake::Group>{{}, {TRN_CACHE_RECURRENT}}}) {
    fake::config() = {.groups = groups};
    const auto expected = alone(prompts, params);
    for (uint64_t step = 1; step <= 12; ++step) {
      fake::config().fault = at_steps({step}, TRN_FAILED);
      trn_host_stats stats{};
      CHECK(together(default_options(), prompts, params, &stats) == expected);
      CHECK_EQ(stats.failed_steps, 1u);
    }
  }
}

TEST(failed_step_unpublishes_its_prefix_blocks) {
  fake::config() = {};
  fake::config().fault = at_steps({3}, TRN_FAILED);
  Host host(default_options());
  const std::vector<int32_t> prompt(16, 1);
  const Ended ended = host.wait(host.submit(prompt, sampling(0, 4)));
  CHECK_EQ(ended.tokens.size(), 4u);
  // Steps 1 and 2 published four blocks; the failed third must not leave them to be found: 18 tokens computed anew.
  CHECK_EQ(host.stats().prefix_hit_tokens, 0u);
  CHECK_EQ(host.stats().prefill_tokens, 16u + 18u);
}

TEST(request_that_fails_twice_ends) {
  fake::config() = {};
  fake::config().fault = at_steps({2, 3}, TRN_FAILED);
  Host host(default_options());
  const Ended ended = host.wait(host.submit({1, 2, 3}, sampling()));
  check_error(ended, "failed twice");
  CHECK_EQ(ended.tokens.size(), 1u);
  CHECK_EQ(host.stats().blocks_used, 0);
  CHECK_EQ(host.wait(host.submit({1, 2, 3}, sampling())).tokens.size(), 12u);
}

TEST(only_the_request_at_fault_fails) {
  const auto params = sampling(0.8);
  auto prompts = random_prompts(4, 7, 20);
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 6}}};
  const auto expected = alone(prompts, params);
  // No step with this prompt in it ever succeeds.
  fake::config().fault = [](uint64_t, const trn_forward_batch& batch) {
    return batch.max_seq_len >= 40 ? TRN_FAILED : TRN_OK;
  };
  for (const int32_t kv_blocks : {0, 20}) {
    trn_host_options options = default_options();
    options.kv_blocks = kv_blocks;
    // All prompts fit one step, so that they would fail together again.
    options.executor.limits.max_num_tokens = 200;
    Host host(options);
    std::vector<uint64_t> ids;
    for (const auto& prompt : prompts) ids.push_back(host.submit(prompt, params));
    const uint64_t faulty = host.submit(std::vector<int32_t>(45, 2), params);
    auto ended = host.wait_all(ids.size() + 1);
    check_error(ended[faulty], "failed twice");
    for (size_t i = 0; i < ids.size(); ++i) {
      CHECK_EQ(ended[ids[i]].finish.finish_reason, TRN_FINISH_LENGTH);
      CHECK(ended[ids[i]].tokens == expected[i]);
    }
    CHECK_EQ(host.stats().failed_steps, 2u);
    CHECK_EQ(host.stats().blocks_used, 0);
  }
}

TEST(failures_apart_do_not_add_up) {
  fake::config() = {};
  fake::config().fault = at_steps({2, 5, 8}, TRN_FAILED);
  Host host(default_options());
  CHECK_EQ(host.wait(host.submit({1, 2, 3}, sampling())).tokens.size(), 12u);
  CHECK_EQ(host.stats().failed_steps, 3u);
}

TEST(refused_batch_ends_its_requests_only) {
  fake::config() = {};
  fake::config().fault = at_steps({2}, TRN_REFUSED);
  trn_host_options options = default_options();
  options.executor.limits.max_num_seqs = 2;
  options.executor.limits.max_logits_rows = 2;
  Host host(options);
  // The first step is alone; whatever the second holds ends, the rest goes on.
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 6; ++i) ids.push_back(host.submit({i}, sampling()));
  auto ended = host.wait_all(6);
  int errors = 0;
  for (auto& [id, end] : ended) {
    if (end.finish.finish_reason == TRN_FINISH_LENGTH) continue;
    check_error(end, "refused input_ids");
    ++errors;
  }
  CHECK(errors >= 1 && errors <= 2);
  const trn_host_stats stats = host.stats();
  CHECK_EQ(stats.refused_steps, 1u);
  CHECK_EQ(stats.steps, stats.execute_calls);
  CHECK_EQ(stats.blocks_used, 0);
}

TEST(nan_row_ends_one_request) {
  fake::config() = {.vocab_size = 50, .nan_token = 49};
  const auto params = sampling(0, 5);
  Host host(default_options());
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 8; ++i) ids.push_back(host.submit({i, i == 3 ? 49 : 7}, params));
  auto ended = host.wait_all(8);
  for (int32_t i = 0; i < 8; ++i) {
    if (i == 3) check_error(ended[ids[i]], "NaN");
    // Others may sample 49 themselves.
    else CHECK(ended[ids[i]].tokens.size() == 5 || ended[ids[i]].tokens.back() == 49);
  }
  CHECK_EQ(host.stats().blocks_used, 0);
}

TEST(fatal_kills_the_host) {
  fake::config() = {};
  // Not before all requests are in.
  const auto submitted = std::make_shared<std::promise<void>>();
  const auto until = submitted->get_future().share();
  fake::config().fault = [until](uint64_t step, const trn_forward_batch&) {
    if (step < 4) return TRN_OK;
    until.wait();
    return TRN_FATAL;
  };
  Host host(default_options());
  for (int32_t i = 0; i < 12; ++i) host.submit({i}, sampling());
  submitted->set_value();
  for (auto& [id, end] : host.wait_all(12)) check_error(end, "as the test asked at step 4");
  trn_host_event event{};
  event.struct_size = sizeof event;
  CHECK_EQ(trn_host_next_event(host.get(), 0, -1, &event), TRN_HOST_DEAD);
  CHECK_EQ(trn_host_reset_prefix_cache(host.get()), TRN_HOST_DEAD);
  trn_host_request request{};
  request.struct_size = sizeof request;
  request.sampling = sampling();
  const int32_t token = 1;
  request.token_ids = &token;
  request.num_tokens = 1;
  uint64_t id = 0;
  char error[200] = "";
  CHECK_EQ(trn_host_submit(host.get(), &request, &id, error, sizeof error), TRN_HOST_DEAD);
  CHECK_EQ(std::string(error), std::string("as the test asked at step 4"));
}

TEST(watchdog_kills_a_host_that_hangs) {
  fake::config() = {};
  // Outlives the config, which is copied.
  const auto released = std::make_shared<std::promise<void>>();
  const auto until = released->get_future().share();
  fake::config().fault = [until](uint64_t step, const trn_forward_batch&) {
    if (step == 3) until.wait();
    return TRN_OK;
  };
  trn_host_options options = default_options();
  options.watchdog_s = 0.1;
  Host host(options);
  const Ended ended = host.wait(host.submit({1}, sampling()));
  check_error(ended, "execute has not returned within watchdog_s = 0.1 s");
  CHECK_EQ(ended.tokens.size(), 2u);
  trn_host_event event{};
  event.struct_size = sizeof event;
  CHECK_EQ(trn_host_next_event(host.get(), 0, -1, &event), TRN_HOST_DEAD);
  released->set_value();
}

TEST(watchdog_leaves_quick_steps_alone) {
  fake::config() = {};
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return TRN_OK;
  };
  trn_host_options options = default_options();
  options.watchdog_s = 0.2;
  Host host(options);
  CHECK_EQ(host.wait(host.submit({1}, sampling())).tokens.size(), 12u);
}

// In a child process, which ends with the code of a fatal error.
static void check_exit_code(const trn_host_options& options) {
  const pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    Host host(options);
    host.wait(host.submit({1}, sampling()));
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 70);
}

TEST(fatal_exits_the_process_if_asked) {
  fake::config() = {};
  fake::config().fault = at_steps({2}, TRN_FATAL);
  trn_host_options options = default_options();
  options.exit_on_fatal = 1;
  check_exit_code(options);
}

TEST(watchdog_exits_the_process_if_asked) {
  fake::config() = {};
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::hours(1));
    return TRN_OK;
  };
  trn_host_options options = default_options();
  options.exit_on_fatal = 1;
  options.watchdog_s = 0.05;
  check_exit_code(options);
}

TEST(options_that_cannot_work_are_refused_by_name) {
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 9}}};
  const auto refused = [&](auto change, const char* words) {
    trn_host_options options = default_options();
    change(options);
    const std::string line = creation_error(options);
    if (line.find(words) == std::string::npos) CHECK_EQ(line, words);
  };
  using Options = trn_host_options;
  static const int32_t three[] = {9, 9, 9}, small[] = {9, 1};
  refused([](Options& o) { o.queue_size = 0; }, "queue_size is 0");
  refused([](Options& o) { o.watchdog_s = -1; }, "watchdog_s");
  refused([](Options& o) { o.kv_blocks = 1; }, "kv_blocks is 1");
  refused([](Options& o) { o.kv_bytes = 63; }, "kv_bytes is 63, the smallest cache takes 64");
  refused([](Options& o) { o.num_blocks = three, o.num_groups = 3; }, "num_blocks has 3 entries");
  refused([](Options& o) { o.num_blocks = small, o.num_groups = 2; }, "num_blocks[1] is 1");
  refused([](Options& o) { o.executor.limits.max_num_seqs = 0; }, "limits");
  refused([](Options& o) { o.struct_size = 4; }, "struct_size");
  fake::config().groups[1].max_blocks_per_seq = 2;
  refused([](Options&) {}, "groups[1].max_blocks_per_seq is 2, one request may need 3");
  fake::config() = {};
  fake::config().create_error = "no such model";
  refused([](Options&) {}, "no such model");
}

TEST(byte_budget_becomes_blocks) {
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 9}, {TRN_CACHE_RECURRENT}}};
  trn_host_options options = default_options();
  // Nine states of 8 bytes, then pairs of blocks of 16 bytes.
  options.kv_bytes = 9 * 8 + 21 * 32 + 31;
  Host host(options);
  CHECK_EQ(host.stats().blocks_total, 20 + 20 + 8);
  CHECK_EQ(host.stats().kv_bytes, 9 * 8 + 21 * 32);
}

TEST(shutdown_ends_everything_and_wakes_readers) {
  fake::config() = {};
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return TRN_OK;
  };
  Host host(default_options());
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.push_back(host.submit({i}, sampling(0, 60)));
  std::atomic<int> cancelled = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      trn_host_event event{};
      event.struct_size = sizeof event;
      while (trn_host_next_event(host.get(), 0, -1, &event) == TRN_HOST_OK) {
        cancelled += event.type == TRN_EVENT_FINISHED && event.finish_reason == TRN_FINISH_CANCELLED;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  trn_host_shutdown(host.get());
  trn_host_shutdown(host.get());
  for (std::thread& reader : readers) reader.join();
  CHECK_EQ(cancelled.load(), 20);
  CHECK_EQ(host.stats().blocks_used, 0);
  CHECK_EQ(trn_host_reset_prefix_cache(host.get()), TRN_HOST_CLOSED);
}
