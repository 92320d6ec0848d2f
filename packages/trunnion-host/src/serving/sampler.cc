#include "serving/sampler.h"

#include <algorithm>
#include <cmath>

#include "serving/philox.h"

namespace trunnion::serving {
namespace {

// Ties by id, so that the order of candidates never decides.
constexpr auto more_likely = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};
constexpr auto less_likely = [](const auto& a, const auto& b) { return more_likely(b, a); };

bool contains(std::span<const int32_t> ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// The first of the largest, or -1 when every finite logit is banned.
int32_t most_likely(std::span<const float> logits, std::span<const int32_t> banned) {
  int32_t best = -1;
  float largest = -INFINITY;
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    if (logits[id] <= largest || contains(banned, id)) continue;
    best = id;
    largest = logits[id];
  }
  return best;
}

const char* find_fault(std::span<const float> logits) {
  bool any_finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit)) return "the logits row holds NaN";
    if (logit == INFINITY) return "the logits row holds +inf";
    any_finite = any_finite || logit != -INFINITY;
  }
  return any_finite ? nullptr : "the logits row holds no finite value";
}

}  // namespace

Sampler::Sampler(int32_t vocab_size) { candidates_.reserve(static_cast<size_t>(vocab_size)); }

Sample Sampler::sample(std::span<const float> logits, const trn_host_sampling& sampling, uint64_t position,
                       std::span<const int32_t> banned) {
  Sample result;
  result.error = find_fault(logits);
  if (result.error != nullptr) return result;
  const int32_t best = most_likely(logits, banned);
  if (best < 0) {
    result.error = "min_tokens bans every token with a finite logit";
    return result;
  }
  result.token_id = sampling.temperature == 0.0 ? best : draw(logits, best, sampling, position, banned);
  if (sampling.num_logprobs >= 0) add_logprobs(logits, sampling.num_logprobs, result);
  return result;
}

int32_t Sampler::draw(std::span<const float> logits, int32_t best, const trn_host_sampling& sampling,
                      uint64_t position, std::span<const int32_t> banned) {
  const double largest = logits[best];
  candidates_.clear();
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    if (logits[id] == -INFINITY || contains(banned, id)) continue;
    candidates_.push_back({id, logits[id], std::exp((logits[id] - largest) / sampling.temperature)});
  }
  if (sampling.top_k > 0) keep_top_k(sampling.top_k);
  if (sampling.top_p < 1.0) keep_top_p(sampling.top_p);
  // The most likely token has weight 1.
  if (sampling.min_p > 0.0) std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < sampling.min_p; });

  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double rest = uniform(sampling.seed, position) * total;
  const Candidate* last = nullptr;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0.0) continue;
    last = &candidate;
    rest -= candidate.weight;
    if (rest < 0) break;
  }
  // Rounding may leave a little rest; it belongs to the last token that can be drawn.
  return last->id;
}

void Sampler::keep_top_k(int32_t top_k) {
  if (top_k >= std::ssize(candidates_)) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + top_k, candidates_.end(), more_likely);
  candidates_.resize(static_cast<size_t>(top_k));
  // The draw walks the candidates, so their order must not depend on the library's nth_element.
  std::sort(candidates_.begin(), candidates_.end(), more_likely);
}

// The fewest of the most likely candidates whose share of the whole reaches top_p.
void Sampler::keep_top_p(double top_p) {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  // A heap: the nucleus is mostly small, sorting the whole vocabulary would be the slowest part of a step.
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto end = candidates_.end();
  double kept = 0;
  while (end != candidates_.begin() && kept < top_p * total) {
    std::pop_heap(candidates_.begin(), end, less_likely);
    --end;
    kept += end->weight;
  }
  candidates_.erase(candidates_.begin(), end);
  std::reverse(candidates_.begin(), candidates_.end());
}

void Sampler::add_logprobs(std::span<const float> logits, int32_t num_top, Sample& sample) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - largest);
  const double log_total = largest + std::log(total);
  sample.logprob = static_cast<float>(logits[sample.token_id] - log_total);
  if (num_top == 0) return;

  candidates_.clear();
  for (int32_t id = 0; id < std::ssize(logits); ++id) candidates_.push_back({id, logits[id], 0.0});
  const auto count = std::min<ptrdiff_t>(num_top, std::ssize(candidates_));
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(), more_likely);
  for (ptrdiff_t i = 0; i < count; ++i) {
    sample.top.emplace_back(candidates_[i].id, static_cast<float>(candidates_[i].logit - log_total));
  }
}

}  // namespace trunnion::serving
