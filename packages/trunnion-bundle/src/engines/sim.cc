// The simulated device: sleeps as long as its lowering says, uses no processor, and computes sums of rows or copies.
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engines/exported.h"
#include "trunnion_bundle/engine.h"

namespace {

using nlohmann::json;

struct Result {
  std::string input;
  bool is_echo = false;
  double scale = 1, offset = 0;
};

template <typename Element>
double sum(const void* data, int64_t count) {
  double total = 0;
  const auto* elements = static_cast<const Element*>(data);
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(elements[i]);
  return total;
}

double sum(const trn_engine_tensor& input, const char* data, int64_t count) {
  switch (input.dtype) {
    case TRN_DTYPE_BOOL:
    case TRN_DTYPE_UINT8: return sum<uint8_t>(data, count);
    case TRN_DTYPE_UINT16: return sum<uint16_t>(data, count);
    case TRN_DTYPE_UINT32: return sum<uint32_t>(data, count);
    case TRN_DTYPE_UINT64: return sum<uint64_t>(data, count);
    case TRN_DTYPE_INT8: return sum<int8_t>(data, count);
    case TRN_DTYPE_INT16: return sum<int16_t>(data, count);
    case TRN_DTYPE_INT32: return sum<int32_t>(data, count);
    case TRN_DTYPE_INT64: return sum<int64_t>(data, count);
    case TRN_DTYPE_FLOAT32: return sum<float>(data, count);
    case TRN_DTYPE_FLOAT64: return sum<double>(data, count);
    default: throw std::invalid_argument(std::string(input.name) + ": row_sum takes no half precision");
  }
}

template <typename Element>
void fill(void* data, int64_t count, double value) {
  auto* elements = static_cast<Element*>(data);
  for (int64_t i = 0; i < count; ++i) elements[i] = static_cast<Element>(value);
}

void fill(const trn_engine_tensor& output, char* data, int64_t count, double value) {
  switch (output.dtype) {
    case TRN_DTYPE_INT32: return fill<int32_t>(data, count, value);
    case TRN_DTYPE_INT64: return fill<int64_t>(data, count, value);
    case TRN_DTYPE_FLOAT32: return fill<float>(data, count, value);
    case TRN_DTYPE_FLOAT64: return fill<double>(data, count, value);
    default: throw std::invalid_argument(std::string(output.name) + ": row_sum makes FP32, FP64, INT32 or INT64");
  }
}

int64_t rows_of(const trn_engine_tensor& tensor) { return tensor.num_dims == 0 ? 1 : tensor.dims[0]; }

}  // namespace

struct trn_engine {
  explicit trn_engine(const trn_engine_options& options) {
    const json module = json::parse(options.lowering).at("modules").at(options.module);
    base_us = module.at("base_us").get<int64_t>();
    row_us = module.at("row_us").get<int64_t>();
    for (const json& output : module.at("outputs")) {
      Result result{.input = output.at("input").get<std::string>(), .is_echo = output.at("function") == "echo"};
      if (!result.is_echo) {
        result.scale = output.at("scale").get<double>();
        result.offset = output.at("offset").get<double>();
      }
      results.push_back(std::move(result));
    }
  }

  void infer(int32_t, const trn_engine_tensor* inputs, int32_t num_inputs, const trn_engine_tensor* outputs,
             int32_t num_outputs) const {
    if (num_outputs != std::ssize(results)) throw std::invalid_argument("the lowering has another number of outputs");
    for (int32_t i = 0; i < num_outputs; ++i) {
      const Result& result = results[static_cast<size_t>(i)];
      compute(result, find(inputs, num_inputs, result.input), outputs[i]);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(base_us + rows_of(inputs[0]) * row_us));
  }

  static const trn_engine_tensor& find(const trn_engine_tensor* inputs, int32_t count, const std::string& name) {
    for (int32_t i = 0; i < count; ++i) {
      if (name == inputs[i].name) return inputs[i];
    }
    throw std::invalid_argument("the module has no input " + name);
  }

  static void compute(const Result& result, const trn_engine_tensor& input, const trn_engine_tensor& output) {
    if (result.is_echo) {
      if (input.num_bytes != output.num_bytes) throw std::invalid_argument("echo changes the size of " + result.input);
      std::memcpy(output.data, input.data, input.num_bytes);
      return;
    }
    const int64_t rows = rows_of(input);
    int64_t columns = 1, copies = 1;
    for (int32_t i = 1; i < input.num_dims; ++i) columns *= input.dims[i];
    for (int32_t i = 1; i < output.num_dims; ++i) copies *= output.dims[i];
    for (int64_t row = 0; row < rows; ++row) {
      const auto stride = static_cast<int64_t>(input.num_bytes) / rows;
      const double total = sum(input, static_cast<const char*>(input.data) + row * stride, columns);
      const auto out_stride = static_cast<int64_t>(output.num_bytes) / rows;
      fill(output, static_cast<char*>(output.data) + row * out_stride, copies, result.offset + result.scale * total);
    }
  }

  int64_t base_us = 0, row_us = 0;
  std::vector<Result> results;
};

namespace {

constexpr trn_engine_api kApi = trunnion::bundle::engine_api<trn_engine>("sim", 1);

}  // namespace

extern "C" const trn_engine_api* trn_engine_get_api(void) { return &kApi; }
