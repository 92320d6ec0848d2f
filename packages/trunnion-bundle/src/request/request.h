// One request on its way: its values, and who waits for the answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "policy/batch_policy.h"
#include "steps/program.h"
#include "trunnion_bundle/code.h"

namespace trunnion::bundle {

struct Answer {
  Code code = Code::kOk;
  std::string message;
};

struct Request {
  uint64_t id = 0;
  Values values;  // inputs and what steps make of them; outputs once it is answered with kOk
  int64_t rows = 1;
  uint64_t shape = 0;
  int32_t priority = 0;
  Micros arrival = 0, deadline = kNever;
  // Called once, on any thread.
  std::function<void(const Answer&)> done;

  // Of the thread that delivers: rows whose results are not there yet.
  int64_t rows_left = 0;

  // Only the first answer counts: results of a request that expired meanwhile go nowhere.
  void answer(const Answer& given) {
    if (answered_.exchange(true)) return;
    done(given);
    done = nullptr;
  }
  bool is_answered() const { return answered_; }

 private:
  std::atomic<bool> answered_ = false;
};

using RequestPtr = std::shared_ptr<Request>;

}  // namespace trunnion::bundle
