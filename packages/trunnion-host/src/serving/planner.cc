#include "serving/planner.h"

#include <utility>

#include "serving/quiet_thread.h"

namespace trunnion::serving {

Planner::Planner(bool enabled, std::function<void()> work) : work_(std::move(work)) {
  if (enabled) thread_ = quiet_thread([this] { run(); });
}

Planner::~Planner() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Planner::begin() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    busy_ = true;
  }
  changed_.notify_all();
}

void Planner::await() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void Planner::Round::finish() {
  planner_.await();
  if (const std::exception_ptr error = std::exchange(planner_.error_, nullptr)) std::rethrow_exception(error);
}

void Planner::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || busy_; });
    if (stopped_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      work_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace trunnion::serving
