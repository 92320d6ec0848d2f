// The time that queues live by.
#pragma once

#include <chrono>

#include "policy/batch_policy.h"

namespace trunnion::bundle {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Micros now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Micros now() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

}  // namespace trunnion::bundle
