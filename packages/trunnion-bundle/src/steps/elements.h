// Single elements of tensors of any numeric dtype, exactly.
#pragma once

#include "tensor/tensor.h"

namespace trunnion::bundle {

// Holds every value of every numeric dtype.
using Scalar = long double;

Scalar load(const Tensor& tensor, int64_t index);
// To integers toward zero and saturating, NaN gives 0; to BOOL `value != 0`; to floats the nearest, ties to even.
void store(Tensor& tensor, int64_t index, Scalar value);

}  // namespace trunnion::bundle
