// Rows of a draft: the target's own, or with the most likely token made the least likely.
#include "null_draft.h"

#include <algorithm>

namespace trunnion::executor {
namespace {

/// A draft has one layer, and one group that sees all.
NullOptions draft_options(NullOptions options) {
  options.layers = 1;
  options.window = options.recurrent = options.pooled = 0;
  return options;
}

}  // namespace

NullDraft::NullDraft(const NullOptions& options, const trn_limits& limits, const NullModel& target)
    : NullModel(draft_options(options), limits), target_(target), agree_(static_cast<std::uint64_t>(options.agree)) {
  description_.required_fields |= TRN_FIELD_HIDDEN_INDICES;
}

bool NullDraft::sees_all(const std::vector<std::int32_t>& tokens, const BufferSet& set, const Counts& counts,
                         std::int32_t row) const {
  // The draft's cache holds at a position the token after it.
  const std::vector<std::int32_t> held = cached(set, request_of(row, set, counts), set.inputs.positions[row]);
  return held.size() + 1 == tokens.size() && std::equal(held.begin(), held.end(), tokens.begin() + 1);
}

void NullDraft::forward(const BufferSet& set, const Counts& counts, KvSlot* events) {
  update_caches(set, counts, events);
  const auto& source = counts.hidden_source == 0 ? target_.hidden() : hidden_;
  std::vector<std::vector<std::int32_t>> hidden;
  for (std::int64_t t = 0; t < counts.num_tokens; ++t) {
    hidden.push_back(source[static_cast<std::size_t>(set.inputs.hidden_indices[t])]);
    hidden.back().push_back(set.inputs.input_ids[t]);
  }
  hidden_.swap(hidden);
  for (std::int64_t n = 0; n < counts.num_logits; ++n) {
    const std::int32_t token = set.inputs.logits_indices[n];
    const auto& tokens = hidden_[static_cast<std::size_t>(token)];
    const std::uint64_t hash = target_.hash_of(tokens);
    float* row = set.inputs.logits + n * description_.output_width;
    fill_row(row, description_.output_width, hash);
    if (sees_all(tokens, set, counts, token) && (hash >> 16) % 100 < agree_) continue;
    *std::max_element(row, row + description_.output_width) = -9.0f;
  }
}

}  // namespace trunnion::executor
