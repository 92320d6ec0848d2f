// The loop thread's side of a host: the executor, the caches, the requests, and one step at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "distributed/workers.h"
#include "serving/admission.h"
#include "serving/drafter.h"
#include "serving/event_queue.h"
#include "serving/host_options.h"
#include "serving/host_stats.h"
#include "serving/input_builder.h"
#include "serving/plan.h"
#include "serving/planner.h"
#include "serving/prefix_levels.h"
#include "serving/sampler.h"
#include "serving/scheduler.h"
#include "serving/step_trace.h"
#include "serving/watchdog.h"
#include "trunnion/executor.hpp"

namespace trunnion::serving {

// Made, used and destroyed on one thread: it owns the executor.
class Worker {
 public:
  // Loads the model, allocates the caches, warms up. Throws trunnion::Error or std::invalid_argument.
  Worker(const HostOptions& options, EventHub& hub, StatsBoard& board, Watchdog& watchdog,
         distributed::Workers& workers);
  ~Worker() { workers_.close(); }

  const Admission& admission() const { return *admission_; }
  const trn_model_info& model_info() const { return model_info_; }
  const std::string& warm_up_report() const { return warm_up_report_; }

  void add(std::unique_ptr<Request> request);
  void cancel(uint64_t request_id);
  void reset_prefix_cache();
  // Ends every request and shows that nothing is held.
  void cancel_all(const std::string& reason);

  // One execute, its samples and its events; false when no request can run now. Throws trunnion::Fatal.
  bool step();

 private:
  struct Outcome {
    std::optional<trn_forward_output> output;
    std::string refused, failed;
    int32_t refused_image = -1;  // the one of the batch's images that was refused, or none
  };

  Outcome execute(const trn_forward_batch& batch);
  void conclude(const Outcome& outcome);
  // Schedule and build; false when no request can run now.
  bool plan(Plan& plan, int32_t set);
  // On the planner's thread, while the executor runs current_: plan next_ as if it had succeeded.
  void plan_ahead();
  // What next_ took for granted did not happen.
  void drop_plan();
  void fill_in_tokens();
  void handle_refused(const Outcome& outcome);
  void handle_failed(const std::string& text);
  void sample_all(const trn_forward_output& output);
  // Samples its rows as long as what is sampled is what was drafted; `step_row` is its first row in the step.
  void sample_rows(const BatchEntry& entry, std::span<const float> rows, int32_t step_row);
  // False if the request has ended with it, and is gone.
  bool take(Request& request, Sample sample);
  void note_drafts(int32_t num_drafts, int32_t num_right);
  void embed_all(const trn_forward_output& output);
  void count_step(double seconds, const trn_forward_batch& batch, uint64_t accepted_before);
  // Always false, as take() says of a request that is gone.
  bool finish(Request& request, int32_t reason, const std::string& error = "", int32_t stop_id = -1,
              std::vector<float> embedding = {});
  // Show the figures first, then send the events: who reads an event finds its effects in the stats.
  void flush();

  const HostOptions& options_;
  EventHub& hub_;
  StatsBoard& board_;
  Watchdog& watchdog_;
  distributed::Workers& workers_;
  StepTrace trace_;
  Executor executor_;
  std::optional<Drafter> drafter_;  // closed before its target
  const trn_model_info model_info_;
  std::vector<trn_input_buffers> buffers_;
  std::string warm_up_report_;
  std::optional<KvCache> cache_;
  std::optional<Admission> admission_;
  std::optional<Scheduler> scheduler_;
  std::optional<InputBuilder> builder_;
  std::optional<PrefixLevels> levels_;  // where the executor is told of them
  Sampler sampler_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  Plan current_, next_;
  // Entries of the last step whose requests go on, as the draft is to follow them.
  std::vector<BatchEntry> followed_;
  std::vector<int32_t> drafts_;  // scratch
  std::vector<std::pair<std::shared_ptr<Channel>, TokenEvent>> tokens_out_;
  std::vector<std::pair<std::shared_ptr<Channel>, FinishEvent>> finishes_out_;
  HostStats stats_;
  trn_executor_stats executor_stats_{};
  Planner planner_;  // last: its thread uses the rest
};

}  // namespace trunnion::serving
