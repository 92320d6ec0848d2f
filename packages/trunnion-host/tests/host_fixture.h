// A host over the fake executor, and what its tests do with one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "fake_executor.h"
#include "trunnion/serving.h"

struct Ended {
  std::vector<int32_t> tokens;
  trn_host_event finish{};
};

// Defaults: 8 requests of at most 64 tokens, 32 tokens per step, blocks of 4, as many blocks as they can need.
trn_host_options default_options();
trn_host_sampling sampling(double temperature = 0, int32_t max_tokens = 12, uint64_t seed = 1);
std::vector<std::vector<int32_t>> random_prompts(uint64_t seed, int32_t count, int32_t longest);

class Host {
 public:
  explicit Host(const trn_host_options& options);
  // Closes the host and fails the test if a batch broke the contract.
  ~Host() noexcept(false);

  trn_host* get() const { return host_; }
  uint64_t submit(const std::vector<int32_t>& prompt, const trn_host_sampling& params,
                  const std::vector<int32_t>& stop_ids = {}, const std::vector<int32_t>& eos_ids = {});
  // The error line of a submit that is refused.
  std::string refusal(const std::vector<int32_t>& prompt, const trn_host_sampling& params);
  trn_host_event next(uint64_t request_id = 0, int64_t timeout_ms = 20000);
  Ended wait(uint64_t request_id);
  std::map<uint64_t, Ended> wait_all(size_t count);
  trn_host_stats stats() const;

 private:
  trn_host* host_ = nullptr;
};

// The outputs of each prompt when it is alone in a fresh host without prefix caching: what every other way must equal.
std::vector<std::vector<int32_t>> alone(const std::vector<std::vector<int32_t>>& prompts,
                                        const trn_host_sampling& params);
// The same, all submitted at once to a host with these options; `stats` may be null.
std::vector<std::vector<int32_t>> together(const trn_host_options& options,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const trn_host_sampling& params, trn_host_stats* stats = nullptr);
