#include "tensor/tensor.h"

#include <cstring>

namespace trunnion::bundle {

int64_t count_of(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

Tensor make_tensor(Dtype dtype, std::vector<int64_t> dims) {
  const int64_t count = count_of(dims);
  Tensor tensor{.dtype = dtype, .dims = std::move(dims), .data = Buffer(static_cast<size_t>(count * size_of(dtype)))};
  if (dtype == Dtype::kBytes) tensor.strings.resize(static_cast<size_t>(count));
  return tensor;
}

std::vector<int64_t> dims_without(const std::vector<int64_t>& dims, int axis) {
  std::vector<int64_t> others;
  for (int i = 0; i < std::ssize(dims); ++i) {
    if (i != axis) others.push_back(dims[static_cast<size_t>(i)]);
  }
  return others;
}

void copy_rows(const Tensor& source, int64_t source_row, Tensor& target, int64_t target_row, int64_t rows, int axis) {
  if (rows == 0) return;
  const auto at = static_cast<size_t>(axis);
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < source.dims.size(); ++i) {
    if (i < at) outer *= source.dims[i];
    if (i > at) inner *= source.dims[i];
  }
  for (int64_t i = 0; i < outer; ++i) {
    const int64_t from = (i * source.dims[at] + source_row) * inner, to = (i * target.dims[at] + target_row) * inner;
    if (source.dtype == Dtype::kBytes) {
      for (int64_t k = 0; k < rows * inner; ++k) {
        target.strings[static_cast<size_t>(to + k)] = source.strings[static_cast<size_t>(from + k)];
      }
      continue;
    }
    const int64_t size = size_of(source.dtype);
    // Empty tensors have no memory to copy from.
    if (inner > 0) std::memcpy(target.data.data() + to * size, source.data.data() + from * size, static_cast<size_t>(rows * inner * size));
  }
}

}  // namespace trunnion::bundle
