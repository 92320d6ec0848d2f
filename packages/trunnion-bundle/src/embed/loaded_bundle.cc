#include "trunnion_bundle/loaded_bundle.h"

#include <algorithm>
#include <future>

#include "bundle/errors.h"
#include "model/model.h"

namespace trunnion::bundle {
namespace {

WireTensor wire_tensor(const InputTensor& input) {
  return {.name = input.name,
          .datatype = input.dtype,
          .shape = {input.dims.begin(), input.dims.end()},
          .bytes = {reinterpret_cast<const char*>(input.bytes.data()), input.bytes.size()},
          .strings = {input.strings.begin(), input.strings.end()},
          .has_strings = !input.strings.empty()};
}

std::vector<OutputTensor> outputs_of(const Signature& signature, const Request& request) {
  std::vector<OutputTensor> found;
  const auto& slots = signature.program().outputs();
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSpec& spec = signature.spec().outputs[i];
    const Tensor& tensor = request.values[static_cast<size_t>(slots[i])];
    const std::byte* data = tensor.data.data();
    found.push_back({.name = spec.name, .dtype = name_of(spec.dtype), .dims = tensor.dims, .bytes = {data, data + tensor.data.size()}});
  }
  return found;
}

}  // namespace

class LoadedBundle::Implementation {
 public:
  Implementation(const std::filesystem::path& folder, const OpenOptions& options)
      : model_(Model::load(std::filesystem::absolute(folder).lexically_normal().filename().string(), 1, folder,
                           {.engines = options.engines, .platform = options.platform, .settings = options.settings,
                            .allows_plugins = options.allows_plugins, .allows_jit = options.allows_jit})) {}

  void infer(std::span<const InputTensor> inputs, const InferOptions& options, Callback done) const {
    Signature* signature = model_->find(std::string(options.signature));
    if (signature == nullptr) return done(Code::kNotFound, {}, "there is no signature " + std::string(options.signature) + "; signatures: " + names());
    std::vector<WireTensor> wire;
    std::transform(inputs.begin(), inputs.end(), std::back_inserter(wire), wire_tensor);
    const auto request = std::make_shared<Request>();
    request->done = [signature, done, raw = request.get()](const Answer& answer) {
      signature->counters().add_answer(answer.code, raw->rows);
      const bool is_ok = answer.code == Code::kOk;
      done(answer.code, is_ok ? outputs_of(*signature, *raw) : std::vector<OutputTensor>{}, answer.message);
    };
    try {
      const RequestOptions given{.priority = options.priority, .timeout = options.timeout.count()};
      if (!signature->submit(request, wire, given)) request->answer({Code::kUnavailable, "the bundle is being closed"});
    } catch (const InvalidRequest& error) {
      request->answer({Code::kInvalid, error.what()});
    }
  }

  const Model& model() const { return *model_; }

 private:
  std::string names() const {
    std::string text;
    for (const auto& [name, spec] : model_->contract().signatures) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  const std::shared_ptr<Model> model_;
};

LoadedBundle::LoadedBundle(const std::filesystem::path& folder, const OpenOptions& options) try
    : implementation_(std::make_unique<Implementation>(folder, options)) {
} catch (const LoadError&) {
  throw;
} catch (const std::exception& error) {
  throw LoadError(folder.string() + ": " + error.what());
}

LoadedBundle::~LoadedBundle() = default;

std::vector<OutputTensor> LoadedBundle::infer(std::span<const InputTensor> inputs, const InferOptions& options) {
  using Ending = std::pair<std::vector<OutputTensor>, std::unique_ptr<InferError>>;
  // Shared: this thread may be gone before the one that answers has let go of it.
  const auto promise = std::make_shared<std::promise<Ending>>();
  implementation_->infer(inputs, options, [promise](Code code, std::vector<OutputTensor> outputs, const std::string& problem) {
    promise->set_value({std::move(outputs), code == Code::kOk ? nullptr : std::make_unique<InferError>(code, problem)});
  });
  auto [outputs, problem] = promise->get_future().get();
  if (problem != nullptr) throw *problem;
  return std::move(outputs);
}

void LoadedBundle::infer_async(std::span<const InputTensor> inputs, const InferOptions& options, Callback done) {
  implementation_->infer(inputs, options, std::move(done));
}

const std::string& LoadedBundle::platform() const { return implementation_->model().platform(); }

bool LoadedBundle::is_simulated() const { return implementation_->model().find("")->is_simulated(); }

std::string LoadedBundle::metrics() const { return implementation_->model().metrics(); }

}  // namespace trunnion::bundle
