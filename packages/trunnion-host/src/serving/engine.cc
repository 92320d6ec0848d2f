#include "serving/engine.h"

#include <unistd.h>

#include <cstdio>
#include <exception>

#include "serving/quiet_thread.h"

namespace trunnion::serving {
namespace {

// EX_SOFTWARE of sysexits.h.
constexpr int kFatalExitCode = 70;

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds);
  return text;
}

}  // namespace

Engine::Engine(const trn_host_options& options)
    : options_(options),
      hub_(options.queue_size,
           [this] {
             const std::lock_guard lock(inbox_mutex_);
             inbox_.wake = true;
             inbox_changed_.notify_one();
           }),
      workers_(distributed::take_sockets(options), options.worker_timeout_s,
               [this](const std::string& reason) { die(reason); }),
      watchdog_(options.watchdog_s, [this] {
        const std::string silent = workers_.silent_ranks();
        die("execute has not returned within watchdog_s = " + seconds_text(options_.watchdog_s) + " s" +
            (silent.empty() ? "" : "; no answer from " + silent));
      }) {
  std::promise<void> ready;
  auto is_ready = ready.get_future();
  loop_ = quiet_thread([this, &ready] { run(ready); });
  try {
    is_ready.get();
  } catch (...) {
    loop_.join();
    throw;
  }
}

Engine::~Engine() { shutdown(); }

void Engine::run(std::promise<void>& ready) {
  std::unique_ptr<Worker> worker;
  try {
    worker = std::make_unique<Worker>(options_, hub_, board_, watchdog_, workers_);
    warm_up_report_ = worker->warm_up_report();
    model_info_ = worker->model_info();
    admission_ = &worker->admission();
    serving_ = true;
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  try {
    serve(*worker);
  } catch (const std::exception& error) {
    die(workers_.explain(error.what()));
  }
  const std::lock_guard lock(inbox_mutex_);
  serving_ = false;
  // Whoever waits for a reset sees a broken promise.
  inbox_ = {};
}

void Engine::serve(Worker& worker) {
  bool idle = false;
  while (!dead_) {
    Inbox inbox = take_inbox(idle);
    for (auto& request : inbox.submitted) worker.add(std::move(request));
    for (const uint64_t id : inbox.cancelled) worker.cancel(id);
    for (auto& reset : inbox.resets) {
      worker.reset_prefix_cache();
      reset.set_value();
    }
    if (inbox.stop) return worker.cancel_all("the host was shut down");
    idle = !worker.step();
  }
}

Engine::Inbox Engine::take_inbox(bool wait) {
  std::unique_lock lock(inbox_mutex_);
  if (wait) inbox_changed_.wait(lock, [this] { return !inbox_.empty(); });
  return std::exchange(inbox_, Inbox{});
}

// On the loop thread after a fatal error, or on the watchdog's while the loop thread hangs.
void Engine::die(const std::string& reason) {
  if (options_.exit_on_fatal) {
    std::fprintf(stderr, "trunnion: fatal: %s\n", reason.c_str());
    std::fflush(stderr);
    _exit(kFatalExitCode);
  }
  dead_ = true;
  hub_.seal(TRN_FINISH_ERROR, reason);
}

trn_host_status Engine::why_not() const { return dead_ ? TRN_HOST_DEAD : TRN_HOST_CLOSED; }

trn_host_status Engine::submit(const trn_host_request& submitted, uint64_t& request_id, std::string& reason) {
  if (const std::lock_guard lock(inbox_mutex_); !serving_) {
    reason = hub_.sealed();
    return why_not();
  }
  // Pixels are read without the lock, which the loop takes between steps.
  RequestImages images = read_images(submitted, model_info_, options_.executor.limits);
  const std::lock_guard lock(inbox_mutex_);
  if (!serving_) {
    reason = hub_.sealed();
    return why_not();
  }
  auto request = admission_->admit(submitted, std::move(images));
  request->channel = hub_.open(next_id_, reason);
  if (request->channel == nullptr) return why_not();
  request_id = request->id = next_id_++;
  request->submitted_ns = now_ns();
  inbox_.submitted.push_back(std::move(request));
  inbox_changed_.notify_one();
  return TRN_HOST_OK;
}

trn_host_status Engine::next_event(uint64_t request_id, int64_t timeout_ms, trn_host_event& event) {
  const trn_host_status status = hub_.next(request_id, timeout_ms, event);
  return status == TRN_HOST_CLOSED ? why_not() : status;
}

trn_host_status Engine::cancel(uint64_t request_id) {
  const std::lock_guard lock(inbox_mutex_);
  if (request_id == 0 || request_id >= next_id_) return TRN_HOST_UNKNOWN_REQUEST;
  if (!serving_) return TRN_HOST_OK;
  inbox_.cancelled.push_back(request_id);
  inbox_changed_.notify_one();
  return TRN_HOST_OK;
}

trn_host_status Engine::reset_prefix_cache() {
  std::future<void> done;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!serving_) return why_not();
    inbox_.resets.emplace_back();
    done = inbox_.resets.back().get_future();
    inbox_changed_.notify_one();
  }
  try {
    done.get();
  } catch (const std::future_error&) {
    return why_not();
  }
  return TRN_HOST_OK;
}

void Engine::shutdown() {
  const std::lock_guard only_one(shutdown_mutex_);
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.stop = true;
    inbox_changed_.notify_one();
  }
  if (loop_.joinable()) loop_.join();
  hub_.seal(TRN_FINISH_CANCELLED, "the host was shut down");
}

}  // namespace trunnion::serving
