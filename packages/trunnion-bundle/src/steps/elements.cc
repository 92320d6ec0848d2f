#include "steps/elements.h"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace trunnion::bundle {
namespace {

struct HalfFormat {
  int mantissa_bits, min_exponent, max_exponent;
};
constexpr HalfFormat kFp16{10, -14, 15};
constexpr HalfFormat kBf16{7, -126, 127};

float half_to_float(uint16_t bits, const HalfFormat& format) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int power = (exponent == 0 ? 1 : exponent) - 1 + format.min_exponent - format.mantissa_bits;
  return sign * std::ldexp(static_cast<float>(hidden + mantissa), power);
}

uint16_t to_half(Scalar value, const HalfFormat& format) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int infinity = ((1 << exponent_bits) - 1) << format.mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1 << (format.mantissa_bits - 1));
  value = std::fabs(value);
  if (value == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  int exponent = std::max(std::ilogb(value), format.min_exponent);
  // rint rounds ties to even; a carry moves into the exponent by itself.
  const auto mantissa = static_cast<int64_t>(std::rint(std::ldexp(value, format.mantissa_bits - exponent)));
  const int64_t biased = exponent - format.min_exponent;
  const int64_t bits = (biased << format.mantissa_bits) + mantissa;
  return static_cast<uint16_t>(sign | (bits >= infinity || exponent > format.max_exponent ? infinity : bits));
}

template <typename Integer>
Integer saturated(Scalar value) {
  if (std::isnan(value)) return 0;
  const Scalar low = std::numeric_limits<Integer>::min(), high = std::numeric_limits<Integer>::max();
  if (value <= low) return std::numeric_limits<Integer>::min();
  if (value >= high) return std::numeric_limits<Integer>::max();
  return static_cast<Integer>(value);
}

}  // namespace

Scalar load(const Tensor& tensor, int64_t index) {
  const auto at = static_cast<size_t>(index);
  if (tensor.dtype == Dtype::kFp16) return half_to_float(tensor.as<uint16_t>()[at], kFp16);
  if (tensor.dtype == Dtype::kBf16) return half_to_float(tensor.as<uint16_t>()[at], kBf16);
  Scalar value = 0;
  const bool found = visit_type(tensor.dtype, [&](auto zero) { value = tensor.as<decltype(zero)>()[at]; });
  if (!found) throw std::logic_error("strings have no number");
  return value;
}

void store(Tensor& tensor, int64_t index, Scalar value) {
  const auto at = static_cast<size_t>(index);
  switch (tensor.dtype) {
    case Dtype::kFp16: tensor.as<uint16_t>()[at] = to_half(value, kFp16); return;
    case Dtype::kBf16: tensor.as<uint16_t>()[at] = to_half(value, kBf16); return;
    case Dtype::kBool: tensor.as<uint8_t>()[at] = value != 0; return;
    default: break;
  }
  const bool found = visit_type(tensor.dtype, [&](auto zero) {
    using Element = decltype(zero);
    if constexpr (std::is_integral_v<Element>) {
      tensor.as<Element>()[at] = saturated<Element>(value);
    } else {
      tensor.as<Element>()[at] = static_cast<Element>(value);
    }
  });
  if (!found) throw std::logic_error("strings have no number");
}

}  // namespace trunnion::bundle
