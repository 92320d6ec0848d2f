// trunnion-serve-bundle: loads a repository, serves it, drains on SIGTERM.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "repository/repository.h"
#include "server/grpc_server.h"
#include "server/http_server.h"
#include "server/options.h"
#include "server/model_service.h"

namespace {

using namespace trunnion::bundle;

void log_line(const std::string& text) {
  std::fprintf(stderr, "trunnion-serve-bundle: %s\n", text.c_str());
}

// Of this thread and of all that it starts.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

int serve(const Options& options, const sigset_t& signals) {
  Repository repository(options.repository,
                        {.engines = options.engines, .platform = options.platform, .settings = options.settings,
                         .allows_plugins = options.allows_plugins, .allows_jit = options.allows_jit}, log_line);
  if (options.load_only) {
    repository.refresh();
    std::printf("%s\n", repository.figures().c_str());
    return repository.is_ready() ? 0 : 1;
  }
  std::optional<Recorder> recorder;
  if (!options.record.empty()) recorder.emplace(options.record, options.record_limit, log_line);
  ModelService service(repository, recorder ? &*recorder : nullptr);
  const auto grpc = start_grpc(service, options.host, options.grpc_port, options.max_message_bytes);
  const auto http = start_http(service, options.host, options.http_port, options.max_message_bytes);
  repository.refresh();
  if (!repository.is_ready() && options.poll.count() == 0) log_line("no model is served until one is loaded on request");
  if (options.poll.count() > 0) repository.watch(options.poll);
  grpc->set_serving(true);
  std::printf("{\"grpc_port\": %d, \"http_port\": %d}\n", grpc->port(), http->port());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  log_line("draining");
  grpc->set_serving(false);
  const bool is_idle = repository.drain(options.drain);
  if (!is_idle) log_line("requests were left after " + std::to_string(options.drain.count()) + " s");
  grpc->shut_down(std::chrono::seconds(1));
  http->shut_down();
  if (is_idle) return 0;
  // An engine that does not come back must not keep the process.
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace

int main(int count, char** arguments) {
  const sigset_t signals = block_signals();
  try {
    return serve(read_options(count, arguments), signals);
  } catch (const std::exception& error) {
    log_line(error.what());
    return 2;
  }
}
