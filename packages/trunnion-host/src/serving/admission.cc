#include "serving/admission.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>

namespace trunnion::serving {
namespace {

template <typename Value>
void require(bool holds, const char* field, Value value, const std::string& expected) {
  if (!holds) {
    throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) + ", expected " + expected);
  }
}

// Written so that a NaN is refused.
void check_sampling(const trn_host_sampling& sampling) {
  require(sampling.temperature >= 0 && sampling.temperature <= 1e6, "temperature", sampling.temperature,
          "0 (greedy) ... 1e6");
  require(sampling.top_k >= 0, "top_k", sampling.top_k, "0 (all) or more");
  require(sampling.top_p > 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "above 0 and at most 1");
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", sampling.min_p, "0 ... 1");
  require(sampling.max_tokens >= 0, "max_tokens", sampling.max_tokens, "0 (as many as fit) or more");
  require(sampling.min_tokens >= 0, "min_tokens", sampling.min_tokens, "0 or more");
  require(sampling.max_tokens == 0 || sampling.min_tokens <= sampling.max_tokens, "min_tokens", sampling.min_tokens,
          "at most max_tokens, " + std::to_string(sampling.max_tokens));
  require(sampling.num_logprobs >= -1 && sampling.num_logprobs <= TRN_HOST_MAX_LOGPROBS, "num_logprobs",
          sampling.num_logprobs, "-1 (none) ... " + std::to_string(TRN_HOST_MAX_LOGPROBS));
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

void Admission::check_ids(const char* field, const int32_t* ids, int32_t count) const {
  require(count >= 0 && (count == 0 || ids != nullptr), field, count, "a list of ids");
  for (int32_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < model_.vocab_size) continue;
    throw std::invalid_argument(std::string(field) + "[" + std::to_string(i) + "] is " + std::to_string(ids[i]) +
                                ", the vocabulary has ids 0 ... " + std::to_string(model_.vocab_size - 1));
  }
}

int32_t Admission::max_total_tokens(const trn_host_request& submitted) const {
  const int32_t num_prompt = submitted.num_tokens;
  const int32_t longest = limits_.max_model_len;
  if (num_prompt >= longest) {
    throw std::invalid_argument("the prompt has " + std::to_string(num_prompt) + " tokens, max_model_len is " +
                                std::to_string(longest) + " and one must be left for the output");
  }
  const int32_t max_tokens = submitted.sampling.max_tokens;
  const int32_t wanted = max_tokens == 0 ? longest : std::min(longest - num_prompt, max_tokens) + num_prompt;
  // The last token is never fed back, so it needs no slot. The prompt itself must fit whatever max_tokens says.
  const int32_t fitting = std::max(num_prompt + 1, std::min(wanted, cache_.max_cached_tokens()));
  const int32_t total = max_tokens == 0 ? fitting : wanted;
  const auto reason = cache_.refuse(total - 1);
  if (reason) throw std::invalid_argument("the request can never fit: " + *reason);
  return total;
}

int32_t Admission::embedded_tokens(const trn_host_request& submitted) const {
  if (submitted.num_tokens > limits_.max_model_len) {
    throw std::invalid_argument("the prompt has " + std::to_string(submitted.num_tokens) +
                                " tokens, max_model_len is " + std::to_string(limits_.max_model_len));
  }
  if (model_.needs_whole_prompts != 0 && submitted.num_tokens > limits_.max_num_tokens) {
    throw std::invalid_argument("the prompt has " + std::to_string(submitted.num_tokens) +
                                " tokens, and this model computes a prompt in one step, which has at most " +
                                std::to_string(limits_.max_num_tokens) + " (max_num_tokens)");
  }
  const auto reason = cache_.refuse(submitted.num_tokens);
  if (reason) throw std::invalid_argument("the request can never fit: " + *reason);
  return submitted.num_tokens;
}

void Admission::check_kind(int32_t kind) const {
  require(kind == TRN_REQUEST_GENERATE || kind == TRN_REQUEST_EMBED, "kind", kind, "0 (generate) or 1 (embed)");
  const bool pools = model_.output_kind == TRN_OUTPUT_POOLED;
  if (kind == TRN_REQUEST_EMBED && !pools) {
    throw std::invalid_argument("kind is embed, but this model makes logits: it serves generate requests");
  }
  if (kind == TRN_REQUEST_GENERATE && pools) {
    throw std::invalid_argument("kind is generate, but this model pools embeddings: it serves embed requests");
  }
}

void Admission::read_sampling(const trn_host_request& submitted, Request& request) const {
  check_ids("stop_ids", submitted.stop_ids, submitted.num_stop_ids);
  check_ids("eos_ids", submitted.eos_ids, submitted.num_eos_ids);
  check_sampling(submitted.sampling);
  request.sampling = submitted.sampling;
  if (!submitted.sampling.has_seed) request.sampling.seed = random_seed();
  auto& stop_ids = request.stop_ids;
  if (submitted.num_stop_ids > 0) {
    stop_ids.assign(submitted.stop_ids, submitted.stop_ids + submitted.num_stop_ids);
  }
  if (!submitted.sampling.ignore_eos && submitted.num_eos_ids > 0) {
    stop_ids.insert(stop_ids.end(), submitted.eos_ids, submitted.eos_ids + submitted.num_eos_ids);
  }
  std::sort(stop_ids.begin(), stop_ids.end());
}

std::unique_ptr<Request> Admission::admit(const trn_host_request& submitted, RequestImages images) const {
  check_kind(submitted.kind);
  check_ids("token_ids", submitted.token_ids, submitted.num_tokens);
  const bool embeds = submitted.kind == TRN_REQUEST_EMBED;
  auto request = std::make_unique<Request>();
  if (!embeds) read_sampling(submitted, *request);
  request->max_total_tokens = embeds ? embedded_tokens(submitted) : max_total_tokens(submitted);
  request->tokens.reserve(static_cast<size_t>(request->max_total_tokens));
  request->tokens.assign(submitted.token_ids, submitted.token_ids + submitted.num_tokens);
  request->num_prompt_tokens = submitted.num_tokens;
  request->images = std::move(images);
  request->types = read_token_types(submitted, model_);
  return request;
}

}  // namespace trunnion::serving
