// A product with a row-major weight in tiles: a few weight rows by a few rows of x, whose sums stay in registers.
//
// A Type says how weights and prepared rows are taken and multiplied, and what a sum amounts to.
#pragma once

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
TRUNNION_INLINE void step(typename Type::Sum (&sums)[kWeights][kRows], const typename Type::Block (&weights)[kWeights],
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
  typename Type::Sum sums[kWeights][kRows] = {};
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
  using Out = typename Type::Out;
  const auto* bias = static_cast<const Out*>(args.bias);
  auto* out = static_cast<Out*>(args.out) + first_row * args.features + first;
#pragma GCC unroll 8
  for (int n = 0; n < kWeights; ++n) {
    const float offset = bias == nullptr ? 0.0f : to_float(bias[first + n]);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      store_one(out + m * args.features + n, Type::total(sums[n][m], args, first_row + m, first + n) + offset);
    }
  }
}

constexpr int kSums = 4;                           // of one row by one row of the weight, so that none waits for the last
constexpr int64_t kBytesAhead = int64_t{4} << 10;  // of one row's products: the processor's own reach is shorter

// One row of x: the weight is read from its first byte to its last, which is what memory is fastest at.
template <class Type>
void one_row(const LinearArgs& args, int64_t row, int64_t first, int64_t last) {
  using Stored = typename Type::Stored;
  using Out = typename Type::Out;
  const auto* x = static_cast<const typename Type::X*>(args.x) + row * args.x_stride;
  const auto* weight = static_cast<const Stored*>(args.weight) + first * args.weight_stride;
  const auto* bias = static_cast<const Out*>(args.bias);
  auto* out = static_cast<Out*>(args.out) + row * args.features;
  const int64_t whole = args.size - args.size % Type::kStep;
  for (int64_t n = first; n < last; ++n, weight += args.weight_stride) {
    typename Type::Sum sums[kSums] = {};
    int64_t k = 0;
    for (; k + kSums * Type::kStep <= whole; k += kSums * Type::kStep) {
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i) {
        const int64_t place = k + i * Type::kStep;
        __builtin_prefetch(reinterpret_cast<const char*>(weight + place) + kBytesAhead);
        sums[i] = Type::add(sums[i], Type::take(weight + place), Type::take_x(x + place));
      }
    }
    for (; k < whole; k += Type::kStep) sums[0] = Type::add(sums[0], Type::take(weight + k), Type::take_x(x + k));
    if (k < args.size) sums[1] = Type::add(sums[1], Type::take(weight + k, args.size - k), Type::take_x(x + k));
    const float offset = bias == nullptr ? 0.0f : to_float(bias[n]);
    store_one(out + n, Type::total((sums[0] + sums[1]) + (sums[2] + sums[3]), args, row, n) + offset);
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
    case 1: return one_row<Type>(args, row, first, last);
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

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
