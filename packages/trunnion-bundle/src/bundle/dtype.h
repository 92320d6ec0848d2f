// Element types by their names on the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trunnion_bundle/dtype.h"

namespace trunnion::bundle {

enum class Dtype : int32_t {
  kBool = TRN_DTYPE_BOOL,
  kUint8 = TRN_DTYPE_UINT8,
  kUint16 = TRN_DTYPE_UINT16,
  kUint32 = TRN_DTYPE_UINT32,
  kUint64 = TRN_DTYPE_UINT64,
  kInt8 = TRN_DTYPE_INT8,
  kInt16 = TRN_DTYPE_INT16,
  kInt32 = TRN_DTYPE_INT32,
  kInt64 = TRN_DTYPE_INT64,
  kFp16 = TRN_DTYPE_FLOAT16,
  kBf16 = TRN_DTYPE_BFLOAT16,
  kFp32 = TRN_DTYPE_FLOAT32,
  kFp64 = TRN_DTYPE_FLOAT64,
  kBytes = TRN_DTYPE_BYTES,  // strings; never seen by an engine
};

const char* name_of(Dtype dtype);
// As safetensors says it: F32, I64, ...
std::optional<Dtype> dtype_of_safetensors(std::string_view name);
std::optional<Dtype> dtype_of(std::string_view name);
// All names, for an error that lists the choices.
std::string dtype_choices();
// Bytes of an element; 0 for strings.
int64_t size_of(Dtype dtype);
bool is_integer(Dtype dtype);

// Call `visit` with a value of the C++ type of `dtype`; half precisions and strings have none, and are not visited (false).
template <typename Visit>
bool visit_type(Dtype dtype, Visit visit) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kUint8: visit(uint8_t{}); return true;
    case Dtype::kUint16: visit(uint16_t{}); return true;
    case Dtype::kUint32: visit(uint32_t{}); return true;
    case Dtype::kUint64: visit(uint64_t{}); return true;
    case Dtype::kInt8: visit(int8_t{}); return true;
    case Dtype::kInt16: visit(int16_t{}); return true;
    case Dtype::kInt32: visit(int32_t{}); return true;
    case Dtype::kInt64: visit(int64_t{}); return true;
    case Dtype::kFp32: visit(float{}); return true;
    case Dtype::kFp64: visit(double{}); return true;
    case Dtype::kFp16:
    case Dtype::kBf16:
    case Dtype::kBytes: return false;
  }
  return false;
}

}  // namespace trunnion::bundle
