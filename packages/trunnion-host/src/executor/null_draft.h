// The null model's draft: it knows what its target will say, if it is given the right hidden states and its own caches
// hold the right tokens; and errs where it is told to.
#pragma once

#include "null_model.h"

namespace trunnion::executor {

class NullDraft final : public NullModel {
 public:
  /// `target` keeps its hidden states and outlives this.
  NullDraft(const NullOptions& options, const trn_limits& limits, const NullModel& target);

  void forward(const BufferSet& set, const Counts& counts, KvSlot* events) override;

 private:
  bool sees_all(const std::vector<std::int32_t>& tokens, const BufferSet& set, const Counts& counts,
                std::int32_t row) const;

  const NullModel& target_;
  const std::uint64_t agree_;
};

}  // namespace trunnion::executor
