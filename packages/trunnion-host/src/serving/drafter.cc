#include "serving/drafter.h"

#include <stdexcept>

#include "serving/step_trace.h"

namespace trunnion::serving {
namespace {

trn_create_options draft_options(const trn_create_options& target_options, Executor& target) {
  trn_create_options options = target_options;
  options.role = TRN_ROLE_DRAFT;
  options.keep_hidden = 0;
  options.share_with = target.handle();
  return options;
}

Executor create(const HostOptions& options, Executor& target) {
  try {
    return Executor(draft_options(options.executor, target));
  } catch (const Refused& error) {
    throw std::invalid_argument("num_drafts is " + std::to_string(options.num_drafts) +
                                ", but there is no draft to make them: " + error.what());
  }
}

}  // namespace

Drafter::Drafter(const HostOptions& options, Executor& target, Watchdog& watchdog)
    : watchdog_(watchdog),
      executor_(create(options, target)),
      model_info_(executor_.model_info()),
      sampler_(model_info_.vocab_size) {
  const int32_t vocab_size = target.model_info().vocab_size;
  // A row whose next token is an image's would need that image's row of the target's encoder pool.
  if (target.model_info().encoder_patch_dim > 0) throw std::invalid_argument("num_drafts with a model that takes images");
  if (model_info_.vocab_size != vocab_size) {
    throw std::invalid_argument("the draft's vocabulary has " + std::to_string(model_info_.vocab_size) +
                                " tokens, its target's " + std::to_string(vocab_size));
  }
  for (const trn_cache_group_spec& spec : executor_.kv_cache_spec()) {
    // It would need states of its guesses beside those of its target's rows.
    if (spec.kind == TRN_CACHE_RECURRENT) throw std::invalid_argument("the draft has a recurrent cache group");
  }
}

std::string Drafter::start(std::span<const CacheGroup> groups, std::span<const int32_t> num_blocks) {
  const auto num_groups = static_cast<size_t>(model_info_.num_groups);
  executor_.allocate_kv_cache({num_blocks.end() - model_info_.num_groups, num_blocks.end()});
  std::string report = executor_.warm_up();
  for (int32_t set = 0; set < model_info_.num_buffer_sets; ++set) buffers_.push_back(executor_.input_buffers(set));
  builder_.emplace(groups.last(num_groups), model_info_,
                   BuilderPlace{.first_group = groups.size() - num_groups, .shift = 1});
  return report;
}

void Drafter::propose(std::vector<BatchEntry>& entries, Scheduler& scheduler, HostStats& stats) {
  spans_.clear();
  if (entries.empty()) return;
  for (BatchEntry& entry : entries) {
    // Of those that have sampled, so that there are no more rows of logits than the target's step had.
    entry.wants_logits = entry.wants_logits && scheduler.num_drafts_for(*entry.request) > 0;
  }
  const float* logits = execute(entries, 0, stats);
  if (logits == nullptr) {
    for (const BatchEntry& entry : entries) scheduler.undraft(*entry.request);
    return;
  }
  scheduler.complete_drafts(entries);
  take(entries, logits, scheduler);
  while (!guessing_.empty()) {
    ran_.swap(guessing_);
    logits = execute(ran_, 1, stats);
    // What it should have written lies beyond the requests' tokens, where it is written anew before it is read.
    if (logits == nullptr) return;
    take(ran_, logits, scheduler);
  }
}

const float* Drafter::execute(const std::vector<BatchEntry>& entries, int32_t hidden_source, HostStats& stats) {
  const auto set = static_cast<int32_t>(num_executes_++ % buffers_.size());
  trn_forward_batch batch = builder_->build(entries, set, buffers_[static_cast<size_t>(set)]);
  batch.hidden_source = hidden_source;
  const Watchdog::Guard guard(watchdog_);
  ++stats.totals.draft_steps;
  spans_.emplace_back(now_ns(), 0);
  const float* logits = nullptr;
  try {
    const trn_forward_output output = executor_.execute(batch);
    executor_.wait(output.fence);
    logits = output.logits;
  } catch (const Fatal&) {
    throw;
  } catch (const Error&) {
    ++stats.totals.failed_draft_steps;
  }
  spans_.back().second = now_ns();
  return logits;
}

void Drafter::take(const std::vector<BatchEntry>& entries, const float* logits, const Scheduler& scheduler) {
  const auto vocab_size = static_cast<size_t>(model_info_.vocab_size);
  trn_host_sampling greedy{};
  greedy.num_logprobs = -1;
  guessing_.clear();
  int32_t next_row = 0;
  for (const BatchEntry& entry : entries) {
    const int32_t last_row = next_row + entry.num_real - 1;
    next_row += entry.num_tokens;
    if (!entry.wants_logits) continue;
    Request& request = *entry.request;
    const Sample guess = sampler_.sample({logits, vocab_size}, greedy, 0, {});
    logits += vocab_size;
    if (guess.error != nullptr) continue;
    request.drafts.push_back(guess.token_id);
    if (std::ssize(request.drafts) >= scheduler.num_drafts_for(request)) continue;
    guessing_.push_back({.request = &request, .num_tokens = 1, .wants_logits = true, .is_decode = true,
                         .begin = entry.begin + entry.num_real, .num_real = 1, .source_row = last_row});
  }
}

}  // namespace trunnion::serving
