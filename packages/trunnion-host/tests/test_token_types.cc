// Types of tokens: the same outputs however requests are cut, preempted or found, and nothing where nobody brings any.
#include <cstddef>
#include <stdexcept>

#include "host_fixture.h"

namespace {

struct Prompt {
  std::vector<int32_t> tokens, types;  // types may be empty: none are given
};

// Pairs of texts, every third prompt without types. They begin alike in tokens, and not in types.
std::vector<Prompt> pairs(int32_t count) {
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < count; ++i) {
    Prompt prompt;
    for (int32_t t = 0; t < 14 + i % 5; ++t) prompt.tokens.push_back(1 + t % 11);
    prompt.tokens.push_back(20 + i);
    for (int32_t t = 0; i % 3 != 0 && t < int32_t(prompt.tokens.size()); ++t) prompt.types.push_back(t < 3 + i % 6 ? 0 : 1);
    prompts.push_back(prompt);
  }
  return prompts;
}

trn_host_request request_of(const Prompt& prompt) {
  trn_host_request request{};
  request.struct_size = sizeof request;
  request.sampling = sampling();
  request.token_ids = prompt.tokens.data();
  request.num_tokens = static_cast<int32_t>(prompt.tokens.size());
  request.token_type_ids = prompt.types.empty() ? nullptr : prompt.types.data();
  return request;
}

uint64_t submit(const Host& host, const trn_host_request& request) {
  uint64_t id = 0;
  char error[512] = "";
  if (trn_host_submit(host.get(), &request, &id, error, sizeof error) != TRN_HOST_OK) throw std::runtime_error(error);
  return id;
}

std::string refusal(const Host& host, const trn_host_request& request) {
  uint64_t id = 0;
  char error[512] = "";
  CHECK_EQ(trn_host_submit(host.get(), &request, &id, error, sizeof error), TRN_HOST_INVALID);
  return error;
}

std::vector<std::vector<int32_t>> serve(Host& host, const std::vector<Prompt>& prompts) {
  std::vector<uint64_t> ids;
  for (const Prompt& prompt : prompts) ids.push_back(submit(host, request_of(prompt)));
  auto ended = host.wait_all(ids.size());
  std::vector<std::vector<int32_t>> outputs;
  for (const uint64_t id : ids) outputs.push_back(ended.at(id).tokens);
  return outputs;
}

// Each prompt in a host of its own.
std::vector<std::vector<int32_t>> each_alone(const std::vector<Prompt>& prompts) {
  trn_host_options options = default_options();
  options.prefix_caching = 0;
  options.executor.limits.max_num_tokens = 64;
  std::vector<std::vector<int32_t>> outputs;
  for (const Prompt& prompt : prompts) {
    Host host(options);
    outputs.push_back(serve(host, {prompt})[0]);
  }
  return outputs;
}

fake::Config typed(std::vector<fake::Group> groups = {{}}) {
  fake::Config config;
  config.groups = std::move(groups);
  config.num_token_types = 2;
  return config;
}

}  // namespace

TEST(token_types_follow_their_tokens_through_chunks_preemption_and_prefix_hits) {
  const auto prompts = pairs(9);
  for (const auto& groups : std::vector<std::vector<fake::Group>>{{{}}, {{}, {TRN_CACHE_WINDOW, 6}}, {{}, {TRN_CACHE_RECURRENT}}}) {
    fake::config() = typed(groups);
    const auto expected = each_alone(prompts);
    auto untyped = prompts;
    for (Prompt& prompt : untyped) prompt.types.clear();
    CHECK(each_alone(untyped) != expected);
    for (const int32_t max_num_tokens : {8, 11, 32}) {
      for (const int32_t kv_blocks : {0, 20}) {
        trn_host_options options = default_options();
        options.executor.limits.max_num_tokens = max_num_tokens;
        options.kv_blocks = groups.back().kind == TRN_CACHE_RECURRENT ? 0 : kv_blocks;
        Host host(options);
        CHECK(serve(host, prompts) == expected);
        CHECK(serve(host, prompts) == expected);
        const trn_host_stats stats = host.stats();
        CHECK(stats.token_type_steps > 0);
        if (options.kv_blocks == 20 && groups.size() == 1) CHECK(stats.preemptions > 0);
        if (kv_blocks == 0 && groups.size() == 1) CHECK(stats.prefix_hit_tokens > 0);
      }
    }
  }
  fake::config() = {};
}

TEST(token_types_survive_failed_steps) {
  const auto prompts = pairs(6);
  fake::config() = typed();
  const auto expected = each_alone(prompts);
  fake::config().fault = [](uint64_t step, const trn_forward_batch&) { return step % 7 == 5 ? TRN_FAILED : TRN_OK; };
  Host host(default_options());
  CHECK(serve(host, prompts) == expected);
  CHECK(host.stats().failed_steps > 0);
  fake::config() = {};
}

TEST(token_types_of_equal_texts_are_no_prefix_of_each_other) {
  fake::config() = typed();
  const std::vector<int32_t> tokens(16, 5);
  std::vector<int32_t> half(8, 0);
  half.resize(16, 1);
  const std::vector<Prompt> prompts{{tokens, {}}, {tokens, half}, {tokens, std::vector<int32_t>(16, 1)}};
  const auto expected = each_alone(prompts);
  CHECK(expected[0] != expected[1] && expected[1] != expected[2]);
  Host host(default_options());
  const auto cached = [&](const Prompt& prompt) { return host.wait(submit(host, request_of(prompt))).finish.num_cached_tokens; };
  CHECK_EQ(cached(prompts[0]), 0);
  // What lies before the first token of type 1 is the same.
  CHECK_EQ(cached(prompts[1]), 8);
  CHECK_EQ(cached(prompts[2]), 0);
  CHECK_EQ(cached(prompts[1]), 12);
  fake::config() = {};
}

TEST(token_types_cost_nothing_where_nobody_brings_any) {
  fake::config() = typed();
  const std::vector<Prompt> plain{{{1, 2, 3}, {}}, {{4, 5, 6, 7}, {0, 0, 0, 0}}};
  Host host(default_options());
  const auto outputs = serve(host, plain);
  CHECK_EQ(host.stats().token_type_steps, 0u);
  fake::config() = {};
  Host untyped(default_options());
  CHECK(serve(untyped, {{{1, 2, 3}, {}}, {{4, 5, 6, 7}, {}}}) == outputs);
  CHECK_EQ(untyped.stats().token_type_steps, 0u);
}

TEST(token_types_are_refused_by_name) {
  const Prompt prompt{{1, 2, 3}, {0, 1, 2}};
  {
    Host host(default_options());
    CHECK_EQ(refusal(host, request_of(prompt)), "token_type_ids are given, and this model does not take token types");
    // An older caller's struct ends before them.
    trn_host_request older = request_of(prompt);
    older.struct_size = offsetof(trn_host_request, token_type_ids);
    CHECK_EQ(host.wait(submit(host, older)).finish.finish_reason, TRN_FINISH_LENGTH);
    older.struct_size -= 8;
    CHECK_EQ(refusal(host, older), "request: struct_size is not that of this library's header");
  }
  fake::config() = typed();
  Host host(default_options());
  CHECK_EQ(refusal(host, request_of(prompt)),
           "token_type_ids[2] is 2, expected 0 ... 1: this model has 2 token types");
  CHECK_EQ(refusal(host, request_of({{1, 2}, {-1, 0}})),
           "token_type_ids[0] is -1, expected 0 ... 1: this model has 2 token types");
  fake::config() = {};
}
