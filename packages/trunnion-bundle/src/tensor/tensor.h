// A dense tensor in the host's memory, and copies of its rows along any batch axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bundle/dtype.h"
#include "tensor/buffer.h"

namespace trunnion::bundle {

struct Tensor {
  Dtype dtype = Dtype::kFp32;
  std::vector<int64_t> dims;
  Buffer data;
  std::vector<std::string> strings = {};  // the elements of dtype BYTES, which has no `data`

  template <typename Element>
  Element* as() {
    return reinterpret_cast<Element*>(data.data());
  }
  template <typename Element>
  const Element* as() const {
    return reinterpret_cast<const Element*>(data.data());
  }
};

// Number of elements. The caller has checked that it does not overflow.
int64_t count_of(const std::vector<int64_t>& dims);
Tensor make_tensor(Dtype dtype, std::vector<int64_t> dims);
// The sizes but that of `axis`; -1 = all.
std::vector<int64_t> dims_without(const std::vector<int64_t>& dims, int axis);

// Copy `rows` rows of `source` from `source_row` to `target` from `target_row`; the other dims of both are equal.
void copy_rows(const Tensor& source, int64_t source_row, Tensor& target, int64_t target_row, int64_t rows, int axis);

}  // namespace trunnion::bundle
