// Between the protocol's messages and calls.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "open_inference.pb.h"
#include "server/model_service.h"

namespace trunnion::bundle {

// A ModelInferRequest as a call and tensors that view it. Throws InvalidRequest.
struct ReadRequest {
  Call call;
  std::vector<WireTensor> inputs;
  std::deque<std::string> narrowed;  // contents that the wire has in wider integers than the tensor
};
ReadRequest read_request(const inference::ModelInferRequest& message);

void write_response(const Reply& reply, const inference::ModelInferRequest& asked, inference::ModelInferResponse& message);

void write_metadata(const Target& target, inference::ModelMetadataResponse& message);

}  // namespace trunnion::bundle
