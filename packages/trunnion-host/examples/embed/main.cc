// A C++ program with Python inside: starts the interpreter, serves one prompt of token ids, prints the ids it gets.
//
//   trunnion-embed PYTHON MODEL HARDWARE MAX_TOKENS TOKEN_ID...
//
// PYTHON is the `python` of an environment with trunnion installed. The serving host's loop thread makes every call on
// the executor; the main thread starts Python, then only waits in C++, so that no other Python thread ever runs.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trunnion/embed.h"
#include "trunnion/executor.hpp"
#include "trunnion/serving.h"

namespace {

/// The interpreter, for as long as this lives; on the main thread.
class Python {
 public:
  explicit Python(const char* program) {
    char error[1024];
    if (trn_python_start(program, error, sizeof error) != TRN_OK) throw std::runtime_error(error);
  }
  ~Python() { trn_python_stop(); }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;
};

struct CloseHost {
  void operator()(trn_host* host) const { trn_host_close(host); }
};
using Host = std::unique_ptr<trn_host, CloseHost>;

Host create_host(const char* model, const char* hardware) {
  trn_host_options options{};
  options.struct_size = sizeof options;
  options.queue_size = 64;
  options.prefix_caching = 1;
  options.watchdog_s = 600;
  options.executor = trunnion::Executor::default_options();
  options.executor.model = model;
  options.executor.hardware = hardware;
  options.executor.limits = {/*max_num_tokens=*/64, /*max_num_seqs=*/4, /*max_model_len=*/128, /*max_logits_rows=*/4,
                             /*block_size=*/16, /*max_decode_query_len=*/1, /*max_encoder_rows=*/0};
  trn_host* host = nullptr;
  char error[2048];
  if (trn_host_create(&options, &host, error, sizeof error) != TRN_HOST_OK) throw std::runtime_error(error);
  return Host(host);
}

std::uint64_t submit(trn_host* host, const std::vector<std::int32_t>& prompt, std::int32_t max_tokens) {
  trn_host_request request{};
  request.struct_size = sizeof request;
  request.token_ids = prompt.data();
  request.num_tokens = static_cast<std::int32_t>(prompt.size());
  request.sampling.struct_size = sizeof request.sampling;
  request.sampling.top_p = 1;
  request.sampling.max_tokens = max_tokens;
  request.sampling.num_logprobs = -1;
  std::uint64_t id = 0;
  char error[256];
  if (trn_host_submit(host, &request, &id, error, sizeof error) != TRN_HOST_OK) throw std::runtime_error(error);
  return id;
}

void print_tokens(trn_host* host, std::uint64_t id) {
  trn_host_event event{};
  event.struct_size = sizeof event;
  while (trn_host_next_event(host, id, -1, &event) == TRN_HOST_OK) {
    if (event.type == TRN_EVENT_FINISHED) {
      if (event.finish_reason == TRN_FINISH_ERROR) throw std::runtime_error(event.error);
      return;
    }
    std::printf("%d\n", event.token_id);
  }
  throw std::runtime_error("the host ended before the request");
}

void print_figures(trn_host* host) {
  trn_host_stats stats{};
  stats.struct_size = sizeof stats;
  trn_host_get_stats(host, &stats);
  std::fprintf(stderr, "steps %llu, execute calls %llu, GIL entries of steps %llu\n",
               static_cast<unsigned long long>(stats.steps), static_cast<unsigned long long>(stats.execute_calls),
               static_cast<unsigned long long>(stats.step_gil_entries));
}

void run(int argc, char** argv) {
  std::vector<std::int32_t> prompt;
  for (int i = 5; i < argc; ++i) prompt.push_back(std::atoi(argv[i]));
  // Declared first, so that it ends last: after the host has closed its executor.
  const Python python(argv[1]);
  const Host host = create_host(argv[2], argv[3]);
  print_tokens(host.get(), submit(host.get(), prompt, std::atoi(argv[4])));
  print_figures(host.get());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: %s PYTHON MODEL HARDWARE MAX_TOKENS TOKEN_ID...\n", argv[0]);
    return 2;
  }
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
