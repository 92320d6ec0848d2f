// pack_linear, packed_linear, packed_rows: weights of bfloat16 in tiles of features, made once; products with them, and
// single rows.
#include <cstring>
#include <optional>

#include "isa.h"
#include "items.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kPair = 2;
constexpr int64_t kSharedRows = 1 << 15;  // elements below which one thread looks up
constexpr int64_t kBytesPerItem = 512 << 10;

void check_packed(const Tensor& tensor, const char* what) {
  STD_TORCH_CHECK(tensor.dim() == 2 && tensor.is_contiguous() && element_of(tensor, what) == Element::kBFloat16, what,
                  " is no dense matrix of bfloat16");
  STD_TORCH_CHECK(tensor.size(0) % kPackedTile == 0 && tensor.size(1) % kPair == 0, what, " is [", tensor.size(0), ", ",
                  tensor.size(1), "], expected multiples of ", kPackedTile, " and ", kPair);
}

struct PackArgs {
  const uint32_t* rows;  // [tiles * 16, pairs]
  uint32_t* out;         // [tiles, pairs, 16]
  int64_t pairs;
};

void pack_tiles(const PackArgs& args, int64_t first, int64_t last) {
  constexpr int64_t kAtOnce = 16;  // pairs of a cache line
  for (int64_t tile = first; tile < last; ++tile) {
    const uint32_t* rows = args.rows + tile * kPackedTile * args.pairs;
    uint32_t* out = args.out + tile * kPackedTile * args.pairs;
    for (int64_t begin = 0; begin < args.pairs; begin += kAtOnce) {
      const int64_t end = std::min(begin + kAtOnce, args.pairs);
      for (int64_t n = 0; n < kPackedTile; ++n) {
        for (int64_t p = begin; p < end; ++p) out[p * kPackedTile + n] = rows[n * args.pairs + p];
      }
    }
  }
}

Tensor pack_linear(const Tensor& weight) {
  check_packed(weight, "weight");
  const int64_t tiles = weight.size(0) / kPackedTile, pairs = weight.size(1) / kPair;
  Tensor out = like_with_last(weight, weight.size(1));
  const PackArgs args{static_cast<const uint32_t*>(weight.data_ptr()),
                      static_cast<uint32_t*>(out.mutable_data_ptr()), pairs};
  share(tiles, num_threads(), pack_tiles, args);
  return out;
}

// Features of an item: so many that most panels can be asked for while the one before is multiplied.
int64_t packed_features(int64_t features, int64_t size, int64_t threads, int64_t multiple) {
  const int64_t held = kBytesPerItem / (size * kPair);
  const int64_t shared = (features + threads * kItemsPerThread - 1) / (threads * kItemsPerThread);
  return (std::max<int64_t>(std::min(held, shared), 1) + multiple - 1) / multiple * multiple;
}

Tensor packed_linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias) {
  check_packed(packed, "packed");
  STD_TORCH_CHECK(element_of(x, "x") == Element::kBFloat16, "x is not in bfloat16");
  Rows rows(x);
  const int64_t size = last_size(x), x_stride = rows.at_one_distance(), features = packed.size(0);
  STD_TORCH_CHECK(packed.size(1) == size, "x has ", size, " features, the weight takes ", packed.size(1));
  STD_TORCH_CHECK(!bias.has_value() || (bias->dim() == 1 && bias->size(0) == features && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == Element::kBFloat16),
                  "bias is no vector of ", features, " values of x's dtype");
  Tensor out = like_with_last(x, features);
  const Kernels& kernel = kernels();
  const int64_t threads = rows.count * features * size < kSharedWork ? 1 : num_threads();
  const ItemShape shape = kernel.packed_item(rows.count);
  const LinearArgs args{
      .x = rows.data(),
      .x_stride = x_stride,
      .weight = packed.data_ptr(),
      .weight_stride = size,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = rows.count,
      .features = features,
      .size = size,
      .features_per_item = packed_features(features, size, threads, shape.features),
      .rows_per_item = shape.rows,
      .element = Element::kBFloat16,
      .x_scales = nullptr,
      .x_sums = nullptr,
      .weight_scales = nullptr,
  };
  share(num_items(args), threads, kernel.packed_linear, args);
  return out;
}

struct TakeArgs {
  const uint32_t* packed;  // [tiles, pairs, 16]
  const void* ids;
  int64_t ids_stride;
  bool is_wide;   // ids are int64
  uint32_t* out;  // [ids, pairs]
  int64_t pairs;
};

int64_t id_at(const TakeArgs& args, int64_t number) {
  const int64_t at = number * args.ids_stride;
  return args.is_wide ? static_cast<const int64_t*>(args.ids)[at] : static_cast<const int32_t*>(args.ids)[at];
}

void take_rows(const TakeArgs& args, int64_t first, int64_t last) {
  for (int64_t number = first; number < last; ++number) {
    const int64_t id = id_at(args, number);
    const uint32_t* row = args.packed + id / kPackedTile * kPackedTile * args.pairs + id % kPackedTile;
    for (int64_t p = 0; p < args.pairs; ++p) args.out[number * args.pairs + p] = row[p * kPackedTile];
  }
}

// Rows of whatever numbers lie there by then.
struct TakeRows {
  TakeArgs args;
  int64_t count, rows;

  void operator()(int64_t threads) const {
    for (int64_t number = 0; number < count; ++number) {
      const int64_t id = id_at(args, number);
      STD_TORCH_CHECK(id >= 0 && id < rows, "row ", id, " of a weight of ", rows, " rows");
    }
    share(count, count * args.pairs * kPair < kSharedRows ? 1 : threads, take_rows, args);
  }
};

Tensor packed_rows(const Tensor& ids, const Tensor& packed) {
  check_packed(packed, "packed");
  const auto type = ids.scalar_type();
  STD_TORCH_CHECK(ids.dim() == 1 && (type == ScalarType::Int || type == ScalarType::Long),
                  "ids are no vector of int32 or int64");
  const int64_t sizes[] = {ids.size(0), packed.size(1)};
  Tensor out = new_tensor(packed, sizes, 2);
  const TakeArgs args{static_cast<const uint32_t*>(packed.data_ptr()),
                      ids.data_ptr(),
                      ids.stride(0),
                      type == ScalarType::Long,
                      static_cast<uint32_t*>(out.mutable_data_ptr()),
                      packed.size(1) / kPair};
  const TakeRows call{args, ids.size(0), packed.size(0)};
  if (Program* program = Program::recording()) program->note(call);
  const NotRecorded within;
  call(num_threads());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def("pack_linear(Tensor weight) -> Tensor");
  library.def("packed_linear(Tensor x, Tensor packed, Tensor? bias) -> Tensor");
  library.def("packed_rows(Tensor ids, Tensor packed) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("pack_linear", TORCH_BOX(&pack_linear));
  library.impl("packed_linear", TORCH_BOX(&packed_linear));
  library.impl("packed_rows", TORCH_BOX(&packed_rows));
}

}  // namespace trunnion_cpu
