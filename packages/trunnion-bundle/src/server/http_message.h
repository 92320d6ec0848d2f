// Between bodies of HTTP (JSON, or JSON followed by binary data) and calls.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/model_service.h"

namespace trunnion::bundle {

struct HttpInfer {
  Call call;
  std::string id;
  std::vector<WireTensor> inputs;
  std::deque<std::string> storage;      // elements that came as JSON
  std::vector<bool> binary_outputs;     // of call.outputs; those that are not named follow `all_binary`
  bool all_binary = false;
};

// `json_size` is Inference-Header-Content-Length, or the body's size. Throws InvalidRequest. Views `body`.
HttpInfer read_http_request(std::string_view body, size_t json_size);

// A body, and how much of it is JSON.
struct HttpBody {
  std::string text;
  size_t json_size = 0;
  bool has_binary = false;
};
HttpBody write_http_response(const Reply& reply, const HttpInfer& asked, const std::string& model);

nlohmann::json metadata_json(const Target& target);

}  // namespace trunnion::bundle
