// Notices an execute that does not return: a thread with a deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace trunnion::serving {

// `on_timeout` is called once, on the watchdog's thread, when an armed deadline passes. 0 seconds = never.
class Watchdog {
 public:
  Watchdog(double seconds, std::function<void()> on_timeout);
  ~Watchdog();

  // Armed while it lives.
  class Guard {
   public:
    explicit Guard(Watchdog& watchdog) : watchdog_(watchdog) { watchdog_.arm(); }
    ~Guard() { watchdog_.disarm(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Watchdog& watchdog_;
  };

 private:
  void arm();
  void disarm();
  void run();

  const std::chrono::duration<double> timeout_;
  const std::function<void()> on_timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool armed_ = false, stopped_ = false;
  std::chrono::steady_clock::time_point deadline_;
  std::thread thread_;
};

}  // namespace trunnion::serving
