// An executor for these tests: checks every batch against the contract, reads the caches as attention would, fails
// on request. The next token depends on all that the caches hold, so a wrong block or state shows as other output.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trunnion/contract.h"

namespace fake {

struct Group {
  trn_cache_kind kind = TRN_CACHE_FULL;
  int32_t window = 0;
  int32_t max_blocks_per_seq = 0;  // 0 = enough for the limits
};

// What the next executor is like. Set it before a host is created; only one host at a time.
struct Config {
  std::vector<Group> groups{{}};
  int32_t vocab_size = 50;
  // Columns of pooled rows; 0 = the executor makes logits.
  int32_t pooled_width = 0;
  uint32_t required_fields = 0;
  // Numbers of a patch, four of which make a row of the encoder pool; 0 = the model takes no images.
  int32_t patch_dim = 0;
  int32_t num_position_axes = 1;
  // Whether batches may say which requests share leading blocks.
  bool accepts_prefix_levels = false;
  // Whether all tokens of a request must come in one step.
  bool needs_whole_prompts = false;
  // Types of tokens; 0 = the model takes none.
  int32_t num_token_types = 0;
  // Asked at each execute, counted from 1, after the checks. Anything but TRN_OK leaves the step's slots ruined, unless
  // REFUSED. May block.
  std::function<trn_status(uint64_t step, const trn_forward_batch& batch)> fault = {};
  // Rows whose newest token is this id are all NaN.
  int32_t nan_token = -1;
  std::string create_error = {};
  // Percent of the positions where the draft says what the target's most likely token is; -1 = there is no draft.
  int32_t agreement = -1;
  // As `fault`, of the draft's executes.
  std::function<trn_status(uint64_t step, const trn_forward_batch& batch)> draft_fault = {};
};

Config& config();
// The widest verification of the last executor, in logits rows.
int32_t most_logits();
// "" or the first breach of the contract that a batch of the last executor showed.
std::string breach();
// The widest step of the last executor.
int32_t most_requests();

struct Level {
  int32_t num_reqs, num_tokens;
  bool operator==(const Level&) const = default;
};
// What each step of the last executor was told; steps that were told nothing are left out.
std::vector<std::vector<Level>> told_levels();

}  // namespace fake
