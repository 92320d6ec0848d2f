// Hashes pixels, the grid and the row's number into rows of the pool.
#include "null_images.h"

#include <algorithm>
#include <cstring>

#include "null_hash.h"
#include "status.h"

namespace trunnion::executor {

void NullImages::check(std::span<const trn_encoder_item> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int64_t patches = items[i].pixels->shape[0];
    if (items[i].num_rows * std::int64_t{kNullPatchesPerRow} == patches) continue;
    refuse(concat("encoder_items[", i, "].num_rows"), items[i].num_rows, " rows for ", patches, " patches, ",
           kNullPatchesPerRow, " of which make a row");
  }
}

void NullImages::encode(std::span<const trn_encoder_item> items) {
  for (const trn_encoder_item& item : items) {
    std::uint64_t hash = kNullSeed;
    for (const std::int32_t side : item.grid) hash = mix(hash, static_cast<std::uint32_t>(side));
    const auto* pixels = static_cast<const float*>(item.pixels->data);
    for (std::int64_t i = 0; i < item.pixels->shape[0] * item.pixels->shape[1]; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, pixels + i, sizeof bits);
      hash = mix(hash, bits);
    }
    for (std::int32_t row = 0; row < item.num_rows; ++row) {
      rows_[static_cast<std::size_t>(item.first_row + row)] =
          static_cast<std::int32_t>(mix(hash, static_cast<std::uint32_t>(row)) >> 32);
    }
  }
}

void NullImages::scribble(std::span<const trn_encoder_item> items) {
  for (const trn_encoder_item& item : items) std::fill_n(rows_.begin() + item.first_row, item.num_rows, kNothing);
}

}  // namespace trunnion::executor
