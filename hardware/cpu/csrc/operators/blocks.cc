// block_linear, block_rows: weights in blocks of GGUF, in tiles; products with rows quantised to int8, and single rows.
#include <algorithm>
#include <cstring>
#include <optional>

#include "isa.h"
#include "items.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kSharedRows = 1 << 14;     // elements below which one thread quantises, or looks up
constexpr int64_t kTile = 16;                // features of a tile
constexpr int64_t kTilesAtOnce = 4 * kTile;  // features that kernels take at once
constexpr int64_t kBlock = 32;

// The parts of a weight: codes of all tiles, then scales, then minima.
struct Parts {
  int64_t tiles, blocks, bits;
  const uint8_t* codes;
  const uint16_t* scales;
  const uint16_t* minima;
};

Parts parts_of(const Tensor& weight, int64_t size, int64_t features, int64_t bits, bool has_minima) {
  STD_TORCH_CHECK(bits == 4 || bits == 8, "weights of ", bits, " bits; choices: 4, 8");
  STD_TORCH_CHECK(!has_minima || bits == 4, "minima beside weights of ", bits, " bits; choices: 4");
  STD_TORCH_CHECK(size % kBlock == 0, size, " features of a row, expected a multiple of ", kBlock);
  const int64_t tiles = (features + kTile - 1) / kTile, blocks = size / kBlock, of_all = tiles * kTile * blocks;
  const int64_t row_bytes = blocks * (kBlock * bits / 8 + (has_minima ? 4 : 2));
  STD_TORCH_CHECK(weight.dim() == 2 && weight.size(0) == tiles * kTile && weight.size(1) == row_bytes &&
                      weight.is_contiguous() && weight.scalar_type() == ScalarType::Byte,
                  "weight is no dense uint8 matrix of ", tiles * kTile, " by ", row_bytes);
  const auto* codes = static_cast<const uint8_t*>(weight.data_ptr());
  const auto* scales = reinterpret_cast<const uint16_t*>(codes + of_all * kBlock * bits / 8);
  return {tiles, blocks, bits, codes, scales, has_minima ? scales + of_all : nullptr};
}

struct QuantisedRows {
  const int8_t* x;
  const float* scales;
  const int32_t* shifts;
  const float* sums;
};

struct SumsArgs {
  const float* scales;
  float* sums;      // of each block's x: out
  int32_t* counts;  // of each block's codes; what the weight's zero point takes from them: out
  int64_t blocks;
  int32_t zero_point;
};

void weigh_sums(const SumsArgs& args, int64_t first, int64_t last) {
  for (int64_t i = first * args.blocks; i < last * args.blocks; ++i) {
    args.sums[i] = args.scales[i] * static_cast<float>(args.counts[i]);
    args.counts[i] *= -args.zero_point;
  }
}

QuantisedRows quantised(const Kernels& kernel, const Tensor& x, const Parts& weight, Element element, int64_t threads) {
  Rows rows(x);
  const int64_t x_stride = rows.at_one_distance(), size = last_size(x), per_row = rows.count * weight.blocks;
  char* scratch = static_cast<char*>(Scratch::of(rows.count * size + per_row * 3 * sizeof(float)));
  auto* x_out = reinterpret_cast<int8_t*>(scratch);
  auto* scales = reinterpret_cast<float*>(scratch + rows.count * size);
  auto* counts = reinterpret_cast<int32_t*>(scales + per_row);
  auto* sums = reinterpret_cast<float*>(counts + per_row);
  const BlocksArgs args{
      .x = rows.data(),
      .x_stride = x_stride,
      .out = x_out,
      .out_stride = size,
      .scales = scales,
      .sums = counts,
      .size = size,
      .block_size = kBlock,
      .blocks = weight.blocks,
      .element = element,
  };
  share(rows.count, rows.count * size < kSharedRows ? 1 : threads, kernel.quantise_blocks, args);
  share(rows.count, 1, weigh_sums, SumsArgs{scales, sums, counts, weight.blocks, 1 << (weight.bits - 1)});
  return {x_out, scales, counts, sums};
}

Tensor block_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t bits,
                    bool has_minima, int64_t features) {
  const Element element = element_of(x, "x");
  const int64_t size = last_size(x);
  const Parts parts = parts_of(weight, size, features, bits, has_minima);
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == features && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == element),
                  "bias is no vector of ", features, " values of x's dtype");
  const int64_t num_rows = x.numel() / std::max<int64_t>(size, 1);
  const int64_t threads = num_rows * features * size < kSharedWork ? 1 : num_threads();
  const Kernels& kernel = kernels();
  const QuantisedRows rows = quantised(kernel, x, parts, element, threads);
  Tensor out = like_with_last(x, features);
  const BlockLinearArgs args{
      .x = rows.x,
      .x_scales = rows.scales,
      .x_shifts = rows.shifts,
      .x_sums = rows.sums,
      .codes = parts.codes,
      .scales = parts.scales,
      .minima = parts.minima,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = num_rows,
      .features = features,
      .blocks = parts.blocks,
      .bits = bits,
      .features_per_item = features_per_item(features, weight.size(1), threads, kTilesAtOnce),
      .rows_per_item = kRowsPerItem,
      .element = element,
  };
  share(num_items(args), threads, kernel.block_linear, args);
  return out;
}

