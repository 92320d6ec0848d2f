#include "steps/element_checks.h"

#include <type_traits>
#include <utility>

namespace trunnion::bundle {
namespace {

std::string problem_of(const std::string& value, size_t element, int64_t min, int64_t max) {
  const std::string limits = std::to_string(min) + (max == min + 1 ? " or " : " ... ") + std::to_string(max);
  return "has " + value + " at element " + std::to_string(element) + ", expected " + limits;
}

// One bound, or one per position of the last axis.
template <typename Element>
std::string outside(const Element* elements, size_t count, const IndexRange& range) {
  const auto num_bounds = range.below.size();
  for (size_t i = 0; i < count; ++i) {
    const int64_t below = range.below[num_bounds == 1 ? 0 : i % num_bounds];
    bool inside = false;
    if constexpr (std::is_integral_v<Element>) {
      inside = std::cmp_greater_equal(elements[i], range.min) && std::cmp_less(elements[i], below);
    }
    if (!inside) return problem_of(std::to_string(elements[i]), i, range.min, below - 1);
  }
  return "";
}

}  // namespace

std::string wrong_element(const Tensor& tensor, const std::optional<IndexRange>& range) {
  if (tensor.dtype == Dtype::kBytes) return "";
  const auto count = static_cast<size_t>(count_of(tensor.dims));
  std::string problem;
  if (range) {
    visit_type(tensor.dtype, [&](auto zero) { problem = outside(tensor.as<decltype(zero)>(), count, *range); });
  } else if (tensor.dtype == Dtype::kBool) {
    problem = outside(tensor.as<uint8_t>(), count, IndexRange{0, {2}});
  }
  return problem;
}

}  // namespace trunnion::bundle
