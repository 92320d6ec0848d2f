// Products with a weight that lies row-major: read once, as it lies, for a few rows; packed on the way for many.
//
// Rows of x are prepared as `products.h` says, so that the inner loop is the same everywhere.
#include "kernels_of_isa.h"
#include "panels.h"
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

#if defined(__AVX512BF16__)
// Below, reading the weight once as it lies is faster than packing it.
constexpr int64_t kRowsForPanels = 64;
bool takes_panels(Element element, int64_t rows) { return element == Element::kBFloat16 && rows >= kRowsForPanels; }
#endif

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

ItemShape linear_item([[maybe_unused]] Element element, [[maybe_unused]] int64_t rows) {
#if defined(__AVX512BF16__)
  if (takes_panels(element, rows)) return panel_item(rows);
#endif
  return {kItemFeatures, kItemRows};
}

void linear(const LinearArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return items<Float32>(args, first, last);
#if defined(__AVX512BF16__)
  if (takes_panels(args.element, args.rows)) return panel_items(args, DenseRows{args}, first, last);
#endif
  items<Bf16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