struct TakeArgs {
  Parts weight;
  const void* ids;
  bool is_wide;  // ids are int64
  void* out;     // [ids, 32 * blocks]
  int64_t features;
  Element element;
};

float float_of(uint16_t half) {
  const uint32_t size = static_cast<uint32_t>(half & 0x7fffu) << 13, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  float value;
  std::memcpy(&value, &size, sizeof value);
  value *= 0x1p112f;
  if ((half & 0x7c00u) == 0x7c00u) value = __builtin_inff();
  return sign ? -value : value;
}

void store_rounded(void* out, int64_t at, float value, Element element) {
  if (element == Element::kFloat32) {
    static_cast<float*>(out)[at] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
  static_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(bits >> 16);
}

void take_row(const TakeArgs& args, int64_t id, int64_t to) {
  const Parts& weight = args.weight;
  const int64_t tile = id / kTile, lane = id % kTile, per_chunk = 32 / weight.bits;
  const int zero_point = weight.minima == nullptr ? 1 << (weight.bits - 1) : 0;
  for (int64_t block = 0; block < weight.blocks; ++block) {
    const int64_t at = tile * weight.blocks + block;
    const float scale = float_of(weight.scales[at * kTile + lane]);
    const float minimum = weight.minima == nullptr ? 0 : float_of(weight.minima[at * kTile + lane]);
    const uint8_t* codes = weight.codes + at * kTile * kBlock * weight.bits / 8 + 4 * lane;
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t within = k % per_chunk;
      const uint8_t byte = codes[k / per_chunk * 4 * kTile + within % 4];
      const int code = weight.bits == 8 ? byte : within < 4 ? byte & 15 : byte >> 4;
      store_rounded(args.out, to + block * kBlock + k, static_cast<float>(code - zero_point) * scale + minimum, args.element);
    }
  }
}

void take_rows(const TakeArgs& args, int64_t first, int64_t last) {
  const int64_t size = args.weight.blocks * kBlock;
  for (int64_t item = first; item < last; ++item) {
    const int64_t id = args.is_wide ? static_cast<const int64_t*>(args.ids)[item] : static_cast<const int32_t*>(args.ids)[item];
    if (id >= 0 && id < args.features) {
      take_row(args, id, item * size);
      continue;
    }
    // Nothing past the weight is read.
    for (int64_t k = 0; k < size; ++k) store_rounded(args.out, item * size + k, __builtin_nanf(""), args.element);
  }
}

Tensor block_rows(const Tensor& ids, const Tensor& weight, int64_t bits, bool has_minima, int64_t features,
                  ScalarType dtype) {
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::BFloat16, "rows in ", dtype,
                  "; choices: float32, bfloat16");
  const int64_t size = last_size(weight) / (kBlock * bits / 8 + (has_minima ? 4 : 2)) * kBlock;
  const Parts parts = parts_of(weight, size, features, bits, has_minima);
  const auto type = ids.scalar_type();
  STD_TORCH_CHECK(ids.dim() == 1 && ids.is_contiguous() && (type == ScalarType::Int || type == ScalarType::Long),
                  "ids are no dense vector of int32 or int64");
  const int64_t sizes[] = {ids.size(0), size};
  Tensor out = torch::stable::new_empty(weight, torch::headeronly::IntHeaderOnlyArrayRef(sizes, 2), dtype);
  const Element element = dtype == ScalarType::Float ? Element::kFloat32 : Element::kBFloat16;
  const TakeArgs args{parts, ids.data_ptr(), type == ScalarType::Long, out.mutable_data_ptr(), features, element};
  share(ids.size(0), ids.size(0) * size < kSharedRows ? 1 : num_threads(), take_rows, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "block_linear(Tensor x, Tensor weight, Tensor? bias, int bits, bool has_minima, int features) -> Tensor");
  library.def(
      "block_rows(Tensor ids, Tensor weight, int bits, bool has_minima, int features, ScalarType dtype) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("block_linear", TORCH_BOX(&block_linear));
  library.impl("block_rows", TORCH_BOX(&block_rows));
}

}  // namespace trunnion_cpu
