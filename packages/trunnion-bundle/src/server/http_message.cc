#include "server/http_message.h"

#include <cstring>
#include <type_traits>

#include "steps/elements.h"

namespace trunnion::bundle {
namespace {

using nlohmann::json;

const json& at(const json& object, const char* key, const char* where) {
  if (!object.is_object() || !object.contains(key)) throw InvalidRequest(std::string(where) + " has no \"" + key + "\"");
  return object.at(key);
}

std::string_view text_at(const json& object, const char* key, const char* where) {
  const json& value = at(object, key, where);
  if (!value.is_string()) throw InvalidRequest(std::string(where) + ": \"" + key + "\" is no string");
  return value.get_ref<const std::string&>();
}

int64_t integer(const json& value, const std::string& what) {
  const bool is_large = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!value.is_number_integer() || is_large) throw InvalidRequest(what + " is no integer of 64 bits");
  return value.get<int64_t>();
}

// Leaves of nested arrays, in order.
void flatten(const json& data, std::vector<const json*>& leaves, int depth) {
  if (!data.is_array()) {
    leaves.push_back(&data);
    return;
  }
  if (depth > 16) throw InvalidRequest("data is nested deeper than 16 arrays");
  for (const json& item : data) flatten(item, leaves, depth + 1);
}

template <typename Element>
Element element_of(const json& leaf, const std::string& name) {
  if constexpr (std::is_floating_point_v<Element>) {
    if (leaf.is_number()) return static_cast<Element>(leaf.get<double>());
  } else {
    if (leaf.is_boolean()) return static_cast<Element>(leaf.get<bool>());
    if (leaf.is_number_unsigned() && std::in_range<Element>(leaf.get<uint64_t>())) return static_cast<Element>(leaf.get<uint64_t>());
    if (leaf.is_number_integer() && !leaf.is_number_unsigned() && std::in_range<Element>(leaf.get<int64_t>())) {
      return static_cast<Element>(leaf.get<int64_t>());
    }
  }
  throw InvalidRequest("input \"" + name + "\" has an element that its datatype cannot hold");
}

void read_json_data(const json& data, WireTensor& tensor, std::deque<std::string>& storage) {
  const auto dtype = dtype_of(tensor.datatype);
  const std::string name(tensor.name);
  // An unknown datatype is the admission's to refuse, with the one that is expected.
  if (!dtype) return;
  std::vector<const json*> leaves;
  flatten(data, leaves, 0);
  if (*dtype == Dtype::kBytes) {
    tensor.has_strings = true;
    for (const json* leaf : leaves) {
      if (!leaf->is_string()) throw InvalidRequest("input \"" + name + "\" has an element that is no string");
      tensor.strings.push_back(storage.emplace_back(leaf->get<std::string>()));
    }
    return;
  }
  const bool found = visit_type(*dtype, [&](auto zero) {
    using Element = decltype(zero);
    std::string bytes(leaves.size() * sizeof(Element), '\0');
    for (size_t i = 0; i < leaves.size(); ++i) {
      const Element element = element_of<Element>(*leaves[i], name);
      std::memcpy(bytes.data() + i * sizeof(Element), &element, sizeof(Element));
    }
    tensor.bytes = storage.emplace_back(std::move(bytes));
  });
  if (!found) throw InvalidRequest("input \"" + name + "\" is " + std::string(tensor.datatype) + ", which only binary data carries");
}

WireTensor read_input(const json& given, std::string_view& binary, std::deque<std::string>& storage) {
  WireTensor tensor{.name = text_at(given, "name", "an input"), .datatype = text_at(given, "datatype", "an input"), .shape = {}};
  const json& shape = at(given, "shape", "an input");
  if (!shape.is_array()) throw InvalidRequest("a shape is no array");
  for (const json& dim : shape) tensor.shape.push_back(integer(dim, "a size of a shape"));
  const json parameters = given.value("parameters", json::object());
  if (!parameters.is_object()) throw InvalidRequest("parameters are no object");
  for (const auto& [key, value] : parameters.items()) {
    if (key != "binary_data_size") throw InvalidRequest("there is no parameter \"" + key.substr(0, 64) + "\" of an input; parameters: binary_data_size");
  }
  if (!parameters.contains("binary_data_size")) {
    read_json_data(at(given, "data", "an input"), tensor, storage);
    return tensor;
  }
  if (given.contains("data")) throw InvalidRequest("an input has data beside binary_data_size");
  const int64_t size = integer(parameters.at("binary_data_size"), "binary_data_size");
  if (size < 0 || static_cast<uint64_t>(size) > binary.size()) {
    throw InvalidRequest("binary_data_size is " + std::to_string(size) + " where " + std::to_string(binary.size()) + " bytes are left");
  }
  tensor.bytes = binary.substr(0, static_cast<size_t>(size));
  binary.remove_prefix(static_cast<size_t>(size));
  return tensor;
}

void read_parameters(const json& parameters, HttpInfer& read) {
  if (!parameters.is_object()) throw InvalidRequest("parameters are no object");
  for (const auto& [key, value] : parameters.items()) {
    if (key == "signature" && value.is_string()) {
      read.call.signature = value.get<std::string>();
    } else if (key == "priority") {
      read.call.options.priority = integer(value, key);
    } else if (key == "timeout") {
      read.call.options.timeout = integer(value, key);
    } else if (key == "binary_data_output" && value.is_boolean()) {
      read.all_binary = value.get<bool>();
    } else {
      throw InvalidRequest("parameter \"" + key.substr(0, 64) + "\" is none, or of another type; parameters: binary_data_output, priority, signature, timeout");
    }
  }
}

void read_outputs(const json& outputs, HttpInfer& read) {
  if (!outputs.is_array()) throw InvalidRequest("outputs are no array");
  for (const json& output : outputs) {
    read.call.outputs.emplace_back(text_at(output, "name", "an output"));
    const json parameters = output.value("parameters", json::object());
    bool is_binary = read.all_binary;
    if (!parameters.is_object()) throw InvalidRequest("parameters are no object");
    for (const auto& [key, value] : parameters.items()) {
      if (key != "binary_data" || !value.is_boolean()) throw InvalidRequest("there is no parameter \"" + key.substr(0, 64) + "\" of an output; parameters: binary_data");
      is_binary = value.get<bool>();
    }
    read.binary_outputs.push_back(is_binary);
  }
}

json data_of(const Tensor& tensor) {
  json data = json::array();
  const int64_t count = count_of(tensor.dims);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    if (tensor.dtype == Dtype::kBool) {
      data.push_back(tensor.as<uint8_t>()[at] != 0);
      continue;
    }
    const bool found = visit_type(tensor.dtype, [&](auto zero) { data.push_back(tensor.as<decltype(zero)>()[at]); });
    if (!found) data.push_back(static_cast<double>(load(tensor, i)));
  }
  return data;
}

}  // namespace

