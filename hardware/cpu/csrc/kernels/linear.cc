// Products with a weight that is read once, as it lies, for all rows of a block.
//
// Rows of x are prepared as `products.h` says, so that the inner loop is the same everywhere.
#include "kernels_of_isa.h"
#include "tiles.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

template <class Type>
void prepare_rows(const PrepareArgs& args, int64_t first, int64_t last) {
  const int64_t width = prepared_size(args.element, args.size);
  for (int64_t row = first; row < last; ++row) {
    Type::prepare_row(static_cast<const typename Type::Stored*>(args.x) + row * args.x_stride,
                      static_cast<typename Type::X*>(args.out) + row * width, args.size);
  }
}

}  // namespace

int64_t prepared_size(Element element, int64_t size) {
  const int64_t step = element == Element::kFloat32 ? Float32::kStep : Bf16::kStep;
  return (size + step - 1) / step * step;
}

int64_t prepared_bytes(Element element) {
  return element == Element::kFloat32 ? sizeof(Float32::X) : sizeof(Bf16::X);
}

void prepare(const PrepareArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return prepare_rows<Float32>(args, first, last);
  prepare_rows<Bf16>(args, first, last);
}

void linear(const LinearArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return items<Float32>(args, first, last);
  items<Bf16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
