// A serving host as its callers see it: thread-safe, in front of the one thread that works.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/workers.h"
#include "serving/event_queue.h"
#include "serving/host_options.h"
#include "serving/host_stats.h"
#include "serving/watchdog.h"
#include "serving/worker.h"

namespace trunnion::serving {

class Engine {
 public:
  // Returns when the loop thread has loaded the model and warmed up; throws what that threw.
  explicit Engine(const trn_host_options& options);
  ~Engine();

  // std::invalid_argument when the request can never run. CLOSED or DEAD with a reason.
  trn_host_status submit(const trn_host_request& submitted, uint64_t& request_id, std::string& reason);
  trn_host_status next_event(uint64_t request_id, int64_t timeout_ms, trn_host_event& event);
  trn_host_status cancel(uint64_t request_id);
  trn_host_status reset_prefix_cache();
  void shutdown();

  HostStats stats() const { return board_.read(); }
  distributed::Workers& workers() { return workers_; }
  const std::string& warm_up_report() const { return warm_up_report_; }
  const trn_model_info& model_info() const { return model_info_; }

 private:
  // What callers have asked of the loop thread since it looked last.
  struct Inbox {
    std::vector<std::unique_ptr<Request>> submitted;
    std::vector<uint64_t> cancelled;
    std::vector<std::promise<void>> resets;
    bool stop = false, wake = false;

    bool empty() const { return submitted.empty() && cancelled.empty() && resets.empty() && !stop && !wake; }
  };

  void run(std::promise<void>& ready);
  void serve(Worker& worker);
  Inbox take_inbox(bool wait);
  void die(const std::string& reason);
  trn_host_status why_not() const;

  const HostOptions options_;
  StatsBoard board_;
  EventHub hub_;
  distributed::Workers workers_;
  Watchdog watchdog_;
  std::string warm_up_report_;
  trn_model_info model_info_{};
  const Admission* admission_ = nullptr;  // of the worker; read under inbox_mutex_

  std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  Inbox inbox_;
  bool serving_ = false;
  uint64_t next_id_ = 1;

  std::atomic<bool> dead_ = false;
  std::mutex shutdown_mutex_;
  std::thread loop_;
};

}  // namespace trunnion::serving
