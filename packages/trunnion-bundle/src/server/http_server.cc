#include "server/http_server.h"

#include <httplib.h>

#include <future>
#include <thread>

#include "batcher/quiet_thread.h"
#include "server/http_message.h"
#include "server/version.h"

namespace trunnion::bundle {
namespace {

using nlohmann::json;

constexpr const char* kHeaderLength = "Inference-Header-Content-Length";
constexpr size_t kThreads = 16;

int status_of(Code code) {
  switch (code) {
    case Code::kOk: return 200;
    case Code::kInvalid: return 400;
    case Code::kNotFound: return 404;
    case Code::kQueueFull: return 429;
    case Code::kDeadline: return 504;
    case Code::kCancelled: return 499;
    case Code::kUnavailable: return 503;
    case Code::kFault: return 500;
  }
  return 500;
}

void send_json(httplib::Response& response, int status, const json& body) {
  response.status = status;
  response.set_content(body.dump(-1, ' ', false, json::error_handler_t::replace), "application/json");
}

void send_problem(httplib::Response& response, const Answer& problem) {
  send_json(response, status_of(problem.code), {{"error", problem.message}});
}

size_t header_length(const httplib::Request& request) {
  if (!request.has_header(kHeaderLength)) return request.body.size();
  const std::string text = request.get_header_value(kHeaderLength);
  if (text.empty() || text.size() > 12 || text.find_first_not_of("0123456789") != std::string::npos) {
    throw InvalidRequest(std::string(kHeaderLength) + " is no number of bytes");
  }
  return std::stoull(text);
}

class RunningServer final : public HttpServer {
 public:
  RunningServer(ModelService& service, const std::string& host, int port, int max_message_bytes) : service_(service) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    // Without it small answers wait for acknowledgements of large ones.
    server_.set_tcp_nodelay(true);
    server_.set_keep_alive_max_count(SIZE_MAX);
    server_.set_payload_max_length(static_cast<size_t>(max_message_bytes));
    // cpp-httplib would share a port that is taken.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_exception_handler([](const auto&, auto& response, const std::exception_ptr& caught) {
      try {
        std::rethrow_exception(caught);
      } catch (const std::exception& error) {
        send_problem(response, {Code::kFault, error.what()});
      }
    });
    add_health();
    add_models();
    add_repository();
    port_ = port == 0 ? server_.bind_to_any_port(host.c_str()) : server_.bind_to_port(host.c_str(), port) ? port : -1;
    if (port_ <= 0) throw std::runtime_error("HTTP cannot listen on " + host + ":" + std::to_string(port));
    thread_ = quiet_thread([this] { server_.listen_after_bind(); });
  }
  ~RunningServer() override { shut_down(); }

  int port() const override { return port_; }
  void shut_down() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void add_health() {
    server_.Get("/v2/health/live", [](const auto&, auto& response) { response.status = 200; });
    server_.Get("/v2/health/ready", [this](const auto&, auto& response) {
      response.status = service_.repository().is_ready() ? 200 : 503;
    });
    server_.Get("/v2/?", [](const auto&, auto& response) {
      send_json(response, 200, {{"name", kServerName}, {"version", kServerVersion}, {"extensions", kExtensions}});
    });
    server_.Get("/metrics", [this](const auto&, auto& response) {
      response.set_content(service_.repository().metrics(), "text/plain; version=0.0.4");
    });
  }

  void add_models() {
    const std::string model = R"(/v2/models/([^/]+)(?:/versions/([^/]+))?)";
    server_.Get(model, [this](const auto& request, auto& response) {
      const Target target = service_.find(request.matches[1], request.matches[2], "");
      if (target.signature == nullptr) return send_problem(response, target.problem);
      send_json(response, 200, metadata_json(target));
    });
    server_.Get(model + "/ready", [this](const auto& request, auto& response) {
      response.status = service_.find(request.matches[1], request.matches[2], "").signature != nullptr ? 200 : 404;
    });
    server_.Post(model + "/infer", [this](const auto& request, auto& response) {
      try {
        infer(request, response);
      } catch (const InvalidRequest& error) {
        send_problem(response, {Code::kInvalid, error.what()});
      }
    });
  }

  void infer(const httplib::Request& request, httplib::Response& response) {
    HttpInfer asked = read_http_request(request.body, header_length(request));
    asked.call.model = request.matches[1];
    asked.call.version = request.matches[2];
    // Shared: the waiter may be gone before the one who answers has let go of it.
    const auto promise = std::make_shared<std::promise<std::pair<Answer, HttpBody>>>();
    service_.infer(asked.call, asked.inputs, [promise, &asked](const Reply& reply) {
      const bool is_ok = reply.answer.code == Code::kOk;
      promise->set_value({reply.answer, is_ok ? write_http_response(reply, asked, asked.call.model) : HttpBody{}});
    });
    auto [answer, body] = promise->get_future().get();
    if (answer.code != Code::kOk) return send_problem(response, answer);
    if (body.has_binary) response.set_header(kHeaderLength, std::to_string(body.json_size));
    response.set_content(std::move(body.text), body.has_binary ? "application/octet-stream" : "application/json");
  }

  void add_repository() {
    server_.Post("/v2/repository/index", [this](const auto&, auto& response) {
      json models = json::array();
      for (const ModelState& state : service_.repository().index()) {
        json model = {{"name", state.name}, {"state", state.is_ready ? "READY" : "UNAVAILABLE"}, {"reason", state.reason}};
        if (state.version > 0) model["version"] = std::to_string(state.version);
        models.push_back(std::move(model));
      }
      send_json(response, 200, models);
    });
    server_.Post(R"(/v2/repository/models/([^/]+)/load)", [this](const auto& request, auto& response) {
      try {
        service_.repository().load(request.matches[1]);
      } catch (const BundleError& error) {
        send_problem(response, {Code::kInvalid, error.what()});
      }
    });
    server_.Post(R"(/v2/repository/models/([^/]+)/unload)", [this](const auto& request, auto& response) {
      const std::string name = request.matches[1];
      if (!service_.repository().unload(name)) send_problem(response, {Code::kNotFound, "model " + name + " is not served"});
    });
  }

  ModelService& service_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<HttpServer> start_http(ModelService& service, const std::string& host, int port, int max_message_bytes) {
  return std::make_unique<RunningServer>(service, host, port, max_message_bytes);
}

}  // namespace trunnion::bundle
