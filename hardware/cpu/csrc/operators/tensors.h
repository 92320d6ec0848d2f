// What operators need of tensors: checks that name the value, and raw pointers.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>

#include "../kernels/kernels.h"
#include "num_threads.h"
#include "program.h"

namespace trunnion_cpu {

using torch::stable::Tensor;

inline Element element_of(const Tensor& tensor, const char* what) {
  const auto type = tensor.scalar_type();
  if (type == torch::headeronly::ScalarType::Float) return Element::kFloat32;
  STD_TORCH_CHECK(type == torch::headeronly::ScalarType::BFloat16, what, " has dtype ", type,
                  "; choices: float32, bfloat16");
  return Element::kBFloat16;
}

inline int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

// A dense copy, which a program that is recorded would not make again.
inline Tensor dense_copy(const Tensor& tensor) {
  if (Program* program = Program::recording()) program->spoil();
  return torch::stable::contiguous(tensor);
}

// A tensor as rows of its last dimension; where its strides are not those of `RowPlaces`, a copy of it.
struct Rows {
  Tensor tensor;
  int64_t count = 1, inner = 1, inner_stride = 0, outer_stride = 0;

  explicit Rows(const Tensor& given) : tensor(given) {
    STD_TORCH_CHECK(tensor.dim() >= 1, "a tensor without dimensions has no rows");
    if (!find()) {
      tensor = dense_copy(tensor);
      find();
    }
  }

  const void* data() const { return tensor.data_ptr(); }
  RowPlaces places() const { return {data(), inner, inner_stride, outer_stride}; }

  // The distance of all rows, which are copied if they have no single one.
  int64_t at_one_distance() {
    if (count > inner && outer_stride != inner * inner_stride) {
      tensor = dense_copy(tensor);
      find();
    }
    return inner > 1 ? inner_stride : outer_stride;
  }

 private:
  bool find() {
    const int64_t dims = tensor.dim();
    if (tensor.size(dims - 1) > 1 && tensor.stride(dims - 1) != 1) return false;
    count = inner = 1;
    inner_stride = outer_stride = tensor.size(dims - 1);
    bool is_inner = true;
    for (int64_t dim = dims - 2; dim >= 0; --dim) {
      const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
      if (size == 0) {
        count = 0;
        inner = 1;
        return true;
      }
      if (size == 1) continue;
      if (count == 1) {
        inner_stride = stride;
      } else if (is_inner && stride != inner * inner_stride) {
        is_inner = false;
        outer_stride = stride;
      } else if (!is_inner && stride != count / inner * outer_stride) {
        return false;
      }
      count *= size;
      if (is_inner) inner = count;
    }
    if (is_inner) outer_stride = inner * inner_stride;
    return true;
  }
};

// An uninitialised dense tensor of `like`'s dtype; while a program is recorded, in memory that the program keeps.
inline Tensor new_tensor(const Tensor& like, const int64_t* sizes, int64_t dims) {
  const torch::headeronly::IntHeaderOnlyArrayRef shape(sizes, dims);
  Program* program = Program::recording();
  if (program == nullptr) return torch::stable::new_empty(like, shape);
  constexpr int64_t kMost = 8;
  STD_TORCH_CHECK(dims <= kMost, "a tensor of ", dims, " dimensions; at most ", kMost);
  int64_t strides[kMost], count = 1;
  for (int64_t dim = dims - 1; dim >= 0; --dim) {
    strides[dim] = count;
    count *= sizes[dim];
  }
  const size_t bytes = std::max<int64_t>(count, 1) * like.element_size();
  return torch::stable::from_blob(program->results()->take(bytes), shape,
                                  torch::headeronly::IntHeaderOnlyArrayRef(strides, dims), like.device(),
                                  like.scalar_type(),
                                  [arena = program->results()](void* memory) { arena->give_back(memory); });
}

// An uninitialised tensor like `other` whose last dimension is `size`.
inline Tensor like_with_last(const Tensor& other, int64_t size) {
  constexpr int64_t kMost = 8;
  int64_t sizes[kMost];
  const int64_t dims = other.dim();
  STD_TORCH_CHECK(dims <= kMost, "a tensor of ", dims, " dimensions; at most ", kMost);
  for (int64_t dim = 0; dim < dims; ++dim) sizes[dim] = other.size(dim);
  sizes[dims - 1] = size;
  return new_tensor(other, sizes, dims);
}

}  // namespace trunnion_cpu
