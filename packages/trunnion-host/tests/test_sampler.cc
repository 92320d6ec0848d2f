// Random numbers, the sampled distribution against the exact one, filters and unusable rows.
#include <cmath>
#include <limits>
#include <numeric>

#include "check.h"
#include "serving/philox.h"
#include "serving/sampler.h"

using namespace trunnion::serving;

namespace {

constexpr int kVocab = 12;

std::vector<float> some_logits() {
  std::vector<float> logits(kVocab);
  for (int id = 0; id < kVocab; ++id) logits[id] = static_cast<float>(std::sin(id * 1.7) * 2.5);
  return logits;
}

trn_host_sampling params(double temperature) {
  trn_host_sampling sampling{};
  sampling.struct_size = sizeof sampling;
  sampling.temperature = temperature;
  sampling.top_p = 1;
  sampling.seed = 42;
  sampling.num_logprobs = -1;
  return sampling;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> shares;
  for (const float logit : logits) shares.push_back(std::exp(logit / temperature));
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  return shares;
}

// Zero every share that a straightforward reading of the filters removes, then renormalise.
std::vector<double> filtered(std::vector<double> shares, const trn_host_sampling& sampling) {
  std::vector<int> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return shares[a] > shares[b]; });
  if (sampling.top_k > 0) {
    for (size_t i = sampling.top_k; i < order.size(); ++i) shares[order[i]] = 0;
  }
  const double kept = std::accumulate(shares.begin(), shares.end(), 0.0);
  double before = 0;
  for (const int id : order) {
    const double share = shares[id] / kept;
    if (before >= sampling.top_p) shares[id] = 0;
    before += share;
  }
  for (double& share : shares) {
    if (share < sampling.min_p * shares[order[0]]) share = 0;
  }
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  return shares;
}

void check_distribution(const trn_host_sampling& sampling) {
  constexpr int kDraws = 40000;
  const auto logits = some_logits();
  const auto expected = filtered(softmax(logits, sampling.temperature), sampling);
  Sampler sampler(kVocab);
  std::vector<int> seen(kVocab);
  for (int position = 0; position < kDraws; ++position) {
    ++seen[sampler.sample(logits, sampling, position, {}).token_id];
  }
  double chi_square = 0;
  int cells = 0;
  for (int id = 0; id < kVocab; ++id) {
    if (expected[id] == 0) {
      CHECK_EQ(seen[id], 0);
      continue;
    }
    ++cells;
    const double mean = expected[id] * kDraws;
    chi_square += (seen[id] - mean) * (seen[id] - mean) / mean;
  }
  // The 99.9 % point of chi-square with 11 degrees of freedom is 31.3; fewer cells have a smaller one. Seeds are fixed.
  CHECK(cells >= 2);
  if (chi_square > 31.3) CHECK_EQ(chi_square, 0.0);
}

}  // namespace

