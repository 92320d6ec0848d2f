// Load on a server: calls in flight (closed loop), or calls at planned times (open loop).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "open_inference.pb.h"

namespace trunnion::bundle {

struct LoadPlan {
  int64_t concurrency = 0;  // closed loop
  double rate = 0;          // open loop: requests per second
  double seconds = 0, warmup_seconds = 0;
};

struct LoadResult {
  std::vector<double> latencies;  // milliseconds, ascending; of calls that ended in the measured time
  int64_t errors = 0;             // in all of the run
  std::string first_error;
  double seconds = 0;
};

struct AskedAnswer {
  int code = 0;        // of gRPC
  std::string status;  // "3: the text", or "OK"
  inference::ModelInferResponse response;
};

class Connections {
 public:
  virtual ~Connections() = default;
  // One call, whatever comes of it.
  virtual AskedAnswer try_ask(const inference::ModelInferRequest& request) = 0;
  // One call. Throws std::runtime_error with its status.
  inference::ModelInferResponse ask(const inference::ModelInferRequest& request);
  // `on_measure` is called when the measured time starts and when it ends.
  virtual LoadResult run(const inference::ModelInferRequest& request, const LoadPlan& plan, const std::function<void()>& on_measure) = 0;
};

std::unique_ptr<Connections> connect(const std::string& server, int channels);

}  // namespace trunnion::bundle
