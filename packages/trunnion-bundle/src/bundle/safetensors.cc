#include "bundle/safetensors.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "bundle/json_node.h"

namespace trunnion::bundle {
namespace {

Tensor read_one(const JsonNode& node, std::string_view data) {
  node.expect_keys({"dtype", "shape", "data_offsets"});
  const auto dtype = dtype_of_safetensors(node.at("dtype").string(16));
  if (!dtype) node.at("dtype").fail("a dtype of safetensors that bundles have");
  std::vector<int64_t> dims;
  int64_t size = size_of(*dtype);
  for (const JsonNode& dim : node.at("shape").items(0, 16)) {
    dims.push_back(dim.integer(0, INT64_MAX));
    if (__builtin_mul_overflow(size, dims.back(), &size)) dim.fail("a size that memory could hold");
  }
  const auto offsets = node.at("data_offsets").items(2, 2);
  const int64_t begin = offsets[0].integer(0, std::ssize(data));
  const int64_t end = offsets[1].integer(begin, std::ssize(data));
  if (end - begin != size) node.at("data_offsets").fail(std::to_string(size) + " bytes");
  Tensor tensor = make_tensor(*dtype, std::move(dims));
  if (size > 0) std::memcpy(tensor.data.data(), data.data() + begin, static_cast<size_t>(size));
  return tensor;
}

}  // namespace

std::map<std::string, Tensor> read_safetensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  uint64_t length = 0;
  if (content.size() < sizeof length) throw BundleError(path.string() + " is no safetensors file");
  std::memcpy(&length, content.data(), sizeof length);
  if (length > content.size() - sizeof length) throw BundleError(path.string() + ": its header is longer than the file");
  const nlohmann::json header = parse_strictly(std::string_view(content).substr(sizeof length, length), path.string());
  const std::string_view data = std::string_view(content).substr(sizeof length + length);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, node] : JsonNode(header, path.string()).members(0, 100000)) {
    if (name != "__metadata__") tensors.emplace(name, read_one(node, data));
  }
  return tensors;
}

}  // namespace trunnion::bundle
