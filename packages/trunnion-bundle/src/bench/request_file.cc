#include "bench/request_file.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "bundle/safetensors.h"

namespace trunnion::bundle {
namespace {

constexpr double kCloseEnough = 1e-3;

Tensor tiled(const Tensor& tensor, int64_t rows) {
  std::vector<int64_t> dims = tensor.dims;
  if (dims.empty()) throw std::runtime_error("a tensor of the request has no axis for rows");
  dims[0] = rows;
  Tensor result = make_tensor(tensor.dtype, dims);
  for (int64_t row = 0; row < rows; ++row) copy_rows(tensor, row % tensor.dims[0], result, row, 1, 0);
  return result;
}

template <typename Element>
bool is_close(const char* found, const char* wanted, size_t size) {
  for (size_t at = 0; at < size; at += sizeof(Element)) {
    Element a, b;
    std::memcpy(&a, found + at, sizeof a);
    std::memcpy(&b, wanted + at, sizeof b);
    if (!(std::abs(static_cast<double>(a - b)) <= kCloseEnough * (1 + std::abs(static_cast<double>(b))))) return false;
  }
  return true;
}

}  // namespace

RequestFile::RequestFile(const std::filesystem::path& path) {
  for (auto& [name, tensor] : read_safetensors(path)) {
    if (name.rfind("input.", 0) == 0) inputs_.emplace(name.substr(6), std::move(tensor));
    if (name.rfind("output.", 0) == 0) outputs_.emplace(name.substr(7), std::move(tensor));
  }
  if (inputs_.empty()) throw std::runtime_error(path.string() + " has no input.NAME");
}

inference::ModelInferRequest RequestFile::request(const std::string& model, int64_t rows) const {
  inference::ModelInferRequest message;
  message.set_model_name(model);
  for (const auto& [name, tensor] : inputs_) {
    const Tensor sized = tiled(tensor, rows);
    auto* input = message.add_inputs();
    input->set_name(name);
    input->set_datatype(name_of(sized.dtype));
    for (const int64_t dim : sized.dims) input->add_shape(dim);
    message.add_raw_input_contents(sized.data.data(), sized.data.size());
  }
  return message;
}

void RequestFile::check(const inference::ModelInferResponse& response, int64_t rows) const {
  for (const auto& [name, tensor] : outputs_) {
    const Tensor wanted = tiled(tensor, rows);
    bool is_right = false;
    for (int i = 0; i < response.outputs_size() && i < response.raw_output_contents_size(); ++i) {
      if (response.outputs(i).name() != name) continue;
      const std::string& found = response.raw_output_contents(i);
      if (found.size() != wanted.data.size()) break;
      const auto* other = wanted.as<char>();
      is_right = wanted.dtype == Dtype::kFp32   ? is_close<float>(found.data(), other, found.size())
                 : wanted.dtype == Dtype::kFp64 ? is_close<double>(found.data(), other, found.size())
                                                : std::memcmp(found.data(), other, found.size()) == 0;
    }
    if (!is_right) throw std::runtime_error("output " + name + " of " + std::to_string(rows) + " rows is not the golden one");
  }
}

}  // namespace trunnion::bundle
