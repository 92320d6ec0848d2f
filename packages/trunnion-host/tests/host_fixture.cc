#include "host_fixture.h"

#include <cstdlib>
#include <exception>
#include <random>

trn_host_options default_options() {
  trn_host_options options{};
  options.struct_size = sizeof options;
  options.queue_size = 1000;
  options.prefix_caching = 1;
  options.executor.struct_size = sizeof options.executor;
  options.executor.abi_version = TRN_ABI_VERSION;
  options.executor.contract_version = TRN_CONTRACT_VERSION;
  options.executor.model = "fake";
  options.executor.hardware = "null";
  options.executor.dtype = "auto";
  options.executor.tp_size = 1;
  options.executor.limits = {32, 8, 64, 8, 4, 1, 0};
  // Every test must hold in both loops.
  const char* overlap = std::getenv("TRUNNION_OVERLAP");
  options.overlap = overlap != nullptr && *overlap == '1';
  return options;
}

trn_host_sampling sampling(double temperature, int32_t max_tokens, uint64_t seed) {
  trn_host_sampling params{};
  params.struct_size = sizeof params;
  params.temperature = temperature;
  params.top_p = 1;
  params.seed = seed;
  params.has_seed = 1;
  params.max_tokens = max_tokens;
  params.num_logprobs = -1;
  return params;
}

std::vector<std::vector<int32_t>> random_prompts(uint64_t seed, int32_t count, int32_t longest) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> prompts(count);
  for (auto& prompt : prompts) {
    prompt.resize(1 + random() % longest);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 50);
  }
  return prompts;
}

Host::Host(const trn_host_options& options) {
  char error[512] = "";
  const trn_host_status status = trn_host_create(&options, &host_, error, sizeof error);
  if (status != TRN_HOST_OK) throw std::runtime_error(error);
}

Host::~Host() noexcept(false) {
  trn_host_close(host_);
  if (std::uncaught_exceptions() == 0 && !fake::breach().empty()) {
    throw std::runtime_error("a batch broke the contract: " + fake::breach());
  }
}

namespace {

trn_host_request request_of(const std::vector<int32_t>& prompt, const trn_host_sampling& params) {
  trn_host_request request{};
  request.struct_size = sizeof request;
  request.token_ids = prompt.data();
  request.num_tokens = static_cast<int32_t>(prompt.size());
  request.sampling = params;
  return request;
}

}  // namespace

uint64_t Host::submit(const std::vector<int32_t>& prompt, const trn_host_sampling& params,
                      const std::vector<int32_t>& stop_ids, const std::vector<int32_t>& eos_ids) {
  trn_host_request request = request_of(prompt, params);
  request.stop_ids = stop_ids.data();
  request.num_stop_ids = static_cast<int32_t>(stop_ids.size());
  request.eos_ids = eos_ids.data();
  request.num_eos_ids = static_cast<int32_t>(eos_ids.size());
  uint64_t id = 0;
  char error[512] = "";
  if (trn_host_submit(host_, &request, &id, error, sizeof error) != TRN_HOST_OK) throw std::runtime_error(error);
  return id;
}

std::string Host::refusal(const std::vector<int32_t>& prompt, const trn_host_sampling& params) {
  const trn_host_request request = request_of(prompt, params);
  uint64_t id = 0;
  char error[512] = "";
  CHECK_EQ(trn_host_submit(host_, &request, &id, error, sizeof error), TRN_HOST_INVALID);
  return error;
}

trn_host_event Host::next(uint64_t request_id, int64_t timeout_ms) {
  trn_host_event event{};
  event.struct_size = sizeof event;
  CHECK_EQ(trn_host_next_event(host_, request_id, timeout_ms, &event), TRN_HOST_OK);
  return event;
}

Ended Host::wait(uint64_t request_id) {
  Ended ended;
  while (true) {
    const trn_host_event event = next(request_id);
    if (event.type == TRN_EVENT_TOKEN) {
      ended.tokens.push_back(event.token_id);
      continue;
    }
    ended.finish = event;
    return ended;
  }
}

std::map<uint64_t, Ended> Host::wait_all(size_t count) {
  std::map<uint64_t, Ended> ended;
  while (count > 0) {
    const trn_host_event event = next();
    if (event.type == TRN_EVENT_TOKEN) {
      ended[event.request_id].tokens.push_back(event.token_id);
      continue;
    }
    ended[event.request_id].finish = event;
    --count;
  }
  return ended;
}

trn_host_stats Host::stats() const {
  trn_host_stats stats{};
  stats.struct_size = sizeof stats;
  CHECK_EQ(trn_host_get_stats(host_, &stats), TRN_HOST_OK);
  return stats;
}

std::vector<std::vector<int32_t>> alone(const std::vector<std::vector<int32_t>>& prompts,
                                        const trn_host_sampling& params) {
  trn_host_options options = default_options();
  options.prefix_caching = 0;
  options.overlap = 0;
  options.executor.limits.max_num_tokens = 64;
  Host host(options);
  std::vector<std::vector<int32_t>> outputs;
  for (const auto& prompt : prompts) outputs.push_back(host.wait(host.submit(prompt, params)).tokens);
  return outputs;
}

std::vector<std::vector<int32_t>> together(const trn_host_options& options,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const trn_host_sampling& params, trn_host_stats* stats) {
  Host host(options);
  std::vector<uint64_t> ids;
  for (const auto& prompt : prompts) ids.push_back(host.submit(prompt, params));
  auto ended = host.wait_all(ids.size());
  const trn_host_stats figures = host.stats();
  CHECK_EQ(figures.blocks_used, 0);
  CHECK_EQ(figures.steps, figures.execute_calls);
  CHECK_EQ(figures.running + figures.waiting, 0);
  if (stats != nullptr) *stats = figures;
  std::vector<std::vector<int32_t>> outputs;
  for (const uint64_t id : ids) outputs.push_back(ended[id].tokens);
  return outputs;
}
