#include "serving/step_trace.h"

namespace trunnion::serving {
namespace {

constexpr int kLoopTrack = 1, kPlannerTrack = 2;
constexpr const char* kReasons[] = {"none", "stop", "length", "cancelled", "error"};

}  // namespace

StepTrace::StepTrace(const std::string& path, bool overlap) {
  if (path.empty()) return;
  file_.emplace(path);
  file_->name_track(kLoopTrack, "loop");
  if (overlap) file_->name_track(kPlannerTrack, "planner");
  file_->flush();
}

void StepTrace::arrived(const Request& request) {
  if (!on()) return;
  file_->life('b', "request", request.id, request.submitted_ns, {{"prompt_tokens", request.num_prompt_tokens}});
  file_->life('b', "waiting", request.id, request.submitted_ns);
}

void StepTrace::scheduled(Request& request, int64_t at_ns) {
  if (!on() || request.ever_scheduled) return;
  request.ever_scheduled = true;
  file_->life('e', "waiting", request.id, at_ns, {{"cached_tokens", request.num_computed}});
}

void StepTrace::sampled(const Request& request, int64_t at_ns) {
  if (on() && request.num_outputs() == 1) file_->life('n', "first token", request.id, at_ns);
}

void StepTrace::finished(const Request& request, int32_t reason) {
  if (!on()) return;
  const int64_t at_ns = now_ns();
  if (!request.ever_scheduled) file_->life('e', "waiting", request.id, at_ns);
  file_->life('e', "request", request.id, at_ns,
              {{"output_tokens", request.num_outputs()}, {"preemptions", request.num_preemptions}}, kReasons[reason]);
}

void StepTrace::step(const StepTimes& times, const Plan& plan, const HostStats& stats,
                     const trn_executor_stats& executor) {
  if (!on()) return;
  const trn_host_stats& totals = stats.totals;
  const trn_forward_batch& batch = plan.batch;
  const auto number = static_cast<int64_t>(totals.steps);
  file_->span("step", kLoopTrack, times.begin, times.end,
              {{"number", number},
               {"tokens", batch.num_tokens},
               {"requests", batch.num_reqs},
               {"decodes", batch.num_decodes},
               {"padding", static_cast<int64_t>(totals.padded_tokens - padded_tokens_)},
               {"dropped_rows", plan.num_dropped_rows()},
               {"images_encoded", batch.num_encoder_items},
               {"replayed", totals.replays > replays_},
               {"kv_events", totals.kv_event_steps > kv_event_steps_},
               {"prefix_levels", totals.prefix_level_steps > prefix_level_steps_}});
  replays_ = totals.replays;
  kv_event_steps_ = totals.kv_event_steps;
  prefix_level_steps_ = totals.prefix_level_steps;
  padded_tokens_ = totals.padded_tokens;
  const int track = plan.ahead ? kPlannerTrack : kLoopTrack;
  file_->span("schedule", track, plan.schedule_ns, plan.build_ns, {{"step", number}});
  file_->span("build inputs", track, plan.build_ns, plan.ready_ns, {{"step", number}});
  file_->span("execute", kLoopTrack, times.execute, times.sample);
  execute_parts(times, executor);
  file_->span("sample", kLoopTrack, times.sample, times.draft);
  file_->span("publish", kLoopTrack, times.publish, times.end);
  file_->counter("requests", times.end, {{"running", totals.running}, {"waiting", totals.waiting}});
  if (totals.encoder_rows_total > 0) file_->counter("encoder rows", times.end, {{"used", totals.encoder_rows_used}});
  file_->counter("blocks", times.end, {{"used", totals.blocks_used}, {"cached", totals.blocks_cached}});
}

// What the executor measured, if it was in this step and not in one before.
void StepTrace::execute_parts(const StepTimes& times, const trn_executor_stats& executor) {
  const auto part = [&](const char* name, int64_t begin, int64_t end) {
    if (begin >= times.execute && end >= begin && end <= times.sample) file_->span(name, kLoopTrack, begin, end);
  };
  part("gil wait", executor.last_gil_begin_ns, executor.last_gil_end_ns);
  part("python", executor.last_python_begin_ns, executor.last_python_end_ns);
  part("plan", executor.last_plan_begin_ns, executor.last_plan_end_ns);
}

void StepTrace::drafts(const StepTimes& times, const std::vector<std::pair<int64_t, int64_t>>& executes) {
  if (!on()) return;
  file_->span("draft", kLoopTrack, times.draft, times.publish);
  for (const auto& [begin, end] : executes) file_->span("draft execute", kLoopTrack, begin, end);
}

void StepTrace::flush() {
  if (on()) file_->flush();
}

}  // namespace trunnion::serving
