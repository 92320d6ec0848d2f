// What both protocols do: find a model and a signature, queue a request, answer once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "repository/repository.h"
#include "server/recorder.h"

namespace trunnion::bundle {

// Where a request is to go, and on what terms.
struct Call {
  std::string model;      // NAME or NAME:SIGNATURE
  std::string version;    // "" = the one that is served
  std::string signature;  // "" = as the model says, or the default
  std::vector<std::string> outputs;  // names of those that are wanted; none = all
  RequestOptions options;
};

struct Reply {
  Answer answer;
  const Model* model = nullptr;  // these where the answer is kOk
  const Signature* signature = nullptr;
  const Request* request = nullptr;
  std::vector<size_t> outputs = {};  // positions in the signature's outputs, in the order they were asked for
};

// A model and one of its signatures, or a reason.
struct Target {
  std::shared_ptr<Model> model;
  Signature* signature = nullptr;
  Answer problem;
};

class ModelService {
 public:
  // `recorder` may be null.
  ModelService(Repository& repository, Recorder* recorder) : repository_(repository), recorder_(recorder) {}

  // What can still be cancelled.
  struct Pending {
    std::shared_ptr<Model> model;
    Signature* signature = nullptr;
    RequestPtr request;
    void cancel() const {
      if (signature != nullptr) signature->cancel(*request);
    }
  };

  // `reply` is called once, on any thread, perhaps before this returns. `inputs` are not read later.
  Pending infer(const Call& call, std::span<const WireTensor> inputs, std::function<void(const Reply&)> reply);

  Target find(const std::string& model, const std::string& version, const std::string& signature) const;
  Repository& repository() { return repository_; }

 private:
  Repository& repository_;
  Recorder* recorder_;
};

// The dims of a tensor as metadata has them: -1 for what requests decide.
std::vector<int64_t> shape_of(const TensorSpec& spec);
// What runs the model, and whether its answers are made up.
std::string platform_of(const Target& target);

}  // namespace trunnion::bundle
