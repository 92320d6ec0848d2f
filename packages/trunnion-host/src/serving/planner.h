// A second thread of the loop's, which plans the next step while the executor runs this one.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace trunnion::serving {

// Runs `work` once per round; between rounds it sleeps. Without `enabled` there is no thread and no round.
class Planner {
 public:
  Planner(bool enabled, std::function<void()> work);
  ~Planner();

  // A round begins with it; by its end the round is over, whatever happened in between.
  class Round {
   public:
    explicit Round(Planner& planner) : planner_(planner) { planner_.begin(); }
    ~Round() { planner_.await(); }
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;

    // Wait, and throw what the work threw.
    void finish();

   private:
    Planner& planner_;
  };

 private:
  void begin();
  void await();
  void run();

  const std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false, stopped_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trunnion::serving
