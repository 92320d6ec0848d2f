// One request as the loop thread knows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "serving/event_queue.h"
#include "serving/images.h"
#include "serving/kv_cache.h"
#include "serving/token_types.h"
#include "trunnion/serving.h"

namespace trunnion::serving {

struct Request {
  uint64_t id = 0;  // also the order of arrival
  std::shared_ptr<Channel> channel;
  trn_host_sampling sampling{};
  std::vector<int32_t> stop_ids;  // eos ids included, unless they are ignored; sorted
  int32_t max_total_tokens = 0;   // prompt and output

  std::vector<int32_t> tokens;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  int32_t num_computed = 0;  // leading tokens in the cache
  std::vector<BlockKey> keys;
  RequestBlocks blocks;
  RequestImages images;
  TokenTypes types;

  int64_t submitted_ns = 0;
  bool ever_scheduled = false;  // kept for the trace only
  bool token_pending = false;   // the last of `tokens` stands for one that the running step will sample
  bool paused = false;          // its consumer is behind
  bool failed_before = false;   // a FAILED step since the last token
  std::vector<int32_t> drafts;  // for the tokens after the newest; not sampled yet
  int32_t num_accepted = 1;     // column of its recurrent states to start from, counted from 1
  // A draft step with it has failed, so that the draft's cache lacks rows of it: until it is computed anew it drafts
  // nothing, and its blocks are not for others.
  bool undrafted = false;
  int32_t num_cached_tokens = -1;
  int32_t num_preemptions = 0;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const { return num_tokens() - num_prompt_tokens; }
  int32_t num_uncomputed() const { return num_tokens() - num_computed; }
  // All but the newest token are in the cache.
  bool decoding() const { return num_computed > 0 && num_uncomputed() == 1; }
  void expect_token() {
    tokens.push_back(0);
    token_pending = true;
  }
  void drop_pending() {
    if (token_pending) tokens.pop_back();
    token_pending = false;
  }
  // The token at a position, drafts included; 0 beyond them.
  int32_t token_at(int32_t position) const {
    if (position < num_tokens()) return tokens[static_cast<size_t>(position)];
    const auto draft = static_cast<size_t>(position - num_tokens());
    return draft < drafts.size() ? drafts[draft] : 0;
  }
  // Its blocks are gone, and with them what was known of its caches.
  void forget_caches() {
    num_computed = 0;
    drafts.clear();
    num_accepted = 1;
    undrafted = false;
  }
  bool stops_at(int32_t id) const { return std::binary_search(stop_ids.begin(), stop_ids.end(), id); }
};

}  // namespace trunnion::serving
