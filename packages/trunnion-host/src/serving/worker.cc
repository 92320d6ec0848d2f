#include "serving/worker.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "serving/cache_sizing.h"

namespace trunnion::serving {
namespace {

const char* off_reason(const HostOptions& options, const trn_model_info& model, const std::vector<CacheGroup>& groups) {
  if (!options.prefix_caching) return "off by option";
  if (model.needs_whole_prompts != 0) return "a model that needs whole prompts computes nothing from a prefix";
  if (groups.empty()) return "the model caches nothing";
  for (const CacheGroup& group : groups) {
    if (group.recurrent()) return "a recurrent group keeps one state per request, not one per block";
  }
  return "";
}

const char* levels_off_reason(const HostOptions& options, const trn_model_info& model, bool prefix_caching) {
  if (options.prefix_levels == 0) return "off by option";
  if (model.accepts_prefix_levels == 0) return "no attention group of this executor makes use of shared blocks";
  return prefix_caching ? "" : "without the prefix cache no requests share blocks";
}

// The draft's groups behind the target's: all blocks of a request come and go together.
void add_draft_groups(std::vector<CacheGroup>& groups, std::span<const trn_cache_group_spec> specs,
                      int32_t max_model_len) {
  for (CacheGroup group : read_groups(specs, max_model_len)) {
    group.draft = true;
    const auto same = [&](const CacheGroup& other) { return other.recurrent() || other.block_size == group.block_size; };
    if (!std::all_of(groups.begin(), groups.end(), same)) {
      throw std::invalid_argument("the draft's block_size is " + std::to_string(group.block_size) +
                                  ", its target's is another: expected one size");
    }
    groups.push_back(group);
  }
}

// Two JSON objects as one.
std::string with_draft(std::string report, const std::string& draft_report) {
  const size_t end = report.rfind('}');
  if (end == std::string::npos) return report;
  const bool empty = report.find_first_not_of(" {") == end;
  return report.replace(end, 1, (empty ? "\"draft\": " : ", \"draft\": ") + draft_report + "}");
}

}  // namespace

Worker::Worker(const HostOptions& options, EventHub& hub, StatsBoard& board, Watchdog& watchdog,
               distributed::Workers& workers)
    : options_(options),
      hub_(hub),
      board_(board),
      watchdog_(watchdog),
      workers_(workers),
      trace_(options.trace_file, options.overlap),
      executor_(workers.create(options.executor)),
      model_info_(executor_.model_info()),
      sampler_(model_info_.vocab_size),
      planner_(options.overlap, [this] { plan_ahead(); }) {
  const trn_limits& limits = options.executor.limits;
  if (limits.max_encoder_rows > 0 && model_info_.encoder_patch_dim == 0) {
    throw std::invalid_argument("max_encoder_rows is " + std::to_string(limits.max_encoder_rows) +
                                ", and this model takes no images: expected 0");
  }
  auto groups = read_groups(executor_.kv_cache_spec(), limits.max_model_len);
  if (options.num_drafts > 0) {
    drafter_.emplace(options, executor_, watchdog);
    add_draft_groups(groups, drafter_->kv_cache_spec(), limits.max_model_len);
  }
  const auto num_blocks = size_groups(groups, options);
  warm_up_report_ = workers_.start(executor_, limits, {num_blocks.begin(), num_blocks.begin() + model_info_.num_groups});
  for (int32_t set = 0; set < model_info_.num_buffer_sets; ++set) buffers_.push_back(executor_.input_buffers(set));

  stats_.prefix_caching_off_reason = off_reason(options, model_info_, groups);
  stats_.totals.struct_size = sizeof stats_.totals;
  stats_.totals.prefix_caching = stats_.prefix_caching_off_reason.empty();
  stats_.prefix_levels_off_reason = levels_off_reason(options, model_info_, stats_.totals.prefix_caching != 0);
  for (size_t g = 0; g < groups.size(); ++g) stats_.totals.kv_bytes += groups[g].bytes_per_block * num_blocks[g];
  cache_.emplace(groups, num_blocks, stats_.totals.prefix_caching != 0);
  admission_.emplace(limits, model_info_, *cache_);
  scheduler_.emplace(limits, *cache_, hub_);
  scheduler_->set_whole_prompts(model_info_.needs_whole_prompts != 0);
  const auto own_groups = cache_->groups().first(static_cast<size_t>(model_info_.num_groups));
  builder_.emplace(own_groups, model_info_);
  if (stats_.prefix_levels_off_reason.empty()) levels_.emplace(own_groups, options.prefix_levels);
  if (drafter_) {
    warm_up_report_ = with_draft(warm_up_report_, drafter_->start(cache_->groups(), num_blocks));
    scheduler_->set_num_drafts(options.num_drafts);
    stats_.totals.num_drafts = options.num_drafts;
  }
  flush();
}

void Worker::add(std::unique_ptr<Request> request) {
  trace_.arrived(*request);
  scheduler_->add(*request);
  requests_.emplace(request->id, std::move(request));
}

void Worker::cancel(uint64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return;
  finish(*found->second, TRN_FINISH_CANCELLED);
  flush();
}

void Worker::reset_prefix_cache() {
  cache_->reset_prefix_cache();
  flush();
}

void Worker::cancel_all(const std::string& reason) {
  while (!requests_.empty()) finish(*requests_.begin()->second, TRN_FINISH_CANCELLED, reason);
  flush();
  trace_.flush();
}

bool Worker::step() {
  StepTimes times{.begin = now_ns()};
  if (!next_.worth_running()) {
    if (next_.ahead) ++stats_.totals.dropped_plans;
    next_.ahead = false;
    if (!plan(next_, static_cast<int32_t>(stats_.totals.steps % buffers_.size()))) {
      if (!scheduler_->only_paused()) throw std::logic_error("the scheduler runs none of the requests that could run");
      flush();
      return false;
    }
  }
  std::swap(current_, next_);
  next_.entries.clear();
  next_.ahead = false;
  for (const BatchEntry& entry : current_.entries) {
    if (entry.request != nullptr) trace_.scheduled(*entry.request, current_.build_ns);
  }
  stats_.totals.overlapped_steps += current_.ahead;
  stats_.totals.dropped_rows += static_cast<uint64_t>(current_.num_dropped_rows());
  ++stats_.totals.steps;
  const uint64_t accepted_before = stats_.totals.accepted_tokens;
  times.execute = now_ns();
  const Outcome outcome = execute(current_.batch);
  times.sample = now_ns();
  conclude(outcome);
  times.draft = now_ns();
  if (drafter_) drafter_->propose(followed_, *scheduler_, stats_);
  times.publish = now_ns();
  count_step(static_cast<double>(times.publish - times.begin) * 1e-9, current_.batch, accepted_before);
  flush();
  times.end = now_ns();
  trace_.step(times, current_, stats_, executor_stats_);
  if (drafter_) trace_.drafts(times, drafter_->spans());
  trace_.flush();
  return true;
}

bool Worker::plan(Plan& plan, int32_t set) {
  plan.schedule_ns = now_ns();
  plan.entries = scheduler_->schedule();
  if (levels_) levels_->gather(plan.entries);
  plan.build_ns = now_ns();
  if (plan.entries.empty()) return false;
  const trn_input_buffers& buffers = buffers_[static_cast<size_t>(set)];
  plan.batch = builder_->build(plan.entries, set, buffers);
  if (levels_) plan.batch.num_prefixes = levels_->fill(plan.entries, buffers);
  plan.add_images();
  plan.ready_ns = now_ns();
  return true;
}

void Worker::plan_ahead() {
  scheduler_->complete(current_.entries);
  scheduler_->expect(current_.entries, model_info_.output_kind == TRN_OUTPUT_POOLED);
  const auto num_sets = static_cast<int32_t>(buffers_.size());
  next_.ahead = plan(next_, (current_.batch.buffer_set + 1) % num_sets);
}

void Worker::drop_plan() {
  cache_->retract();
  for (const BatchEntry& entry : next_.entries) {
    scheduler_->forget(entry);
    // It may have adopted blocks that the step should have filled.
    if (entry.is_admitted) scheduler_->recompute(*entry.request);
  }
  for (const BatchEntry& entry : current_.entries) {
    if (entry.request != nullptr) entry.request->drop_pending();
  }
  stats_.totals.dropped_plans += next_.ahead;
  next_.entries.clear();
  next_.ahead = false;
}

// The step has sampled what the next one's rows wait for.
void Worker::fill_in_tokens() {
  if (!next_.ahead) return;
  const trn_input_buffers& buffers = buffers_[static_cast<size_t>(next_.batch.buffer_set)];
  for (size_t b = 0; b < next_.entries.size(); ++b) {
    const BatchEntry& entry = next_.entries[b];
    if (entry.request != nullptr && entry.wants_logits) {
      InputBuilder::set_last_token(buffers, b, entry.request->tokens.back());
    }
  }
}

void Worker::conclude(const Outcome& outcome) {
  followed_.clear();
  if (outcome.output) {
    if (!options_.overlap) scheduler_->complete(current_.entries);
    scheduler_->images().count_encoded(current_.batch.num_encoder_items);
    sample_all(*outcome.output);
    fill_in_tokens();
    return;
  }
  if (options_.overlap) drop_plan();
  if (!outcome.refused.empty()) return handle_refused(outcome);
  handle_failed(outcome.failed);
}

Worker::Outcome Worker::execute(const trn_forward_batch& planned) {
  Outcome outcome;
  trn_forward_batch batch = planned;
  const trn_input_buffers& inputs = buffers_[static_cast<size_t>(batch.buffer_set)];
  if (options_.kv_events_of != nullptr) {
    batch.kv_events = options_.kv_events_of(options_.kv_events_context, &batch, &inputs);
  }
  const Watchdog::Guard guard(watchdog_);
  Planner::Round round(planner_);
  try {
    outcome.output = workers_.execute(executor_, batch, inputs);
    executor_.wait(outcome.output->fence);
  } catch (const Refused& error) {
    outcome.refused = "the executor refused " + error.field() + ": " + error.what();
    std::sscanf(error.field().c_str(), "encoder_items[%d]", &outcome.refused_image);
  } catch (const Failed& error) {
    outcome.failed = std::string("the step failed twice: ") + error.what();
  }
  round.finish();
  return outcome;
}

void Worker::handle_refused(const Outcome& outcome) {
  ++stats_.totals.refused_steps;
  const int32_t refused = outcome.refused_image < current_.batch.num_encoder_items ? outcome.refused_image : -1;
  int32_t image = 0;
  for (const BatchEntry& entry : current_.entries) {
    const bool at_fault = refused < 0 || (entry.encodes >= 0 && image == refused);
    image += entry.encodes >= 0;
    if (entry.request == nullptr) continue;
    // What was not computed must not be found.
    scheduler_->recompute(*entry.request);
    if (at_fault) finish(*entry.request, TRN_FINISH_ERROR, outcome.refused);
  }
}

void Worker::handle_failed(const std::string& text) {
  ++stats_.totals.failed_steps;
  for (const BatchEntry& entry : current_.entries) {
    if (entry.request == nullptr) continue;
    Request& request = *entry.request;
    const bool failed_before = request.failed_before;
    // Also for a request that ends: its blocks must not be found again.
    scheduler_->recompute(request);
    request.failed_before = true;
    if (failed_before) finish(request, TRN_FINISH_ERROR, text);
  }
}

void Worker::sample_all(const trn_forward_output& output) {
  if (output.pooled != nullptr) return embed_all(output);
  const auto vocab_size = static_cast<size_t>(model_info_.vocab_size);
  const float* row = output.logits;
  int32_t step_row = 0;
  for (const BatchEntry& entry : current_.entries) {
    const size_t size = vocab_size * static_cast<size_t>(entry.num_logits());
    if (entry.request != nullptr) sample_rows(entry, {row, size}, step_row);
    row += size;
    step_row += entry.num_tokens;
  }
}

void Worker::sample_rows(const BatchEntry& entry, std::span<const float> rows, int32_t step_row) {
  const auto vocab_size = static_cast<size_t>(model_info_.vocab_size);
  Request& request = *entry.request;
  int32_t num_right = 0;
  bool right = entry.wants_logits;
  if (right) {
    request.drop_pending();
    drafts_.swap(request.drafts);
    request.drafts.clear();
  }
  while (right) {
    const bool may_stop = request.num_outputs() >= request.sampling.min_tokens;
    const std::span<const int32_t> banned = may_stop ? std::span<const int32_t>{} : request.stop_ids;
    const auto position = static_cast<uint64_t>(request.num_tokens());
    Sample sample = sampler_.sample(rows.subspan(static_cast<size_t>(num_right) * vocab_size, vocab_size),
                                    request.sampling, position, banned);
    right = num_right < entry.num_drafts && sample.token_id == drafts_[static_cast<size_t>(num_right)];
    num_right += right;
    // What was drafted beyond the end is dropped with the request.
    if (!take(request, std::move(sample))) return note_drafts(entry.num_drafts, num_right);
  }
  note_drafts(entry.num_drafts, num_right);
  if (entry.num_drafts > 0) scheduler_->accept(request, num_right);
  if (!drafter_ || request.undrafted) return;
  BatchEntry& followed = followed_.emplace_back(entry);
  followed.num_real += num_right - entry.num_drafts;
  followed.num_drafts = 0;
  followed.source_row = step_row;
}

void Worker::note_drafts(int32_t num_drafts, int32_t num_right) {
  stats_.totals.drafted_tokens += static_cast<uint64_t>(num_drafts);
  stats_.totals.accepted_tokens += static_cast<uint64_t>(num_right);
  for (int32_t i = 0; i < num_drafts; ++i) {
    ++stats_.totals.drafted_at[i];
    stats_.totals.accepted_at[i] += i < num_right;
  }
}

bool Worker::take(Request& request, Sample sample) {
  if (sample.error != nullptr) return finish(request, TRN_FINISH_ERROR, sample.error);
  request.failed_before = false;
  if (request.stops_at(sample.token_id)) return finish(request, TRN_FINISH_STOP, "", sample.token_id);
  request.tokens.push_back(sample.token_id);
  ++stats_.totals.output_tokens;
  trace_.sampled(request, now_ns());
  tokens_out_.emplace_back(request.channel, TokenEvent{sample.token_id, sample.logprob, std::move(sample.top)});
  return request.num_tokens() < request.max_total_tokens || finish(request, TRN_FINISH_LENGTH);
}

void Worker::embed_all(const trn_forward_output& output) {
  const float* row = output.pooled;
  for (const BatchEntry& entry : current_.entries) {
    if (!entry.wants_logits) continue;
    // The only copy the loop makes: the rows are lent until the next step on this set.
    std::vector<float> embedding(row, row + model_info_.output_width);
    row += model_info_.output_width;
    if (entry.request == nullptr) continue;
    const bool finite = std::all_of(embedding.begin(), embedding.end(), [](float value) { return std::isfinite(value); });
    if (finite) {
      finish(*entry.request, TRN_FINISH_STOP, "", -1, std::move(embedding));
    } else {
      finish(*entry.request, TRN_FINISH_ERROR, "the embedding holds NaN or infinity");
    }
  }
}

void Worker::count_step(double seconds, const trn_forward_batch& batch, uint64_t accepted_before) {
  const int32_t num_rows = batch.num_decodes * batch.decode_query_len;
  const int32_t num_prefill = batch.num_tokens - num_rows;
  // Of a verification only what is kept: tokens per second are those of the output.
  const uint64_t num_accepted = stats_.totals.accepted_tokens - accepted_before;
  stats_.totals.verify_steps += batch.decode_query_len > 1;
  stats_.totals.decode_tokens += static_cast<uint64_t>(batch.num_decodes) + num_accepted;
  stats_.totals.prefill_tokens += static_cast<uint64_t>(num_prefill);
  stats_.totals.decode_seconds += seconds * num_rows / batch.num_tokens;
  stats_.totals.prefill_seconds += seconds * num_prefill / batch.num_tokens;
}

bool Worker::finish(Request& request, int32_t reason, const std::string& error, int32_t stop_id,
                    std::vector<float> embedding) {
  scheduler_->remove(request);
  next_.forget(request);
  trace_.finished(request, reason);
  finishes_out_.emplace_back(request.channel, FinishEvent{.reason = reason,
                                                          .stop_id = stop_id,
                                                          .num_prompt_tokens = request.num_prompt_tokens,
                                                          .num_cached_tokens = std::max(0, request.num_cached_tokens),
                                                          .num_output_tokens = request.num_outputs(),
                                                          .num_preemptions = request.num_preemptions,
                                                          .seed = request.sampling.seed,
                                                          .error = error,
                                                          .embedding = std::move(embedding)});
  requests_.erase(request.id);
  return false;
}

void Worker::flush() {
  executor_stats_ = stats_.read(executor_);
  if (drafter_) drafter_->read(stats_);
  trn_host_stats& totals = stats_.totals;
  totals.prefix_hit_tokens = scheduler_->prefix_hit_tokens();
  totals.preemptions = scheduler_->num_preemptions();
  stats_.read(scheduler_->images());
  totals.running = static_cast<int32_t>(scheduler_->running().size());
  totals.waiting = static_cast<int32_t>(scheduler_->waiting().size());
  stats_.read(*cache_);
  board_.publish(stats_);
  for (auto& [channel, token] : tokens_out_) hub_.push(*channel, std::move(token));
  for (auto& [channel, finish] : finishes_out_) hub_.finish(*channel, std::move(finish));
  tokens_out_.clear();
  finishes_out_.clear();
}

}  // namespace trunnion::serving
