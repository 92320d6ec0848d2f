// The Open Inference Protocol over HTTP, with binary data, and /metrics for Prometheus.
#pragma once

#include <memory>
#include <string>

#include "server/model_service.h"

namespace trunnion::bundle {

class HttpServer {
 public:
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  // Waits for requests that are here.
  virtual void shut_down() = 0;
};

// `port` 0 = one that is free. Throws std::runtime_error if it cannot listen.
std::unique_ptr<HttpServer> start_http(ModelService& service, const std::string& host, int port, int max_message_bytes);

}  // namespace trunnion::bundle
