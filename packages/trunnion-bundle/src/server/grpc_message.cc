#include "server/grpc_message.h"

#include <limits>

namespace trunnion::bundle {
namespace {

using inference::InferParameter;
using inference::InferTensorContents;
using inference::ModelInferRequest;

template <typename Field>
std::string_view bytes_of(const Field& field) {
  return {reinterpret_cast<const char*>(field.data()), static_cast<size_t>(field.size()) * sizeof(*field.data())};
}

template <typename Element, typename Field>
std::string_view narrow(const Field& field, std::deque<std::string>& storage) {
  std::string bytes(static_cast<size_t>(field.size()) * sizeof(Element), '\0');
  auto* elements = reinterpret_cast<Element*>(bytes.data());
  for (int i = 0; i < field.size(); ++i) {
    if (!std::in_range<Element>(field.Get(i))) {
      throw InvalidRequest("contents have " + std::to_string(field.Get(i)) + " at element " + std::to_string(i) + ", which the datatype cannot hold");
    }
    elements[i] = static_cast<Element>(field.Get(i));
  }
  return storage.emplace_back(std::move(bytes));
}

void read_contents(const InferTensorContents& contents, WireTensor& tensor, std::deque<std::string>& storage) {
  const auto dtype = dtype_of(tensor.datatype);
  // An unknown datatype is the admission's to refuse, with the one that is expected.
  if (!dtype) return;
  switch (*dtype) {
    case Dtype::kBool: tensor.bytes = bytes_of(contents.bool_contents()); return;
    case Dtype::kInt8: tensor.bytes = narrow<int8_t>(contents.int_contents(), storage); return;
    case Dtype::kInt16: tensor.bytes = narrow<int16_t>(contents.int_contents(), storage); return;
    case Dtype::kInt32: tensor.bytes = bytes_of(contents.int_contents()); return;
    case Dtype::kInt64: tensor.bytes = bytes_of(contents.int64_contents()); return;
    case Dtype::kUint8: tensor.bytes = narrow<uint8_t>(contents.uint_contents(), storage); return;
    case Dtype::kUint16: tensor.bytes = narrow<uint16_t>(contents.uint_contents(), storage); return;
    case Dtype::kUint32: tensor.bytes = bytes_of(contents.uint_contents()); return;
    case Dtype::kUint64: tensor.bytes = bytes_of(contents.uint64_contents()); return;
    case Dtype::kFp32: tensor.bytes = bytes_of(contents.fp32_contents()); return;
    case Dtype::kFp64: tensor.bytes = bytes_of(contents.fp64_contents()); return;
    case Dtype::kBytes:
      tensor.has_strings = true;
      tensor.strings.assign(contents.bytes_contents().begin(), contents.bytes_contents().end());
      return;
    case Dtype::kFp16:
    case Dtype::kBf16:
      throw InvalidRequest("input \"" + std::string(tensor.name) + "\" is " + name_of(*dtype) + ", which only raw_input_contents carry");
  }
}

int64_t integer_of(const std::string& name, const InferParameter& parameter) {
  if (parameter.has_int64_param()) return parameter.int64_param();
  if (parameter.has_uint64_param() && std::in_range<int64_t>(parameter.uint64_param())) {
    return static_cast<int64_t>(parameter.uint64_param());
  }
  throw InvalidRequest("parameter \"" + name + "\" is no integer of 63 bits");
}

void read_parameter(const std::string& name, const InferParameter& parameter, Call& call) {
  if (name == "signature") {
    if (!parameter.has_string_param()) throw InvalidRequest("parameter \"signature\" is no string");
    call.signature = parameter.string_param();
  } else if (name == "priority") {
    call.options.priority = integer_of(name, parameter);
  } else if (name == "timeout") {
    call.options.timeout = integer_of(name, parameter);
  } else {
    throw InvalidRequest("there is no parameter \"" + name.substr(0, 64) + "\"; parameters: priority, signature, timeout");
  }
}

template <typename Parameters>
void expect_none(const Parameters& parameters, const std::string& tensor) {
  if (parameters.empty()) return;
  throw InvalidRequest("\"" + tensor.substr(0, 64) + "\" has parameter \"" + parameters.begin()->first.substr(0, 64) +
                       "\": tensors have none here, and no shared memory");
}

}  // namespace

ReadRequest read_request(const ModelInferRequest& message) {
  ReadRequest read;
  read.call.model = message.model_name();
  read.call.version = message.model_version();
  for (const auto& [name, parameter] : message.parameters()) read_parameter(name, parameter, read.call);
  for (const auto& output : message.outputs()) {
    expect_none(output.parameters(), output.name());
    read.call.outputs.push_back(output.name());
  }
  const bool is_raw = message.raw_input_contents_size() > 0;
  if (is_raw && message.raw_input_contents_size() != message.inputs_size()) {
    throw InvalidRequest("raw_input_contents has " + std::to_string(message.raw_input_contents_size()) + " entries for " +
                         std::to_string(message.inputs_size()) + " inputs");
  }
  for (int i = 0; i < message.inputs_size(); ++i) {
    const auto& input = message.inputs(i);
    expect_none(input.parameters(), input.name());
    WireTensor tensor{.name = input.name(), .datatype = input.datatype(), .shape = {input.shape().begin(), input.shape().end()}};
    if (is_raw && input.has_contents()) {
      throw InvalidRequest("input \"" + input.name().substr(0, 64) + "\" has contents beside raw_input_contents");
    }
    if (is_raw) {
      tensor.bytes = message.raw_input_contents(i);
    } else {
      read_contents(input.contents(), tensor, read.narrowed);
    }
    read.inputs.push_back(std::move(tensor));
  }
  return read;
}

void write_response(const Reply& reply, const ModelInferRequest& asked, inference::ModelInferResponse& message) {
  message.set_model_name(asked.model_name());
  message.set_model_version(std::to_string(reply.model->version()));
  message.set_id(asked.id());
  for (const size_t position : reply.outputs) {
    const TensorSpec& spec = reply.signature->spec().outputs[position];
    const int slot = reply.signature->program().outputs()[position];
    const Tensor& tensor = reply.request->values[static_cast<size_t>(slot)];
    auto* output = message.add_outputs();
    output->set_name(spec.name);
    output->set_datatype(name_of(spec.dtype));
    for (const int64_t dim : tensor.dims) output->add_shape(dim);
    message.add_raw_output_contents(tensor.data.data(), tensor.data.size());
  }
}

void write_metadata(const Target& target, inference::ModelMetadataResponse& message) {
  const SignatureSpec& spec = target.signature->spec();
  message.set_name(target.model->name());
  message.add_versions(std::to_string(target.model->version()));
  message.set_platform(platform_of(target));
  const auto add = [](const TensorSpec& tensor, auto* metadata) {
    metadata->set_name(tensor.name);
    metadata->set_datatype(name_of(tensor.dtype));
    for (const int64_t size : shape_of(tensor)) metadata->add_shape(size);
  };
  for (const TensorSpec& tensor : spec.inputs) add(tensor, message.add_inputs());
  for (const TensorSpec& tensor : spec.outputs) add(tensor, message.add_outputs());
}

}  // namespace trunnion::bundle
