#include "server/model_service.h"

#include <algorithm>

namespace trunnion::bundle {
namespace {

std::vector<size_t> positions(const SignatureSpec& spec, const std::vector<std::string>& wanted) {
  std::vector<size_t> found;
  for (const std::string& name : wanted) {
    const auto is_it = [&](const TensorSpec& output) { return output.name == name; };
    const auto output = std::find_if(spec.outputs.begin(), spec.outputs.end(), is_it);
    if (output == spec.outputs.end()) {
      std::string names;
      for (const TensorSpec& choice : spec.outputs) names += (names.empty() ? "" : ", ") + choice.name;
      throw InvalidRequest("there is no output \"" + name.substr(0, 64) + "\"; outputs: " + names);
    }
    found.push_back(static_cast<size_t>(output - spec.outputs.begin()));
  }
  if (wanted.empty()) {
    for (size_t i = 0; i < spec.outputs.size(); ++i) found.push_back(i);
  }
  return found;
}

int64_t number_of(const std::string& version) {
  if (version.empty()) return 0;
  if (version.size() > 10 || !std::all_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; })) return -1;
  const int64_t number = std::stoll(version);
  return number == 0 ? -1 : number;
}

}  // namespace

Target ModelService::find(const std::string& model, const std::string& version, const std::string& signature) const {
  const size_t colon = model.find(':');
  const std::string name = model.substr(0, colon);
  const std::string behind = colon == std::string::npos ? "" : model.substr(colon + 1);
  if (!behind.empty() && !signature.empty() && behind != signature) {
    return {nullptr, nullptr, {Code::kInvalid, "the model's name asks for signature " + behind + ", a parameter for " + signature}};
  }
  Target target{.model = repository_.find(name, number_of(version))};
  if (target.model == nullptr) {
    const std::string which = version.empty() ? "" : " version " + version;
    target.problem = {Code::kNotFound, "model " + name + which + " is not served"};
    return target;
  }
  const std::string wanted = behind.empty() ? signature : behind;
  target.signature = target.model->find(wanted);
  if (target.signature == nullptr) {
    std::string names;
    for (const auto& [choice, spec] : target.model->contract().signatures) names += (names.empty() ? "" : ", ") + choice;
    target.problem = {Code::kNotFound, "model " + name + " has no signature " + wanted + "; signatures: " + names};
  }
  return target;
}

ModelService::Pending ModelService::infer(const Call& call, std::span<const WireTensor> inputs, std::function<void(const Reply&)> reply) {
  if (recorder_ != nullptr) recorder_->add(call, inputs);
  std::shared_ptr<Model> tried;
  for (;;) {
    const Target target = find(call.model, call.version, call.signature);
    if (target.signature == nullptr) {
      reply({.answer = target.problem});
      return {};
    }
    if (target.model == tried) {
      reply({.answer = {Code::kUnavailable, "the server is going away"}});
      return {};
    }
    // Another version may take its place while this one is asked.
    tried = target.model;
    const auto request = std::make_shared<Request>();
    try {
      const auto outputs = positions(target.signature->spec(), call.outputs);
      // The reply keeps the model until it has been given.
      request->done = [reply, outputs, model = target.model, signature = target.signature, raw = request.get()](const Answer& answer) {
        signature->counters().add_answer(answer.code, raw->rows);
        reply({.answer = answer, .model = model.get(), .signature = signature, .request = raw, .outputs = outputs});
      };
      if (target.signature->submit(request, inputs, call.options)) return {target.model, target.signature, request};
    } catch (const InvalidRequest& error) {
      // Nothing has been queued, so nobody else answers.
      target.signature->counters().add_answer(Code::kInvalid, 0);
      reply({.answer = {Code::kInvalid, error.what()}});
      return {};
    } catch (const std::exception& error) {
      target.signature->counters().add_answer(Code::kFault, 0);
      reply({.answer = {Code::kFault, error.what()}});
      return {};
    }
  }
}

std::vector<int64_t> shape_of(const TensorSpec& spec) {
  std::vector<int64_t> shape;
  for (const Dim& dim : spec.dims) shape.push_back(dim.size > 0 ? dim.size : -1);
  return shape;
}

std::string platform_of(const Target& target) {
  return "trunnion_bundle_" + target.model->platform() + (target.signature->is_simulated() ? " (simulated)" : "");
}

}  // namespace trunnion::bundle
