#include "bundle/dtype.h"

#include <array>

namespace trunnion::bundle {
namespace {

struct Row {
  Dtype dtype;
  const char* name;
  const char* safetensors;
  int64_t size;
};

constexpr std::array kRows = {
    Row{Dtype::kBool, "BOOL", "BOOL", 1},  Row{Dtype::kUint8, "UINT8", "U8", 1},
    Row{Dtype::kUint16, "UINT16", "U16", 2}, Row{Dtype::kUint32, "UINT32", "U32", 4},
    Row{Dtype::kUint64, "UINT64", "U64", 8}, Row{Dtype::kInt8, "INT8", "I8", 1},
    Row{Dtype::kInt16, "INT16", "I16", 2}, Row{Dtype::kInt32, "INT32", "I32", 4},
    Row{Dtype::kInt64, "INT64", "I64", 8}, Row{Dtype::kFp16, "FP16", "F16", 2},
    Row{Dtype::kBf16, "BF16", "BF16", 2},  Row{Dtype::kFp32, "FP32", "F32", 4},
    Row{Dtype::kFp64, "FP64", "F64", 8},   Row{Dtype::kBytes, "BYTES", "", 0},
};

const Row& row_of(Dtype dtype) {
  // kBool is 1, and the rows are in the order of their values.
  return kRows[static_cast<size_t>(dtype) - 1];
}

}  // namespace

const char* name_of(Dtype dtype) { return row_of(dtype).name; }

int64_t size_of(Dtype dtype) { return row_of(dtype).size; }

std::optional<Dtype> dtype_of(std::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<Dtype> dtype_of_safetensors(std::string_view name) {
  for (const Row& row : kRows) {
    if (!name.empty() && name == row.safetensors) return row.dtype;
  }
  return std::nullopt;
}

std::string dtype_choices() {
  std::string text;
  for (const Row& row : kRows) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

bool is_integer(Dtype dtype) { return dtype >= Dtype::kUint8 && dtype <= Dtype::kInt64; }

}  // namespace trunnion::bundle
