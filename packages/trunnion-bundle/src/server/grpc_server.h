// The Open Inference Protocol over gRPC, and grpc.health.v1.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "server/model_service.h"

namespace trunnion::bundle {

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;
  virtual int port() const = 0;
  // What grpc.health.v1 says from now on.
  virtual void set_serving(bool serving) = 0;
  // Accept no call any more; those that are here have until `timeout`.
  virtual void shut_down(std::chrono::milliseconds timeout) = 0;
};

// `port` 0 = one that is free. Throws std::runtime_error if it cannot listen.
std::unique_ptr<GrpcServer> start_grpc(ModelService& service, const std::string& host, int port, int max_message_bytes);

}  // namespace trunnion::bundle
