// Whether every element of a tensor is one that it may hold.
#pragma once

#include <optional>
#include <string>

#include "bundle/contract.h"
#include "tensor/tensor.h"

namespace trunnion::bundle {

// "has 7 at element 3, expected 0 ... 5" of the first that is outside of `range`, or of a BOOL that is neither; "" if all are right.
std::string wrong_element(const Tensor& tensor, const std::optional<IndexRange>& range);

}  // namespace trunnion::bundle
