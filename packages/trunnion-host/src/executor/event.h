// What stands behind trn_event: a state that many threads may wait for, and who may signal it.
#pragma once

#include <condition_variable>
#include <mutex>

#include "trunnion/contract.h"

/// Pending until it is signalled, once. While a step is to signal it as `kv_written`, nobody else may.
struct trn_event {
 public:
  trn_event_state query() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  /// The state after at most `timeout_ns`; below 0 there is no limit.
  trn_event_state wait(std::int64_t timeout_ns);

  /// False if it is signalled already or belongs to a step.
  bool signal(trn_event_state state);
  /// False if it belongs to a step.
  bool reset();

  /// Let it belong to a step; false if it is not pending or belongs to one already.
  bool claim();
  /// Signal it on behalf of its step, which ends its belonging there.
  void signal_claimed(trn_event_state state);
  /// End its belonging to a step that never began.
  void unclaim();

 private:
  void set(trn_event_state state);

  // Locked for every look at the state: whoever sees an event signalled may destroy it at once.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  trn_event_state state_ = TRN_EVENT_PENDING;
  bool claimed_ = false;
};
