// One loaded version of a bundle: verified, warm, and answering requests.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "batcher/batcher.h"
#include "bundle/bundle_folder.h"
#include "model/model_executor.h"
#include "request/admission.h"
#include "request/request.h"
#include "steps/program.h"

namespace trunnion::bundle {

struct LoadOptions {
  std::filesystem::path engines;  // folder of engine_NAME.so; empty = where find_engine() looks
  std::string platform;           // "" = the first that runs here
  std::string settings = "{}";    // for engines, as JSON
  bool allows_plugins = false;    // to run code that bundles bring
  bool allows_jit = true;         // to compile programs when a bundle is loaded
};

// What a client may set on one request.
struct RequestOptions {
  int64_t priority = 0;          // 0 = the signature's default, 1 = first
  Micros timeout = 0;            // 0 = none; from the request's arrival
  Micros deadline = kNever;      // of the call, on the steady clock
};

// How long the parts of a load took, in seconds: reading and hashing every file; opening engines and steps; warming up.
struct LoadTimes {
  double verify = 0, open = 0, warm = 0;
};

class Model;

// A signature of a model and all that serves it.
class Signature {
 public:
  // Opens the engine and warms it up. Throws BundleError or EngineRefused.
  Signature(const Contract& contract, const SignatureSpec& spec, std::unique_ptr<Engine> engine,
            const std::filesystem::path& folder, bool allows_plugins);

  const SignatureSpec& spec() const { return spec_; }
  const Program& program() const { return program_; }
  // Throws InvalidRequest; otherwise `request.done` will be called, perhaps before this returns.
  // False where the model is going away and another may have taken its place: the request is untouched then.
  bool submit(const RequestPtr& request, std::span<const WireTensor> inputs, const RequestOptions& options);
  void cancel(const Request& request) { batcher_->cancel(request); }
  bool drain(std::chrono::milliseconds timeout) { return batcher_->drain(timeout); }
  bool is_simulated() const { return executor_.is_simulated(); }
  std::string metrics(const std::string& labels) const;
  // Of a batch of each allowed size, in the order of the contract.
  const std::vector<Micros>& latencies() const { return latencies_; }
  double warm_seconds() const { return warm_seconds_; }
  Metrics& counters() { return metrics_; }

 private:
  const SignatureSpec& spec_;
  const Program program_;
  const SteadyClock clock_;
  Metrics metrics_;
  ModelExecutor executor_;
  const Micros warm_from_;
  std::vector<Micros> latencies_;
  const double warm_seconds_;
  std::unique_ptr<Batcher> batcher_;
};

class Model {
 public:
  // Verifies, opens engines, warms up. Throws BundleError with the reason.
  static std::shared_ptr<Model> load(const std::string& name, int64_t version, const std::filesystem::path& folder,
                                     const LoadOptions& options);

  const std::string& name() const { return name_; }
  int64_t version() const { return version_; }
  const Contract& contract() const { return bundle_.contract; }
  const std::string& sha256() const { return bundle_.sha256; }
  const std::string& platform() const { return platform_; }
  // Whether its programs were compiled here, when it was loaded.
  bool is_jit() const { return is_jit_; }
  // Lowerings that come before it, and why they do not run here; "" if there are none.
  const std::string& passed_over() const { return passed_over_; }
  const LoadTimes& times() const { return times_; }
  // "" = the default; null if there is none of that name.
  Signature* find(const std::string& signature) const;
  // Refuse what comes and wait for what is here.
  bool drain(std::chrono::milliseconds timeout) const;
  std::string metrics() const;

 private:
  Model(std::string name, int64_t version, VerifiedBundle bundle);
  void open(const LoadOptions& options);
  void open_on(const Lowering& lowering, const LoadOptions& options);

  const std::string name_;
  const int64_t version_;
  const VerifiedBundle bundle_;
  std::string platform_, passed_over_;
  bool is_jit_ = false;
  LoadTimes times_;
  std::map<std::string, std::unique_ptr<Signature>> signatures_;
};

// Runs every allowed size on every runner with the rows of each warm-up file; what a batch of each size takes.
std::vector<Micros> warm_up(const SignatureSpec& signature, const Program& program, ModelExecutor& executor,
                            const Clock& clock, const std::filesystem::path& folder);

}  // namespace trunnion::bundle
