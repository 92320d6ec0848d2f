#include "server/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "open_inference.grpc.pb.h"
#include "server/grpc_message.h"
#include "server/version.h"

namespace trunnion::bundle {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using grpc::Status;
using grpc::StatusCode;

StatusCode status_of(Code code) {
  switch (code) {
    case Code::kOk: return StatusCode::OK;
    case Code::kInvalid: return StatusCode::INVALID_ARGUMENT;
    case Code::kNotFound: return StatusCode::NOT_FOUND;
    case Code::kQueueFull: return StatusCode::RESOURCE_EXHAUSTED;
    case Code::kDeadline: return StatusCode::DEADLINE_EXCEEDED;
    case Code::kCancelled: return StatusCode::CANCELLED;
    case Code::kUnavailable: return StatusCode::UNAVAILABLE;
    case Code::kFault: return StatusCode::INTERNAL;
  }
  return StatusCode::UNKNOWN;
}

Status status_of(const Answer& answer) {
  return answer.code == Code::kOk ? Status::OK : Status(status_of(answer.code), answer.message);
}

// The call's deadline on the steady clock.
Micros deadline_of(const CallbackServerContext& context) {
  using std::chrono::duration_cast, std::chrono::microseconds;
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  // gRPC says "never" by a time far away.
  if (deadline - now > std::chrono::hours(24 * 365)) return kNever;
  return SteadyClock().now() + duration_cast<microseconds>(deadline - now).count();
}

// One ModelInfer call; gRPC deletes it by OnDone, after everything else.
class InferCall final : public ServerUnaryReactor {
 public:
  InferCall(ModelService& service, const CallbackServerContext& context, const inference::ModelInferRequest& message,
            inference::ModelInferResponse& response) {
    try {
      ReadRequest read = read_request(message);
      read.call.options.deadline = deadline_of(context);
      pending_ = service.infer(read.call, read.inputs, [this, &message, &response](const Reply& reply) {
        if (reply.answer.code == Code::kOk) write_response(reply, message, response);
        Finish(status_of(reply.answer));
      });
    } catch (const InvalidRequest& error) {
      Finish(Status(StatusCode::INVALID_ARGUMENT, error.what()));
    }
  }
  // Comes after the constructor has returned.
  void OnCancel() override { pending_.cancel(); }
  void OnDone() override { delete this; }

 private:
  ModelService::Pending pending_;
};

class Protocol final : public inference::GRPCInferenceService::CallbackService {
 public:
  explicit Protocol(ModelService& service) : service_(service) {}

  ServerUnaryReactor* ServerLive(CallbackServerContext* context, const inference::ServerLiveRequest*,
                                 inference::ServerLiveResponse* response) override {
    response->set_live(true);
    return finish(context, Status::OK);
  }

  ServerUnaryReactor* ServerReady(CallbackServerContext* context, const inference::ServerReadyRequest*,
                                  inference::ServerReadyResponse* response) override {
    response->set_ready(service_.repository().is_ready());
    return finish(context, Status::OK);
  }

  ServerUnaryReactor* ModelReady(CallbackServerContext* context, const inference::ModelReadyRequest* request,
                                 inference::ModelReadyResponse* response) override {
    response->set_ready(service_.find(request->name(), request->version(), "").signature != nullptr);
    return finish(context, Status::OK);
  }

  ServerUnaryReactor* ServerMetadata(CallbackServerContext* context, const inference::ServerMetadataRequest*,
                                     inference::ServerMetadataResponse* response) override {
    response->set_name(kServerName);
    response->set_version(kServerVersion);
    for (const char* extension : kExtensions) response->add_extensions(extension);
    return finish(context, Status::OK);
  }

  ServerUnaryReactor* ModelMetadata(CallbackServerContext* context, const inference::ModelMetadataRequest* request,
                                    inference::ModelMetadataResponse* response) override {
    const Target target = service_.find(request->name(), request->version(), "");
    if (target.signature == nullptr) return finish(context, status_of(target.problem));
    write_metadata(target, *response);
    return finish(context, Status::OK);
  }

  ServerUnaryReactor* ModelInfer(CallbackServerContext* context, const inference::ModelInferRequest* request,
                                 inference::ModelInferResponse* response) override {
    return new InferCall(service_, *context, *request, *response);
  }

  ServerUnaryReactor* RepositoryIndex(CallbackServerContext* context, const inference::RepositoryIndexRequest* request,
                                      inference::RepositoryIndexResponse* response) override {
    for (const ModelState& state : service_.repository().index()) {
      if (request->ready() && !state.is_ready) continue;
      auto* model = response->add_models();
      model->set_name(state.name);
      if (state.version > 0) model->set_version(std::to_string(state.version));
      model->set_state(state.is_ready ? "READY" : "UNAVAILABLE");
      model->set_reason(state.reason);
    }
    return finish(context, Status::OK);
  }

  // Loading blocks one of gRPC's threads, of which there are more.
  ServerUnaryReactor* RepositoryModelLoad(CallbackServerContext* context, const inference::RepositoryModelLoadRequest* request,
                                          inference::RepositoryModelLoadResponse*) override {
    if (!request->parameters().empty()) {
      return finish(context, Status(StatusCode::INVALID_ARGUMENT, "loading a model takes no parameters here"));
    }
    try {
      service_.repository().load(request->model_name());
      return finish(context, Status::OK);
    } catch (const BundleError& error) {
      return finish(context, Status(StatusCode::FAILED_PRECONDITION, error.what()));
    }
  }

  ServerUnaryReactor* RepositoryModelUnload(CallbackServerContext* context, const inference::RepositoryModelUnloadRequest* request,
                                            inference::RepositoryModelUnloadResponse*) override {
    if (service_.repository().unload(request->model_name())) return finish(context, Status::OK);
    return finish(context, Status(StatusCode::NOT_FOUND, "model " + request->model_name() + " is not served"));
  }

 private:
  static ServerUnaryReactor* finish(CallbackServerContext* context, const Status& status) {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  ModelService& service_;
};

class RunningServer final : public GrpcServer {
 public:
  RunningServer(ModelService& service, const std::string& host, int port, int max_message_bytes) : protocol_(service) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    // A port that is taken is an error, not one that is shared.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(max_message_bytes);
    builder.SetMaxSendMessageSize(-1);
    builder.AddListeningPort(host + ":" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&protocol_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      throw std::runtime_error("gRPC cannot listen on " + host + ":" + std::to_string(port));
    }
    set_serving(false);
  }

  int port() const override { return port_; }
  void set_serving(bool serving) override {
    server_->GetHealthCheckService()->SetServingStatus(serving);
    server_->GetHealthCheckService()->SetServingStatus("inference.GRPCInferenceService", serving);
  }
  void shut_down(std::chrono::milliseconds timeout) override { server_->Shutdown(std::chrono::system_clock::now() + timeout); }

 private:
  Protocol protocol_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<GrpcServer> start_grpc(ModelService& service, const std::string& host, int port, int max_message_bytes) {
  return std::make_unique<RunningServer>(service, host, port, max_message_bytes);
}

}  // namespace trunnion::bundle
