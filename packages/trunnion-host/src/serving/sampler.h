// From one row of logits to one token: greedy, or temperature, top-k, top-p and min-p, in this order.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trunnion/serving.h"

namespace trunnion::serving {

struct Sample {
  int32_t token_id = -1;
  float logprob = 0;                           // of the raw logits, if asked for
  std::vector<std::pair<int32_t, float>> top;  // (id, logprob), most likely first; ties by id
  const char* error = nullptr;                 // the row is unusable
};

// Keeps its scratch memory between rows; one per thread.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // `position` is the place of the sampled token in its request: the only other input of its random number is the seed.
  // `banned` ids cannot be sampled.
  Sample sample(std::span<const float> logits, const trn_host_sampling& sampling, uint64_t position,
                std::span<const int32_t> banned);

 private:
  struct Candidate {
    int32_t id;
    float logit;
    double weight;  // exp((logit - largest) / temperature): 1 for the most likely
  };

  void add_logprobs(std::span<const float> logits, int32_t num_top, Sample& sample);
  int32_t draw(std::span<const float> logits, int32_t best, const trn_host_sampling& sampling, uint64_t position,
               std::span<const int32_t> banned);
  void keep_top_k(int32_t top_k);
  void keep_top_p(double top_p);

  std::vector<Candidate> candidates_;
};

}  // namespace trunnion::serving
