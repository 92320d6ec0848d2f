// Embed requests: the same vectors however they are fed, one copy each, and no mixing with generation.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "host_fixture.h"

namespace {

constexpr int32_t kWidth = 19;

fake::Config pooling(std::vector<fake::Group> groups = {{}}) {
  fake::Config config;
  config.groups = std::move(groups);
  config.pooled_width = kWidth;
  return config;
}

trn_host_request embed_request(const std::vector<int32_t>& prompt) {
  trn_host_request request{};
  request.struct_size = sizeof request;
  request.sampling.struct_size = sizeof request.sampling;
  request.kind = TRN_REQUEST_EMBED;
  request.token_ids = prompt.data();
  request.num_tokens = static_cast<int32_t>(prompt.size());
  return request;
}

uint64_t submit(const Host& host, const std::vector<int32_t>& prompt) {
  const trn_host_request request = embed_request(prompt);
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

struct Embedded {
  trn_host_event event{};
  std::vector<float> vector = std::vector<float>(kWidth, -1);
};

Embedded wait(const Host& host, uint64_t id) {
  Embedded embedded;
  embedded.event.struct_size = sizeof embedded.event;
  embedded.event.embedding = embedded.vector.data();
  embedded.event.embedding_capacity = kWidth;
  CHECK_EQ(trn_host_next_event(host.get(), id, 20000, &embedded.event), TRN_HOST_OK);
  CHECK_EQ(embedded.event.type, TRN_EVENT_FINISHED);
  return embedded;
}

std::vector<std::vector<float>> embed_all(const Host& host, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<uint64_t> ids;
  for (const auto& prompt : prompts) ids.push_back(submit(host, prompt));
  std::vector<std::vector<float>> vectors;
  for (const uint64_t id : ids) {
    const Embedded embedded = wait(host, id);
    CHECK_EQ(embedded.event.finish_reason, TRN_FINISH_STOP);
    CHECK_EQ(embedded.event.embedding_size, kWidth);
    CHECK_EQ(embedded.event.num_output_tokens, 0);
    vectors.push_back(embedded.vector);
  }
  const trn_host_stats figures = host.stats();
  CHECK_EQ(figures.blocks_used, 0);
  CHECK_EQ(figures.output_tokens, 0u);
  return vectors;
}

}  // namespace

TEST(embeddings_are_the_same_however_they_are_fed) {
  const auto prompts = random_prompts(5, 12, 64);
  const std::vector<std::vector<fake::Group>> kinds{
      {{}}, {{}, {TRN_CACHE_WINDOW, 7}}, {{}, {TRN_CACHE_RECURRENT}}};
  for (const auto& groups : kinds) {
    fake::config() = pooling(groups);
    std::vector<std::vector<float>> expected;
    {
      trn_host_options options = default_options();
      options.prefix_caching = 0;
      options.executor.limits.max_num_tokens = 64;
      Host host(options);
      for (const auto& prompt : prompts) expected.push_back(embed_all(host, {prompt})[0]);
    }
    for (const int32_t max_num_tokens : {8, 11, 32}) {
      for (const int32_t kv_blocks : {0, 20}) {
        trn_host_options options = default_options();
        options.overlap = max_num_tokens != 11;
        options.executor.limits.max_num_tokens = max_num_tokens;
        options.kv_blocks = kv_blocks;
        Host host(options);
        CHECK(embed_all(host, prompts) == expected);
        // Again, out of the prefix cache where there is one.
        CHECK(embed_all(host, prompts) == expected);
        if (groups.size() == 1 && kv_blocks == 0) CHECK(host.stats().prefix_hit_tokens > 0);
      }
    }
  }
}

TEST(whole_prompts_come_in_one_step_without_a_cache) {
  const auto prompts = random_prompts(5, 12, 32);
  for (const auto& groups : std::vector<std::vector<fake::Group>>{{}, {{}}}) {
    fake::config() = pooling(groups);
    std::vector<std::vector<float>> expected;
    {
      trn_host_options options = default_options();
      options.executor.limits.max_num_tokens = 64;
      Host host(options);
      for (const auto& prompt : prompts) expected.push_back(embed_all(host, {prompt})[0]);
      CHECK(expected[0] != expected[1]);
    }
    for (const int32_t overlap : {0, 1}) {
      fake::config() = pooling(groups);
      fake::config().needs_whole_prompts = true;
      trn_host_options options = default_options();
      options.overlap = overlap;
      options.executor.limits.max_num_tokens = 33;
      Host host(options);
      CHECK(embed_all(host, prompts) == expected);
      CHECK(embed_all(host, prompts) == expected);
      CHECK_EQ(fake::breach(), "");
      CHECK_EQ(host.stats().prefix_hit_tokens, 0u);
      CHECK_EQ(host.stats().prefix_caching, 0);
      CHECK_EQ(refusal(host, embed_request(std::vector<int32_t>(34, 3))),
               "the prompt has 34 tokens, and this model computes a prompt in one step, which has at most 33 "
               "(max_num_tokens)");
    }
  }
}

TEST(embedding_of_a_full_prefix_hit_computes_the_last_block) {
  fake::config() = pooling();
  Host host(default_options());
  const std::vector<int32_t> prompt(12, 7);
  const auto first = embed_all(host, {prompt});
  const Embedded again = wait(host, submit(host, prompt));
  CHECK_EQ(again.event.num_cached_tokens, 8);
  CHECK(again.vector == first[0]);
}

TEST(embedding_may_fill_max_model_len) {
  fake::config() = pooling();
  Host host(default_options());
  CHECK_EQ(embed_all(host, {std::vector<int32_t>(64, 3)}).size(), 1u);
  CHECK_EQ(refusal(host, embed_request(std::vector<int32_t>(65, 3))), "the prompt has 65 tokens, max_model_len is 64");
}

TEST(embedding_survives_a_failed_step) {
  fake::config() = pooling();
  const std::vector<int32_t> prompt(40, 9);
  Host plain(default_options());
  const auto expected = embed_all(plain, {prompt});
  trn_host_shutdown(plain.get());
  fake::config() = pooling();
  fake::config().fault = [](uint64_t step, const trn_forward_batch&) { return step == 2 ? TRN_FAILED : TRN_OK; };
  Host host(default_options());
  CHECK(embed_all(host, {prompt}) == expected);
  CHECK_EQ(host.stats().failed_steps, 1u);
}

TEST(embedding_that_is_not_finite_is_an_error) {
  fake::config() = pooling();
  fake::config().nan_token = 4;
  Host host(default_options());
  const uint64_t bad = submit(host, {1, 2, 4}), good = submit(host, {1, 4, 2});
  const Embedded ended = wait(host, bad);
  CHECK_EQ(ended.event.finish_reason, TRN_FINISH_ERROR);
  CHECK_EQ(std::string(ended.event.error), "the embedding holds NaN or infinity");
  CHECK_EQ(ended.event.embedding_size, 0);
  CHECK_EQ(wait(host, good).event.finish_reason, TRN_FINISH_STOP);
}

TEST(embedding_that_does_not_fit_its_reader_is_not_lost) {
  fake::config() = pooling();
  Host host(default_options());
  const uint64_t id = submit(host, {1, 2, 3});
  trn_host_event event{};
  event.struct_size = sizeof event;
  CHECK_EQ(trn_host_next_event(host.get(), id, 20000, &event), TRN_HOST_INVALID);
  std::vector<float> small(kWidth - 1, -5);
  event.embedding = small.data();
  event.embedding_capacity = kWidth - 1;
  CHECK_EQ(trn_host_next_event(host.get(), 0, 20000, &event), TRN_HOST_INVALID);
  CHECK(small == std::vector<float>(kWidth - 1, -5));
  CHECK_EQ(wait(host, id).event.embedding_size, kWidth);
}

TEST(embedding_can_be_cancelled) {
  fake::config() = pooling();
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return TRN_OK;
  };
  trn_host_options options = default_options();
  options.executor.limits.max_num_tokens = 8;
  Host host(options);
  const uint64_t id = submit(host, std::vector<int32_t>(60, 3));
  CHECK_EQ(trn_host_cancel(host.get(), id), TRN_HOST_OK);
  const Embedded ended = wait(host, id);
  CHECK_EQ(ended.event.finish_reason, TRN_FINISH_CANCELLED);
  CHECK_EQ(ended.event.embedding_size, 0);
}

TEST(requests_of_the_other_kind_are_refused_by_name) {
  trn_model_info info{};
  info.struct_size = sizeof info;
  {
    fake::config() = pooling();
    Host host(default_options());
    CHECK_EQ(host.refusal({1}, sampling()),
             "kind is generate, but this model pools embeddings: it serves embed requests");
    CHECK_EQ(trn_host_model_info(host.get(), &info), TRN_HOST_OK);
    CHECK_EQ(info.output_kind, TRN_OUTPUT_POOLED);
    CHECK_EQ(info.output_width, kWidth);
    trn_host_request unknown = embed_request({1});
    unknown.kind = 2;
    CHECK_EQ(refusal(host, unknown), "kind is 2, expected 0 (generate) or 1 (embed)");
  }
  fake::config() = {};
  Host host(default_options());
  CHECK_EQ(refusal(host, embed_request({1})), "kind is embed, but this model makes logits: it serves generate requests");
  CHECK_EQ(trn_host_model_info(host.get(), &info), TRN_HOST_OK);
  CHECK_EQ(info.output_kind, TRN_OUTPUT_LOGITS);
}