HttpInfer read_http_request(std::string_view body, size_t json_size) {
  if (json_size > body.size()) throw InvalidRequest("Inference-Header-Content-Length is larger than the body");
  HttpInfer read;
  try {
    // Kept by `storage`, since tensors view names of it.
    const json given = json::parse(body.substr(0, json_size));
    read.id = given.value("id", "");
    read_parameters(given.value("parameters", json::object()), read);
    if (given.contains("outputs")) read_outputs(given.at("outputs"), read);
    const json& inputs = at(given, "inputs", "the request");
    if (!inputs.is_array()) throw InvalidRequest("inputs are no array");
    std::string_view binary = body.substr(json_size);
    for (const json& input : inputs) {
      WireTensor tensor = read_input(input, binary, read.storage);
      tensor.name = read.storage.emplace_back(tensor.name);
      tensor.datatype = read.storage.emplace_back(tensor.datatype);
      read.inputs.push_back(std::move(tensor));
    }
    if (!binary.empty()) throw InvalidRequest(std::to_string(binary.size()) + " bytes follow the last input");
  } catch (const json::exception& error) {
    throw InvalidRequest(std::string("the body is not as it should be: ") + error.what());
  }
  return read;
}

HttpBody write_http_response(const Reply& reply, const HttpInfer& asked, const std::string& model) {
  json outputs = json::array();
  std::string binary;
  HttpBody body;
  for (size_t i = 0; i < reply.outputs.size(); ++i) {
    const size_t position = reply.outputs[i];
    const TensorSpec& spec = reply.signature->spec().outputs[position];
    const Tensor& tensor = reply.request->values[static_cast<size_t>(reply.signature->program().outputs()[position])];
    json output = {{"name", spec.name}, {"datatype", name_of(spec.dtype)}, {"shape", tensor.dims}};
    if (asked.binary_outputs.empty() ? asked.all_binary : asked.binary_outputs[i]) {
      output["parameters"] = {{"binary_data_size", tensor.data.size()}};
      binary.append(tensor.as<char>(), tensor.data.size());
      body.has_binary = true;
    } else {
      output["data"] = data_of(tensor);
    }
    outputs.push_back(std::move(output));
  }
  json answer = {{"model_name", model}, {"model_version", std::to_string(reply.model->version())}, {"outputs", std::move(outputs)}};
  if (!asked.id.empty()) answer["id"] = asked.id;
  body.text = answer.dump(-1, ' ', false, json::error_handler_t::replace);
  body.json_size = body.text.size();
  body.text += binary;
  return body;
}

json metadata_json(const Target& target) {
  const auto tensors = [](const std::vector<TensorSpec>& specs) {
    json list = json::array();
    for (const TensorSpec& spec : specs) list.push_back({{"name", spec.name}, {"datatype", name_of(spec.dtype)}, {"shape", shape_of(spec)}});
    return list;
  };
  const SignatureSpec& spec = target.signature->spec();
  return {{"name", target.model->name()}, {"versions", {std::to_string(target.model->version())}}, {"platform", platform_of(target)},
          {"inputs", tensors(spec.inputs)}, {"outputs", tensors(spec.outputs)}};
}

}  // namespace trunnion::bundle
