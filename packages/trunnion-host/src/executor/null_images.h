// Images of the null model: an encoder pool whose rows are hashes of pixels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trunnion/contract.h"

namespace trunnion::executor {

/// Numbers of a patch, and patches that become one row.
inline constexpr std::int32_t kNullPatchDim = 3;
inline constexpr std::int32_t kNullPatchesPerRow = 4;

/// A row that was never encoded, or by a step that failed, hashes as nothing else does.
class NullImages {
 public:
  explicit NullImages(std::int32_t max_rows) : rows_(static_cast<std::size_t>(max_rows), kNothing) {}

  /// REFUSED: a grid of patches that do not make whole rows, or not as many as the item says.
  static void check(std::span<const trn_encoder_item> items);
  void encode(std::span<const trn_encoder_item> items);
  /// Leave the items' rows as a step that died half-way would.
  void scribble(std::span<const trn_encoder_item> items);
  /// What stands for a token of row `index` where others have their id.
  std::int32_t token(std::int32_t index) const { return rows_[static_cast<std::size_t>(index)]; }

 private:
  static constexpr std::int32_t kNothing = -3;

  std::vector<std::int32_t> rows_;
};

}  // namespace trunnion::executor
