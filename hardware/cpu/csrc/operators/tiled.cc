// tiled_int_linear: weights of 4 or 8 bits in tiles, rows quantised to int8 by blocks.
#include <algorithm>
#include <optional>

#include "isa.h"
#include "items.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kSharedRows = 1 << 14;     // elements below which one thread quantises
constexpr int64_t kTile = 16;                // features of a tile
constexpr int64_t kTilesAtOnce = 4 * kTile;  // features that kernels take at once
constexpr int64_t kMostBlock = 128, kLeastBlock = 32;
constexpr int64_t kChunkValues = 8;  // rows of codes are whole chunks, of 8 values in 4 bits

// The largest that groups are made of, up to kMostBlock.
int64_t block_of(int64_t group_size) {
  if (group_size <= kMostBlock) return group_size;
  int64_t block = kMostBlock;
  while (block > kLeastBlock && group_size % block != 0) block /= 2;
  return block;
}

Element element_of_scales(const Tensor& scales) {
  if (scales.scalar_type() == ScalarType::Half) return Element::kFloat16;
  return element_of(scales, "scales");
}

const void* per_group(const Tensor& tensor, int64_t tiles, int64_t groups, ScalarType type, const char* what) {
  STD_TORCH_CHECK(tensor.dim() == 3 && tensor.size(0) == tiles && tensor.size(1) == groups && tensor.size(2) == kTile &&
                      tensor.is_contiguous() && tensor.scalar_type() == type,
                  what, " are not dense, ", tiles, " by ", groups, " by ", kTile, ", in ", type);
  return tensor.data_ptr();
}

struct Blocks {
  int64_t size, count, width;  // width: of a quantised row
};

BlocksArgs quantised(const Kernels& kernel, const Tensor& x, const Blocks& blocks, Element element, int64_t threads) {
  Rows rows(x);
  const int64_t x_stride = rows.at_one_distance(), per_row = rows.count * blocks.count;
  char* scratch = static_cast<char*>(Scratch::of(rows.count * blocks.width + per_row * (sizeof(float) + sizeof(int32_t))));
  // Numbers of four bytes first: they are aligned there.
  auto* scales = reinterpret_cast<float*>(scratch);
  auto* sums = reinterpret_cast<int32_t*>(scales + per_row);
  const BlocksArgs args{
      .x = rows.data(),
      .x_stride = x_stride,
      .out = reinterpret_cast<int8_t*>(sums + per_row),
      .out_stride = blocks.width,
      .scales = scales,
      .sums = sums,
      .size = last_size(x),
      .block_size = blocks.size,
      .blocks = blocks.count,
      .scale = nullptr,
      .element = element,
  };
  share(rows.count, rows.count * blocks.width < kSharedRows ? 1 : threads, kernel.quantise_blocks, args);
  return args;
}

Tensor tiled_int_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                        const std::optional<Tensor>& zero_points, const std::optional<Tensor>& mins,
                        const std::optional<Tensor>& bias, int64_t bits, int64_t group_size, int64_t features) {
  const Element element = element_of(x, "x");
  const int64_t size = last_size(x), tiles = (features + kTile - 1) / kTile;
  STD_TORCH_CHECK(bits == 4 || bits == 8, "weights of ", bits, " bits; choices: 4, 8");
  STD_TORCH_CHECK(group_size > 0 && (group_size >= size || group_size % kLeastBlock == 0), "groups of ", group_size,
                  " features, expected a multiple of ", kLeastBlock, " or all");
  STD_TORCH_CHECK(!zero_points.has_value() || !mins.has_value(), "zero points and minima");
  const int64_t groups = (size + group_size - 1) / group_size;
  const int64_t width = (size + kChunkValues - 1) / kChunkValues * kChunkValues;
  const int64_t tile_bytes = kTile * width * bits / 8;
  STD_TORCH_CHECK(codes.dim() == 2 && codes.size(0) == tiles && codes.size(1) == tile_bytes &&
                      codes.is_contiguous() && codes.scalar_type() == ScalarType::Byte,
                  "codes are no dense uint8 matrix of ", tiles, " tiles by ", tile_bytes, " bytes");
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == features && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == element),
                  "bias is no vector of ", features, " values of x's dtype");
  const int64_t num_rows = x.numel() / std::max<int64_t>(size, 1);
  const int64_t threads = num_rows * features * size < kSharedWork ? 1 : num_threads();
  const Kernels& kernel = kernels();
  const int64_t block = group_size >= size ? std::min(width, kMostBlock) : block_of(group_size);
  const BlocksArgs given = quantised(kernel, x, {block, (size + block - 1) / block, width}, element, threads);
  Tensor out = like_with_last(x, features);
  const auto type = scales.scalar_type();
  const TiledArgs args{
      .x = given.out,
      .x_stride = width,
      .x_scales = given.scales,
      .x_sums = given.sums,
      .codes = static_cast<const uint8_t*>(codes.data_ptr()),
      .tile_bytes = tile_bytes,
      .scales = per_group(scales, tiles, groups, type, "scales"),
      .mins = mins.has_value() ? per_group(*mins, tiles, groups, type, "mins") : nullptr,
      .zero_points = zero_points.has_value() ? static_cast<const uint8_t*>(per_group(*zero_points, tiles, groups,
                                                                                     ScalarType::Byte, "zero_points"))
                                             : nullptr,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = num_rows,
      .features = features,
      .bits = bits,
      .block_size = block,
      .blocks = given.blocks,
      .group_size = group_size,
      .groups = groups,
      .features_per_item = features_per_item(features, width * bits / 8, threads, kTilesAtOnce),
      .rows_per_item = kRowsPerItem,
      .scale_element = element_of_scales(scales),
      .element = element,
  };
  share(num_items(args), threads, kernel.tiled_linear, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "tiled_int_linear(Tensor x, Tensor codes, Tensor scales, Tensor? zero_points, Tensor? mins, Tensor? bias,"
      " int bits, int group_size, int features) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("tiled_int_linear", TORCH_BOX(&tiled_int_linear)); }

}  // namespace trunnion_cpu
