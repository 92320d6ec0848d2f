// tiled_grouped_linear: as grouped_int_linear, of weights in tiles.
#include <optional>

#include "isa.h"
#include "items.h"
#include "prepared.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kSharedRows = 1 << 15;     // elements below which one thread prepares
constexpr int64_t kTile = 16;                // features of a tile
constexpr int64_t kLeastGroup = 32;          // groups are multiples of it
constexpr int64_t kChunkValues = 8;          // rows of codes are whole chunks, of 8 values in 4 bits

const void* per_group(const Tensor& tensor, int64_t tiles, int64_t groups, ScalarType type, const char* what) {
  STD_TORCH_CHECK(tensor.dim() == 3 && tensor.size(0) == tiles && tensor.size(1) == groups && tensor.size(2) == kTile &&
                      tensor.is_contiguous() && tensor.scalar_type() == type,
                  what, " are not dense, ", tiles, " by ", groups, " by ", kTile, ", in ", type);
  return tensor.data_ptr();
}

PrepareGroupsArgs prepared_groups(const Kernels& kernel, PrepareGroupsArgs args, int64_t rows, int64_t threads) {
  const int64_t row_bytes = args.width * kernel.prepared_group_bytes(args.element);
  args.out = Scratch::of(rows * (row_bytes + args.groups * sizeof(float)));
  args.sums = reinterpret_cast<float*>(static_cast<char*>(args.out) + rows * row_bytes);
  share(rows, rows * args.width < kSharedRows ? 1 : threads, kernel.prepare_groups, args);
  return args;
}

Tensor tiled_grouped_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                            const std::optional<Tensor>& zero_points, const std::optional<Tensor>& bias, int64_t bits,
                            int64_t group_size, int64_t features) {
  const Element element = element_of(x, "x");
  const int64_t size = last_size(x), tiles = (features + kTile - 1) / kTile;
  STD_TORCH_CHECK(bits == 4 || bits == 8, "weights of ", bits, " bits; choices: 4, 8");
  STD_TORCH_CHECK(group_size > 0 && (group_size >= size || group_size % kLeastGroup == 0), "groups of ", group_size,
                  " features, expected a multiple of ", kLeastGroup, " or all");
  const int64_t groups = (size + group_size - 1) / group_size;
  const int64_t width = (size + kChunkValues - 1) / kChunkValues * kChunkValues;
  const int64_t tile_bytes = kTile * width * bits / 8;
  STD_TORCH_CHECK(codes.dim() == 2 && codes.size(0) == tiles && codes.size(1) == tile_bytes &&
                      codes.is_contiguous() && codes.scalar_type() == ScalarType::Byte,
                  "codes are no dense uint8 matrix of ", tiles, " tiles by ", tile_bytes, " bytes");
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == features && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == element),
                  "bias is no vector of ", features, " values of x's dtype");
  Rows rows(x);
  const int64_t x_stride = rows.at_one_distance(), num_rows = rows.count;
  const int64_t threads = num_rows * features * size < kSharedWork ? 1 : num_threads();
  const Kernels& kernel = kernels();
  bool takes_prepared;
  const ItemShape shape = kernel.tiled_groups_item(element, num_rows, takes_prepared);
  PrepareGroupsArgs given{
      .x = rows.data(),
      .x_stride = x_stride,
      .out = nullptr,
      .sums = nullptr,
      .size = size,
      .width = width,
      .bits = bits,
      .group_size = group_size >= size ? width : group_size,
      .groups = groups,
      .element = element,
  };
  PreparedRows plain{nullptr, width};
  if (takes_prepared) {
    plain = prepared(kernel, {rows.data(), x_stride, nullptr, size, element}, num_rows, threads);
  } else {
    given = prepared_groups(kernel, given, num_rows, threads);
  }
  Tensor out = like_with_last(x, features);
  const TiledGroupsArgs args{
      .x = takes_prepared ? plain.data : given.out,
      .x_stride = plain.stride,
      .x_sums = given.sums,
      .codes = static_cast<const uint8_t*>(codes.data_ptr()),
      .scales = per_group(scales, tiles, groups, x.scalar_type(), "scales"),
      .zero_points = zero_points.has_value() ? static_cast<const uint8_t*>(per_group(*zero_points, tiles, groups,
                                                                                     ScalarType::Byte, "zero_points"))
                                             : nullptr,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = num_rows,
      .features = features,
      .size = size,
      .width = width,
      .bits = bits,
      .group_size = given.group_size,
      .groups = groups,
      .features_per_item = features_per_item(features, width * bits / 8, threads, shape.features),
      .rows_per_item = shape.rows,
      .element = element,
      .is_prepared = takes_prepared,
  };
  share(num_items(args), threads, kernel.tiled_groups_linear, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "tiled_grouped_linear(Tensor x, Tensor codes, Tensor scales, Tensor? zero_points, Tensor? bias, int bits,"
      " int group_size, int features) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("tiled_grouped_linear", TORCH_BOX(&tiled_grouped_linear));
}

}  // namespace trunnion_cpu
