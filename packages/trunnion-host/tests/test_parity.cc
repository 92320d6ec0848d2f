// However requests are batched, chunked, preempted or cached, each gets what it gets alone.
#include "host_fixture.h"

namespace {

struct Model {
  const char* name;
  std::vector<fake::Group> groups;
  uint32_t required_fields;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all{
      {"full", {{}}, 0},
      {"window", {{}, {TRN_CACHE_WINDOW, 7}}, TRN_FIELD_KV_CSR},
      {"window only", {{TRN_CACHE_WINDOW, 5}}, 0},
      {"window of one token", {{}, {TRN_CACHE_WINDOW, 1}}, 0},
      {"latent and two windows", {{TRN_CACHE_MLA}, {TRN_CACHE_WINDOW, 6}, {TRN_CACHE_WINDOW, 17}}, TRN_FIELD_KV_CSR},
      {"recurrent", {{}, {TRN_CACHE_RECURRENT}}, TRN_FIELD_KV_CSR},
      {"recurrent only", {{TRN_CACHE_RECURRENT}}, 0},
  };
  return all;
}

// Runs `check` for every kind of model, with prompts and their outputs alone.
template <typename Check>
void for_each_model(const trn_host_sampling& params, Check check) {
  const auto prompts = random_prompts(11, 24, 45);
  for (const Model& model : models()) {
    fake::config() = {.groups = model.groups, .required_fields = model.required_fields};
    try {
      check(prompts, alone(prompts, params));
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(model.name) + ": " + error.what());
    }
  }
}

}  // namespace

TEST(parity_of_many_requests) {
  for (const double temperature : {0.0, 1.0}) {
    const auto params = sampling(temperature);
    for_each_model(params, [&](const auto& prompts, const auto& expected) {
      for (const int32_t caching : {0, 1}) {
        trn_host_options options = default_options();
        options.prefix_caching = caching;
        CHECK(together(options, prompts, params) == expected);
        CHECK_EQ(fake::most_requests(), 8);
      }
    });
  }
}

TEST(parity_of_every_small_budget) {
  const auto params = sampling(0.7);
  for_each_model(params, [&](const auto& prompts, const auto& expected) {
    for (int32_t budget = 1; budget <= 12; ++budget) {
      trn_host_options options = default_options();
      options.executor.limits.max_num_tokens = budget;
      options.executor.limits.max_num_seqs = std::min(budget, 5);
      options.executor.limits.max_logits_rows = 1 + budget / 3;
      CHECK(together(options, prompts, params) == expected);
    }
  });
}

TEST(parity_of_pools_that_force_preemption) {
  const auto params = sampling(0.7);
  for_each_model(params, [&](const auto& prompts, const auto& expected) {
    // 45 + 12 - 1 cached tokens need 14 blocks.
    for (const int32_t kv_blocks : {15, 16, 20, 30}) {
      for (const int32_t caching : {0, 1}) {
        trn_host_options options = default_options();
        options.kv_blocks = kv_blocks;
        options.prefix_caching = caching;
        trn_host_stats stats{};
        CHECK(together(options, prompts, params, &stats) == expected);
        const bool has_full = fake::config().groups[0].kind != TRN_CACHE_WINDOW && fake::config().groups.size() > 1;
        if (kv_blocks == 15 && has_full) CHECK(stats.preemptions > 0);
      }
    }
  });
}

TEST(parity_when_states_run_out) {
  const auto params = sampling(0.7);
  const auto prompts = random_prompts(12, 12, 30);
  fake::config() = {.groups = {{}, {TRN_CACHE_RECURRENT}}};
  const auto expected = alone(prompts, params);
  trn_host_options options = default_options();
  const int32_t num_blocks[] = {40, 3};
  options.num_blocks = num_blocks;
  options.num_groups = 2;
  trn_host_stats stats{};
  CHECK(together(options, prompts, params, &stats) == expected);
  CHECK_EQ(fake::most_requests(), 2);
  CHECK_EQ(stats.prefix_caching, 0);
}

