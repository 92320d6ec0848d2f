// tiled_w8a8_linear: as w8a8_linear, of a weight in tiles, moved by 128.
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
constexpr int64_t kStep = 4;                 // values of a row that kernels take at once

const float* floats_of(const Tensor& tensor, int64_t count, const char* what) {
  STD_TORCH_CHECK(tensor.is_contiguous() && tensor.numel() == count && element_of(tensor, what) == Element::kFloat32,
                  what, " has ", tensor.numel(), " values, expected ", count, " dense float32 ones");
  return static_cast<const float*>(tensor.data_ptr());
}

BlocksArgs quantised(const Kernels& kernel, const Tensor& x, const float* scale, int64_t threads) {
  Rows rows(x);
  const int64_t x_stride = rows.at_one_distance(), size = last_size(x);
  auto* scales = static_cast<float*>(Scratch::of(rows.count * (size + sizeof(float) + sizeof(int32_t))));
  auto* sums = reinterpret_cast<int32_t*>(scales + rows.count);
  const BlocksArgs args{
      .x = rows.data(),
      .x_stride = x_stride,
      .out = reinterpret_cast<int8_t*>(sums + rows.count),
      .out_stride = size,
      .scales = scales,
      .sums = sums,
      .size = size,
      .block_size = size,
      .blocks = 1,
      .scale = scale,
      .element = element_of(x, "x"),
  };
  share(rows.count, rows.count * size < kSharedRows ? 1 : threads, kernel.quantise_blocks, args);
  return args;
}

Tensor tiled_w8a8_linear(const Tensor& x, const Tensor& codes, const Tensor& weight_scale,
                         const std::optional<Tensor>& input_scale, const std::optional<Tensor>& bias) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(codes.dim() == 2 && codes.scalar_type() == ScalarType::Char && codes.is_contiguous(),
                  "codes are no dense int8 matrix");
  const int64_t size = last_size(x), features = codes.size(0);
  STD_TORCH_CHECK(codes.size(1) == size, "x has ", size, " features, the weight takes ", codes.size(1));
  STD_TORCH_CHECK(features % kTile == 0 && size % kStep == 0 && size <= kMostTiledBytes, "a weight of ", features,
                  " by ", size, " is not made of tiles of ", kTile, " by ", kStep, " up to ", kMostTiledBytes);
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == features && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == element),
                  "bias is no vector of ", features, " values of x's dtype");
  const int64_t num_rows = x.numel() / std::max<int64_t>(size, 1);
  const int64_t threads = num_rows * features * size < kSharedWork ? 1 : num_threads();
  const Kernels& kernel = kernels();
  const float* scale = input_scale.has_value() ? floats_of(*input_scale, 1, "input_scale") : nullptr;
  const BlocksArgs given = quantised(kernel, x, scale, threads);
  Tensor out = like_with_last(x, features);
  const TiledBytesArgs args{
      .x = given.out,
      .x_scales = given.scales,
      .x_sums = given.sums,
      .codes = static_cast<const uint8_t*>(codes.data_ptr()),
      .weight_scales = floats_of(weight_scale, features, "weight_scale"),
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = num_rows,
      .features = features,
      .size = size,
      .features_per_item = features_per_item(features, size, threads, kTilesAtOnce),
      .rows_per_item = rows_per_tiled_item(num_rows),
      .element = element,
  };
  share(num_items(args), threads, kernel.tiled_bytes_linear, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "tiled_w8a8_linear(Tensor x, Tensor codes, Tensor weight_scale, Tensor? input_scale, Tensor? bias) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("tiled_w8a8_linear", TORCH_BOX(&tiled_w8a8_linear));
}

}  // namespace trunnion_cpu
