// copy_rows: output rows as float32 where the host reads them, by the threads of the other operators.
#include <algorithm>
#include <cstring>

#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

constexpr int64_t kPiece = 1 << 14;  // elements of an item

struct CopyArgs {
  const void* rows;
  int64_t stride, size, pieces;  // of a row
  float* out;
  Element element;
};

void copy_pieces(const CopyArgs& args, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; ++item) {
    const int64_t row = item / args.pieces, begin = item % args.pieces * kPiece;
    const int64_t count = std::min(kPiece, args.size - begin);
    float* out = args.out + row * args.size + begin;
    if (args.element == Element::kFloat32) {
      std::memcpy(out, static_cast<const float*>(args.rows) + row * args.stride + begin, count * sizeof(float));
      continue;
    }
    const auto* from = static_cast<const uint16_t*>(args.rows) + row * args.stride + begin;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
      std::memcpy(out + i, &bits, sizeof bits);
    }
  }
}

void copy_rows(const Tensor& given, Tensor out) {
  STD_TORCH_CHECK(given.dim() == 2 && out.dim() == 2 && out.size(0) == given.size(0) && out.size(1) == given.size(1),
                  "rows and out are not two matrices of one shape");
  STD_TORCH_CHECK(out.is_contiguous() && element_of(out, "out") == Element::kFloat32, "out is not dense float32");
  const Element element = element_of(given, "rows");
  Rows rows(given);
  const int64_t stride = rows.at_one_distance(), size = given.size(1), pieces = (size + kPiece - 1) / kPiece;
  const CopyArgs args{rows.data(), stride, size, pieces, static_cast<float*>(out.mutable_data_ptr()), element};
  share(rows.count * pieces, rows.count * size < 4 * kPiece ? 1 : num_threads(), copy_pieces, args);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) { library.def("copy_rows(Tensor rows, Tensor(a!) out) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("copy_rows", TORCH_BOX(&copy_rows)); }

}  // namespace trunnion_cpu