TEST(parity_with_the_narrowest_table_and_pool_of_a_window) {
  const auto params = sampling(0.7);
  const auto prompts = random_prompts(13, 12, 45);
  // 7 - 1 + 4 tokens may lie in 4 blocks; chunks must shrink to what the table holds.
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 7, 4}}};
  const auto expected = alone(prompts, params);
  trn_host_options options = default_options();
  const int32_t num_blocks[] = {100, 5};
  options.num_blocks = num_blocks;
  options.num_groups = 2;
  CHECK(together(options, prompts, params) == expected);
}

TEST(prefix_hits_at_every_length) {
  const auto params = sampling(0, 4);
  for (const auto& groups : {std::vector<fake::Group>{{}}, std::vector<fake::Group>{{}, {TRN_CACHE_WINDOW, 6}}}) {
    fake::config() = {.groups = groups};
    const auto whole = random_prompts(14, 1, 1)[0];
    std::vector<int32_t> longest(40, whole[0]);
    for (int32_t i = 0; i < 40; ++i) longest[i] = i % 17;
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t length = 1; length <= 40; ++length) prompts.emplace_back(longest.begin(), longest.begin() + length);
    const auto expected = alone(prompts, params);
    Host host(default_options());
    host.wait(host.submit(longest, params));
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Ended ended = host.wait(host.submit(prompts[i], params));
      CHECK(ended.tokens == expected[i]);
      // Whole blocks, and never the last token: a full hit computes its last block again.
      CHECK_EQ(ended.finish.num_cached_tokens, static_cast<int32_t>(i) / 4 * 4);
    }
    CHECK(host.stats().prefix_hit_tokens > 0);
    CHECK_EQ(trn_host_reset_prefix_cache(host.get()), TRN_HOST_OK);
    CHECK_EQ(host.stats().blocks_cached, 0);
    CHECK_EQ(host.wait(host.submit(longest, params)).finish.num_cached_tokens, 0);
  }
}

TEST(prefix_of_an_output_is_found) {
  fake::config() = {};
  Host host(default_options());
  std::vector<int32_t> prompt{1, 2, 3};
  const Ended first = host.wait(host.submit(prompt, sampling(0, 12)));
  prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  // 3 + 12 tokens, of which the last was never computed: three whole blocks.
  CHECK_EQ(host.wait(host.submit(prompt, sampling(0, 2))).finish.num_cached_tokens, 12);
}

TEST(prefix_cache_shared_while_it_is_used) {
  const auto params = sampling(0.9, 10);
  fake::config() = {.groups = {{}, {TRN_CACHE_WINDOW, 9}}};
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 20; ++i) {
    std::vector<int32_t> prompt(33, 4);
    prompt.push_back(i);
    prompts.push_back(prompt);
  }
  const auto expected = alone(prompts, params);
  for (const int32_t kv_blocks : {0, 16, 24}) {
    trn_host_options options = default_options();
    options.kv_blocks = kv_blocks;
    options.executor.limits.max_num_tokens = 16;
    trn_host_stats stats{};
    CHECK(together(options, prompts, params, &stats) == expected);
    CHECK(stats.prefix_hit_tokens > 0);
  }
}

TEST(seeds_decide_and_batch_mates_do_not) {
  fake::config() = {};
  const std::vector<int32_t> prompt{5, 6, 7};
  Host host(default_options());
  const auto one = host.wait(host.submit(prompt, sampling(1, 12, 1))).tokens;
  const auto two = host.wait(host.submit(prompt, sampling(1, 12, 2))).tokens;
  CHECK(one != two);
  std::vector<uint64_t> ids;
  for (uint64_t seed = 1; seed <= 8; ++seed) ids.push_back(host.submit(prompt, sampling(1, 12, seed)));
  auto ended = host.wait_all(8);
  CHECK(ended[ids[0]].tokens == one);
  CHECK(ended[ids[1]].tokens == two);
}

TEST(unseeded_requests_report_their_seed) {
  fake::config() = {};
  Host host(default_options());
  auto params = sampling(1);
  params.has_seed = 0;
  const Ended first = host.wait(host.submit({1}, params));
  const Ended second = host.wait(host.submit({1}, params));
  CHECK(first.finish.seed != second.finish.seed);
  CHECK(host.wait(host.submit({1}, sampling(1, 12, first.finish.seed))).tokens == first.tokens);
}
