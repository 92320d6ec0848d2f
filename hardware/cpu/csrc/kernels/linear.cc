// Products with a weight that is read once, as it lies, for all rows of a block.
//
// Rows of x are prepared as `products.h` says, so that the inner loop is the same everywhere.
#include "kernels_of_isa.h"
#include "products.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int kMaxRows = kManyRegisters ? 8 : 4;

// Weight rows taken at once with `rows` rows of x, so that sums stay in registers.
constexpr int weight_rows(int rows) {
  constexpr int many[] = {0, 8, 8, 6, 6, 4, 4, 3, 3};
  constexpr int few[] = {0, 4, 3, 2, 2};
  return kManyRegisters ? many[rows] : few[rows];
}

template <class Type, int kRows, int kWeights>
TRUNNION_INLINE void step(Floats (&sums)[kWeights][kRows], const typename Type::Block (&weights)[kWeights],
                          const typename Type::X* x, int64_t x_stride) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const auto row = Type::take_x(x + m * x_stride);
#pragma GCC unroll 8
    for (int n = 0; n < kWeights; ++n) sums[n][m] = Type::add(sums[n][m], weights[n], row);
  }
}

// kRows rows of x by kWeights rows of the weight, from feature `first` on.
template <class Type, int kRows, int kWeights>
TRUNNION_INLINE void tile(const LinearArgs& args, int64_t first_row, int64_t first) {
  using Stored = typename Type::Stored;
  const auto* x = static_cast<const typename Type::X*>(args.x) + first_row * args.x_stride;
  const auto* weight = static_cast<const Stored*>(args.weight) + first * args.weight_stride;
  const int64_t whole = args.size - args.size % Type::kStep;
  Floats sums[kWeights][kRows] = {};
  typename Type::Block weights[kWeights];
  for (int64_t k = 0; k < whole; k += Type::kStep) {
#pragma GCC unroll 8
    for (int n = 0; n < kWeights; ++n) {
      const auto* row = weight + n * args.weight_stride + k;
      weights[n] = Type::take(row);
      // With products to compute in between, the processor does not look as far as the next rows by itself.
      if constexpr (kRows > 1) __builtin_prefetch(row + kWeights * args.weight_stride);
    }
    step<Type, kRows, kWeights>(sums, weights, x + k, args.x_stride);
  }
  if (whole < args.size) {
    for (int n = 0; n < kWeights; ++n) {
      weights[n] = Type::take(weight + n * args.weight_stride + whole, args.size - whole);
    }
    step<Type, kRows, kWeights>(sums, weights, x + whole, args.x_stride);
  }
  const auto* bias = static_cast<const Stored*>(args.bias);
  auto* out = static_cast<Stored*>(args.out) + first_row * args.features + first;
#pragma GCC unroll 8
  for (int n = 0; n < kWeights; ++n) {
    const float offset = bias == nullptr ? 0.0f : to_float(bias[first + n]);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) store_one(out + m * args.features + n, sum_of(sums[n][m]) + offset);
  }
}

template <class Type, int kRows>
void rows_of(const LinearArgs& args, int64_t row, int64_t first, int64_t last) {
  constexpr int kWeights = weight_rows(kRows);
  for (; first + kWeights <= last; first += kWeights) tile<Type, kRows, kWeights>(args, row, first);
  for (; first < last; ++first) tile<Type, kRows, 1>(args, row, first);
}

template <class Type>
void rows_at_once(const LinearArgs& args, int64_t rows, int64_t row, int64_t first, int64_t last) {
  switch (rows) {
    case 1: return rows_of<Type, 1>(args, row, first, last);
    case 2: return rows_of<Type, 2>(args, row, first, last);
    case 3: return rows_of<Type, 3>(args, row, first, last);
    case 4: return rows_of<Type, 4>(args, row, first, last);
    default: break;
  }
  if constexpr (kMaxRows == 8) {
    switch (rows) {
      case 5: return rows_of<Type, 5>(args, row, first, last);
      case 6: return rows_of<Type, 6>(args, row, first, last);
      case 7: return rows_of<Type, 7>(args, row, first, last);
      default: return rows_of<Type, 8>(args, row, first, last);
    }
  }
}

// An item is a block of features for a block of rows; the rows are cut evenly.
template <class Type>
void items(const LinearArgs& args, int64_t begin, int64_t end) {
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % across * args.features_per_item;
    const int64_t last = first + args.features_per_item < args.features ? first + args.features_per_item : args.features;
    int64_t row = item / across * args.rows_per_item;
    int64_t left = row + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - row;
    for (int64_t blocks = (left + kMaxRows - 1) / kMaxRows; blocks > 0; --blocks) {
      const int64_t rows = (left + blocks - 1) / blocks;
      rows_at_once<Type>(args, rows, row, first, last);
      row += rows;
      left -= rows;
    }
  }
}

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
