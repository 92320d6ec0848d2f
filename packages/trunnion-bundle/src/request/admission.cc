#include "request/admission.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "steps/element_checks.h"

namespace trunnion::bundle {
namespace {

std::string text_of(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

[[noreturn]] void refuse(const TensorSpec& spec, const std::string& problem) {
  throw InvalidRequest("input \"" + spec.name + "\" " + problem);
}

const WireTensor& find_input(std::span<const WireTensor> inputs, const TensorSpec& spec) {
  const WireTensor* found = nullptr;
  for (const WireTensor& input : inputs) {
    if (input.name != spec.name) continue;
    if (found != nullptr) refuse(spec, "comes twice");
    found = &input;
  }
  if (found == nullptr) refuse(spec, "is missing");
  return *found;
}

void check_shape(const TensorSpec& spec, const WireTensor& given) {
  if (given.datatype != name_of(spec.dtype)) {
    refuse(spec, "has datatype " + std::string(given.datatype).substr(0, 32) + ", expected " + name_of(spec.dtype));
  }
  const std::string shape = "has shape " + text_of(given.shape) + ", expected " + text_of(spec.dims);
  if (given.shape.size() != spec.dims.size()) refuse(spec, shape);
  for (size_t i = 0; i < spec.dims.size(); ++i) {
    if (given.shape[i] < 0 || (spec.dims[i].size > 0 && given.shape[i] != spec.dims[i].size)) refuse(spec, shape);
  }
}

uint64_t checked_count(const TensorSpec& spec, const WireTensor& given) {
  uint64_t count = 1;
  const auto element = static_cast<uint64_t>(std::max<int64_t>(1, size_of(spec.dtype)));
  uint64_t size = element;
  for (const int64_t dim : given.shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count) || __builtin_mul_overflow(count, element, &size)) {
      refuse(spec, "has shape " + text_of(given.shape) + ", which has more bytes than 64 bits can count");
    }
  }
  return count;
}

std::vector<std::string> read_strings(const TensorSpec& spec, const WireTensor& given, uint64_t count) {
  std::vector<std::string> strings;
  if (given.has_strings) {
    strings.assign(given.strings.begin(), given.strings.end());
  } else {
    std::string_view rest = given.bytes;
    while (!rest.empty()) {
      uint32_t length = 0;
      if (rest.size() < sizeof length) refuse(spec, "ends within the length of an element");
      std::memcpy(&length, rest.data(), sizeof length);
      rest.remove_prefix(sizeof length);
      if (length > rest.size()) refuse(spec, "has an element of " + std::to_string(length) + " bytes where " + std::to_string(rest.size()) + " are left");
      strings.emplace_back(rest.substr(0, length));
      rest.remove_prefix(length);
    }
  }
  if (strings.size() != count) {
    refuse(spec, "has " + std::to_string(strings.size()) + " elements, its shape " + text_of(given.shape) + " has " + std::to_string(count));
  }
  return strings;
}

Tensor read_tensor_data(const TensorSpec& spec, const WireTensor& given, uint64_t count) {
  if (spec.dtype == Dtype::kBytes) {
    Tensor tensor{.dtype = spec.dtype, .dims = given.shape, .data = {}, .strings = read_strings(spec, given, count)};
    return tensor;
  }
  const uint64_t size = count * static_cast<uint64_t>(size_of(spec.dtype));
  if (given.bytes.size() != size) {
    refuse(spec, "has " + std::to_string(given.bytes.size()) + " bytes, its shape " + text_of(given.shape) + " of " +
                     name_of(spec.dtype) + " has " + std::to_string(size));
  }
  // Only now is it known that the client sent as much as is allocated.
  Tensor tensor = make_tensor(spec.dtype, given.shape);
  if (size > 0) std::memcpy(tensor.data.data(), given.bytes.data(), size);
  return tensor;
}

// The batch and the symbols of one request, each of one size.
class Sizes {
 public:
  explicit Sizes(const SignatureSpec& signature) : signature_(signature) {}

  void bind(const TensorSpec& spec, const WireTensor& given) {
    for (size_t i = 0; i < spec.dims.size(); ++i) {
      const Dim& dim = spec.dims[i];
      if (dim.size > 0) continue;
      const int64_t size = given.shape[i];
      const Bounds bounds = dim.is_batch() ? Bounds{} : signature_.symbols.at(dim.symbol);
      if (size < bounds.min || size > bounds.max) {
        refuse(spec, "has " + std::to_string(size) + " for " + dim.symbol + ", expected " + std::to_string(bounds.min) + " ... " +
                         std::to_string(bounds.max));
      }
      const auto [found, is_new] = sizes_.emplace(dim.symbol, std::pair{size, &spec});
      if (!is_new && found->second.first != size) {
        refuse(spec, "has " + std::to_string(size) + " for " + dim.symbol + ", input \"" + found->second.second->name + "\" has " +
                         std::to_string(found->second.first));
      }
    }
  }
  int64_t rows() const {
    const auto found = sizes_.find("batch");
    return found == sizes_.end() ? 1 : found->second.first;
  }

 private:
  const SignatureSpec& signature_;
  std::map<std::string, std::pair<int64_t, const TensorSpec*>> sizes_;
};

uint64_t shape_key(const Program& program, const Values& values) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const Slot& slot : program.into_batch()) {
    for (const int64_t dim : dims_without(values[static_cast<size_t>(slot.index)].dims, slot.batch_axis)) {
      hash = (hash ^ static_cast<uint64_t>(dim)) * 0x100000001B3U;
    }
  }
  return hash;
}

}  // namespace

void admit(const SignatureSpec& signature, std::span<const WireTensor> inputs, const Program& program, Request& request) {
  for (const WireTensor& input : inputs) {
    const auto is_it = [&](const TensorSpec& spec) { return spec.name == input.name; };
    if (std::any_of(signature.inputs.begin(), signature.inputs.end(), is_it)) continue;
    std::string names;
    for (const TensorSpec& spec : signature.inputs) names += (names.empty() ? "" : ", ") + spec.name;
    throw InvalidRequest("there is no input \"" + std::string(input.name).substr(0, 64) + "\"; inputs: " + names);
  }
  Sizes sizes(signature);
  request.values.clear();
  request.values.resize(program.num_slots());
  std::vector<const WireTensor*> given;
  std::vector<uint64_t> counts;
  for (const TensorSpec& spec : signature.inputs) {
    given.push_back(&find_input(inputs, spec));
    check_shape(spec, *given.back());
    counts.push_back(checked_count(spec, *given.back()));
  }
  // All sizes before all elements: a wrong batch is a clearer error than the bytes that do not fit it.
  for (size_t i = 0; i < given.size(); ++i) sizes.bind(signature.inputs[i], *given[i]);
  for (size_t i = 0; i < given.size(); ++i) {
    const TensorSpec& spec = signature.inputs[i];
    Tensor tensor = read_tensor_data(spec, *given[i], counts[i]);
    if (const std::string problem = wrong_element(tensor, spec.index_range); !problem.empty()) refuse(spec, problem);
    request.values[i] = std::move(tensor);
  }
  request.rows = sizes.rows();
  program.run_before_queue(request.values);
  request.shape = shape_key(program, request.values);
}

}  // namespace trunnion::bundle
