#include "server/recorder.h"

#include <google/protobuf/util/delimited_message_util.h>

#include <stdexcept>
#include <utility>

#include "open_inference.pb.h"
#include "server/model_service.h"

namespace trunnion::bundle {
namespace {

std::string raw_of(const WireTensor& tensor) {
  if (!tensor.has_strings) return std::string(tensor.bytes);
  std::string bytes;
  for (const std::string_view element : tensor.strings) {
    const auto size = static_cast<uint32_t>(element.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(element);
  }
  return bytes;
}

inference::ModelInferRequest message_of(const Call& call, std::span<const WireTensor> inputs) {
  inference::ModelInferRequest message;
  message.set_model_name(call.model);
  message.set_model_version(call.version);
  if (!call.signature.empty()) (*message.mutable_parameters())["signature"].set_string_param(call.signature);
  for (const std::string& output : call.outputs) message.add_outputs()->set_name(output);
  for (const WireTensor& tensor : inputs) {
    auto* input = message.add_inputs();
    input->set_name(std::string(tensor.name));
    input->set_datatype(std::string(tensor.datatype));
    for (const int64_t size : tensor.shape) input->add_shape(size);
    message.add_raw_input_contents(raw_of(tensor));
  }
  return message;
}

}  // namespace

Recorder::Recorder(const std::filesystem::path& path, int64_t limit, std::function<void(const std::string&)> log)
    : path_(path), log_(std::move(log)), file_(path, std::ios::binary | std::ios::trunc), left_(limit) {
  if (!file_) throw std::runtime_error("requests cannot be recorded: " + path.string() + " cannot be written");
}

void Recorder::add(const Call& call, std::span<const WireTensor> inputs) {
  const std::lock_guard lock(mutex_);
  if (left_ == 0) return;
  --left_;
  if (google::protobuf::util::SerializeDelimitedToOstream(message_of(call, inputs), &file_) && file_.flush()) return;
  left_ = 0;
  log_(path_.string() + " cannot be written: requests are recorded no more");
}

}  // namespace trunnion::bundle
