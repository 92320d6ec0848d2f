#include "serving/step_trace.h"

namespace trunnion::serving {
namespace {

constexpr int kLoopTrack = 1;
constexpr const char* kReasons[] = {"none", "stop", "length", "cancelled", "error"};

}  // namespace

StepTrace::StepTrace(const std::string& path) {
  if (path.empty()) return;
  file_.emplace(path);
  file_->name_track(kLoopTrack, "loop");
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

void StepTrace::step(const StepTimes& times, const trn_forward_batch& batch, const HostStats& stats,
                     const trn_executor_stats& executor) {
  if (!on()) return;
  const trn_host_stats& totals = stats.totals;
  file_->span("step", kLoopTrack, times.schedule, times.end,
              {{"number", static_cast<int64_t>(totals.steps)},
               {"tokens", batch.num_tokens},
               {"requests", batch.num_reqs},
               {"decodes", batch.num_decodes},
               {"padding", static_cast<int64_t>(totals.padded_tokens - padded_tokens_)},
               {"replayed", totals.replays > replays_}});
  replays_ = totals.replays;
  padded_tokens_ = totals.padded_tokens;
  file_->span("schedule", kLoopTrack, times.schedule, times.build);
  file_->span("build inputs", kLoopTrack, times.build, times.execute);
  file_->span("execute", kLoopTrack, times.execute, times.sample);
  execute_parts(times, executor);
  file_->span("sample", kLoopTrack, times.sample, times.publish);
  file_->span("publish", kLoopTrack, times.publish, times.end);
  file_->counter("requests", times.end, {{"running", totals.running}, {"waiting", totals.waiting}});
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

void StepTrace::flush() {
  if (on()) file_->flush();
}

}  // namespace trunnion::serving
