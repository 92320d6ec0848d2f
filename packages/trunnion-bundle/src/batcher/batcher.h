// The threads around BatchPolicy: one for each runner, one that keeps time, one that hands out results.
//
// Every transition of a request out of the queue (it runs, expires or is cancelled) happens under one lock and once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "batcher/clock.h"
#include "batcher/metrics.h"
#include "policy/batch_policy.h"
#include "request/request.h"

namespace trunnion::bundle {

// Rows of one request within a batch.
struct BatchPart {
  RequestPtr request;
  int64_t first = 0, rows = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Compute a batch on a runner's thread. What is returned hands the results to the requests; it runs on one thread for all
  // batches, while the runner goes on. It throws to fail all requests of the batch.
  using Delivery = std::function<void()>;
  virtual Delivery execute(const Batch& batch, std::vector<BatchPart> parts) = 0;
};

class Batcher {
 public:
  Batcher(const BatchingOptions& options, Executor& executor, const Clock& clock, Metrics& metrics);
  // Answers what is queued with kUnavailable, and waits for what runs.
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // The request will be answered, unless it is refused. Its time of arrival is now.
  std::optional<Refusal> submit(const RequestPtr& request);
  // If it is still queued, it is answered with kCancelled.
  void cancel(const Request& request);
  // Refuse what comes; true once everything that was queued has been answered, false at the timeout.
  bool drain(std::chrono::milliseconds timeout);
  int64_t queued_rows() const;
  // How long the longest waiting request of each priority has waited; priorities of which none waits are absent.
  std::map<int32_t, Micros> longest_waits() const;

 private:
  struct Assignment {
    Batch batch;
    std::vector<BatchPart> parts;
  };
  struct Runner {
    std::thread thread;
    std::optional<Assignment> next;
    std::condition_variable assigned;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Answers = std::vector<RequestPtr>;

  void run(int index);
  void keep_time();
  void deliver();
  // Hand batches to runners; what expired is returned, to be answered without the lock.
  Answers apply(Actions& actions);
  void fail(const std::vector<BatchPart>& parts, const Answer& answer);
  void answer_all(const Answers& requests, Code code, const std::string& message);

  Executor& executor_;
  const Clock& clock_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  BatchPolicy policy_;
  std::unordered_map<uint64_t, RequestPtr> queued_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::condition_variable time_changed_, became_idle_;
  Micros planned_wake_ = kNever;
  uint64_t last_id_ = 0;
  int pending_deliveries_ = 0;
  bool is_closing_ = false;

  std::mutex delivery_mutex_;
  std::condition_variable delivery_ready_;
  std::deque<Executor::Delivery> deliveries_;
  bool no_more_deliveries_ = false;
  std::thread timer_, deliverer_;
};

}  // namespace trunnion::bundle
