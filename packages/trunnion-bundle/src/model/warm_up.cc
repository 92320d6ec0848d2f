// Warm-up: every allowed size of every runner, and how long it takes.
#include <algorithm>

#include "bundle/safetensors.h"
#include "model/model.h"

namespace trunnion::bundle {
namespace {

// After the first run, which may compile or allocate.
constexpr int kTimedRuns = 3;
constexpr Micros kSlow = 500'000;

// The rows of `tensor`, repeated in turn to `rows`.
Tensor tiled(const Tensor& tensor, int axis, int64_t rows) {
  std::vector<int64_t> dims = tensor.dims;
  if (axis >= 0) dims[static_cast<size_t>(axis)] = rows;
  Tensor result = make_tensor(tensor.dtype, std::move(dims));
  const int64_t given = axis < 0 ? 1 : tensor.dims[static_cast<size_t>(axis)];
  if (axis < 0) {
    if (result.data.size() > 0) std::copy_n(tensor.data.data(), tensor.data.size(), result.data.data());
    result.strings = tensor.strings;
    return result;
  }
  for (int64_t row = 0; row < rows; ++row) copy_rows(tensor, row % given, result, row, 1, axis);
  return result;
}

// A BYTES tensor, of its bytes and where each element starts.
Tensor read_strings(const TensorSpec& spec, const Tensor& bytes, const Tensor& offsets) {
  const auto count = count_of(offsets.dims) - 1;
  if (offsets.dtype != Dtype::kInt64 || bytes.dtype != Dtype::kUint8 || count < 0) throw BundleError("input." + spec.name + ": wrong offsets");
  int64_t others = 1;
  std::vector<int64_t> dims;
  for (const Dim& dim : spec.dims) {
    dims.push_back(dim.size);
    if (dim.size > 0) others *= dim.size;
  }
  if (spec.batch_axis >= 0) dims[static_cast<size_t>(spec.batch_axis)] = count / others;
  Tensor tensor{.dtype = Dtype::kBytes, .dims = dims, .data = {}};
  const auto* starts = offsets.as<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (starts[i] < 0 || starts[i + 1] < starts[i] || starts[i + 1] > count_of(bytes.dims)) throw BundleError("input." + spec.name + ": wrong offsets");
    tensor.strings.emplace_back(bytes.as<char>() + starts[i], static_cast<size_t>(starts[i + 1] - starts[i]));
  }
  return tensor;
}

std::vector<Tensor> read_inputs(const SignatureSpec& signature, const std::filesystem::path& path) {
  auto found = read_safetensors(path);
  const auto take = [&](const std::string& key) -> Tensor& {
    const auto entry = found.find(key);
    if (entry == found.end()) throw BundleError(path.string() + " has no " + key);
    return entry->second;
  };
  std::vector<Tensor> tensors;
  for (const TensorSpec& spec : signature.inputs) {
    const std::string key = "input." + spec.name;
    tensors.push_back(spec.dtype == Dtype::kBytes ? read_strings(spec, take(key + ".bytes"), take(key + ".offsets"))
                                                  : std::move(take(key)));
    const Tensor& tensor = tensors.back();
    const bool is_empty = spec.batch_axis >= 0 && std::ssize(tensor.dims) > spec.batch_axis &&
                          tensor.dims[static_cast<size_t>(spec.batch_axis)] == 0;
    if (std::ssize(tensor.dims) != std::ssize(spec.dims) || is_empty) throw BundleError(path.string() + ": " + key + " has other dims than the signature");
  }
  return tensors;
}

// A request of `rows` rows, admitted as one that came over the wire.
RequestPtr make_request(const SignatureSpec& signature, const Program& program, const std::vector<Tensor>& tensors, int64_t rows) {
  std::vector<Tensor> sized;
  std::vector<WireTensor> wire;
  for (size_t i = 0; i < tensors.size(); ++i) sized.push_back(tiled(tensors[i], signature.inputs[i].batch_axis, rows));
  for (size_t i = 0; i < sized.size(); ++i) {
    const Tensor& tensor = sized[i];
    WireTensor view{.name = signature.inputs[i].name, .datatype = name_of(tensor.dtype), .shape = tensor.dims,
                    .bytes = {tensor.as<char>(), tensor.data.size()}};
    view.has_strings = tensor.dtype == Dtype::kBytes;
    view.strings.assign(tensor.strings.begin(), tensor.strings.end());
    wire.push_back(std::move(view));
  }
  auto request = std::make_shared<Request>();
  admit(signature, wire, program, *request);
  request->rows_left = request->rows;
  return request;
}

}  // namespace

std::vector<Micros> warm_up(const SignatureSpec& signature, const Program& program, ModelExecutor& executor,
                            const Clock& clock, const std::filesystem::path& folder) {
  std::vector<Micros> latencies;
  for (const int64_t size : signature.batching.options.allowed) {
    // Of the slowest of the files, whose sizes may differ.
    Micros slowest = 0;
    for (const std::string& path : signature.warmup) {
      Micros least = kNever;
      const std::vector<Tensor> tensors = read_inputs(signature, folder / path);
      for (int runner = 0; runner < signature.batching.options.num_runners; ++runner) {
        Micros took = 0;
        for (int run = 0; run <= kTimedRuns && took < kSlow; ++run) {
          // Only the first runner is timed.
          if (runner > 0 && run > 0) break;
          const RequestPtr request = make_request(signature, program, tensors, size);
          Answer answer{Code::kFault, "no answer"};
          request->done = [&answer](const Answer& given) { answer = given; };
          const Micros start = clock.now();
          const Batch batch{.runner = runner, .shape = request->shape, .size = size, .rows = request->rows};
          const auto delivery = executor.execute(batch, {BatchPart{request, 0, request->rows}});
          took = clock.now() - start;
          delivery();
          if (answer.code != Code::kOk) throw BundleError("warm-up with " + path + " failed: " + answer.message);
          if (runner == 0 && (run > 0 || took >= kSlow)) least = std::min(least, took);
        }
      }
      slowest = std::max(slowest, least);
    }
    latencies.push_back(slowest);
  }
  return latencies;
}

}  // namespace trunnion::bundle