TEST(philox_known_answers) {
  // From the reference implementation's kat_vectors (Random123).
  CHECK((philox4x32({0, 0, 0, 0}, {0, 0}) ==
         std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
         std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(uniform_is_a_function_of_seed_and_position) {
  CHECK_EQ(uniform(1, 2), uniform(1, 2));
  CHECK(uniform(1, 2) != uniform(2, 1));
  CHECK(uniform(0, 1) != uniform(uint64_t{1} << 32, 1));
  double sum = 0;
  for (uint64_t position = 0; position < 1000000; ++position) {
    const double value = uniform(7, position);
    CHECK(value >= 0 && value < 1);
    sum += value;
  }
  // Five standard deviations of the mean are 0.0014.
  CHECK(std::abs(sum / 1000000 - 0.5) < 0.0014);
}

TEST(sampler_greedy_takes_the_first_of_the_largest) {
  Sampler sampler(4);
  const std::vector<float> logits{1, 3, 3, -INFINITY};
  CHECK_EQ(sampler.sample(logits, params(0), 0, {}).token_id, 1);
  CHECK_EQ(sampler.sample(logits, params(0), 0, std::vector<int32_t>{1}).token_id, 2);
}

TEST(sampler_distribution_plain) { check_distribution(params(1.0)); }
TEST(sampler_distribution_hot) { check_distribution(params(2.5)); }
TEST(sampler_distribution_cold) { check_distribution(params(0.5)); }
TEST(sampler_distribution_top_k) {
  auto sampling = params(1.3);
  sampling.top_k = 5;
  check_distribution(sampling);
}
TEST(sampler_distribution_top_p) {
  auto sampling = params(1.3);
  sampling.top_p = 0.8;
  check_distribution(sampling);
}
TEST(sampler_distribution_min_p) {
  auto sampling = params(1.3);
  sampling.min_p = 0.2;
  check_distribution(sampling);
}
TEST(sampler_distribution_all_filters) {
  auto sampling = params(2.0);
  sampling.top_k = 8;
  sampling.top_p = 0.95;
  sampling.min_p = 0.05;
  sampling.seed = 5;
  check_distribution(sampling);
}

TEST(sampler_top_k_1_and_tiny_top_p_are_greedy) {
  Sampler sampler(kVocab);
  const auto logits = some_logits();
  const int32_t best = sampler.sample(logits, params(0), 0, {}).token_id;
  auto one = params(5.0), nucleus = params(5.0), cold = params(1e-9);
  one.top_k = 1;
  nucleus.top_p = 1e-9;
  for (uint64_t position = 0; position < 200; ++position) {
    CHECK_EQ(sampler.sample(logits, one, position, {}).token_id, best);
    CHECK_EQ(sampler.sample(logits, nucleus, position, {}).token_id, best);
    CHECK_EQ(sampler.sample(logits, cold, position, {}).token_id, best);
  }
}

TEST(sampler_never_draws_what_cannot_be) {
  Sampler sampler(6);
  const std::vector<float> logits{0, -INFINITY, 0, 0, -INFINITY, 0};
  const std::vector<int32_t> banned{3};
  for (uint64_t position = 0; position < 2000; ++position) {
    const int32_t id = sampler.sample(logits, params(1), position, banned).token_id;
    CHECK(id == 0 || id == 2 || id == 5);
  }
}

TEST(sampler_reports_unusable_rows) {
  Sampler sampler(3);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    CHECK(sampler.sample(std::vector<float>{0, nan, 1}, params(temperature), 0, {}).error != nullptr);
    CHECK(sampler.sample(std::vector<float>{0, INFINITY, 1}, params(temperature), 0, {}).error != nullptr);
    CHECK(sampler.sample(std::vector<float>(3, -INFINITY), params(temperature), 0, {}).error != nullptr);
    const std::vector<int32_t> all{0, 1, 2};
    CHECK(sampler.sample(std::vector<float>{0, 1, 2}, params(temperature), 0, all).error != nullptr);
    CHECK(sampler.sample(std::vector<float>{0, 1, 2}, params(temperature), 0, {}).error == nullptr);
  }
}

TEST(sampler_logprobs_are_of_the_raw_logits) {
  Sampler sampler(kVocab);
  const auto logits = some_logits();
  const auto shares = softmax(logits, 1.0);
  auto sampling = params(3.0);
  sampling.num_logprobs = 3;
  sampling.top_k = 6;
  for (uint64_t position = 0; position < 50; ++position) {
    const Sample sample = sampler.sample(logits, sampling, position, {});
    CHECK(std::abs(sample.logprob - std::log(shares[sample.token_id])) < 1e-5);
    CHECK_EQ(sample.top.size(), 3u);
    for (const auto& [id, logprob] : sample.top) CHECK(std::abs(logprob - std::log(shares[id])) < 1e-5);
    CHECK(sample.top[0].second >= sample.top[1].second && sample.top[1].second >= sample.top[2].second);
  }
  sampling.num_logprobs = 0;
  CHECK(sampler.sample(logits, sampling, 0, {}).top.empty());
  CHECK(sampler.sample(logits, sampling, 0, {}).logprob < 0);
}
