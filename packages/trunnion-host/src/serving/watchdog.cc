#include "serving/watchdog.h"

#include "serving/quiet_thread.h"

namespace trunnion::serving {

Watchdog::Watchdog(double seconds, std::function<void()> on_timeout)
    : timeout_(seconds), on_timeout_(std::move(on_timeout)) {
  if (seconds > 0) thread_ = quiet_thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::arm() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    armed_ = true;
    deadline_ = std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout_);
  }
  changed_.notify_one();
}

// Not worth waking the thread: it finds itself disarmed when the old deadline passes.
void Watchdog::disarm() {
  const std::lock_guard lock(mutex_);
  armed_ = false;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (!armed_) {
      changed_.wait(lock, [this] { return stopped_ || armed_; });
      continue;
    }
    const auto deadline = deadline_;
    changed_.wait_until(lock, deadline, [&] { return stopped_ || deadline_ != deadline; });
    if (stopped_ || !armed_ || std::chrono::steady_clock::now() < deadline_) continue;
    lock.unlock();
    on_timeout_();
    return;
  }
}

}  // namespace trunnion::serving
