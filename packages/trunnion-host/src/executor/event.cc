// The event functions of contract.h.
#include "event.h"

#include <chrono>
#include <new>

// Notifies under the lock: a waiter that destroys the event gets in only after this thread is done with it.
void trn_event::set(trn_event_state state) {
  state_ = state;
  changed_.notify_all();
}

trn_event_state trn_event::wait(std::int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto signalled = [this] { return state_ != TRN_EVENT_PENDING; };
  // A deadline beyond the clock's range is none.
  constexpr std::int64_t kLongest = std::int64_t{1} << 60;
  if (timeout_ns < 0 || timeout_ns > kLongest) {
    changed_.wait(lock, signalled);
  } else {
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), signalled);
  }
  return state_;
}

bool trn_event::signal(trn_event_state state) {
  const std::lock_guard lock(mutex_);
  if (claimed_ || state_ != TRN_EVENT_PENDING) return false;
  set(state);
  return true;
}

bool trn_event::reset() {
  const std::lock_guard lock(mutex_);
  if (claimed_) return false;
  state_ = TRN_EVENT_PENDING;
  return true;
}

bool trn_event::claim() {
  const std::lock_guard lock(mutex_);
  if (claimed_ || state_ != TRN_EVENT_PENDING) return false;
  claimed_ = true;
  return true;
}

void trn_event::signal_claimed(trn_event_state state) {
  const std::lock_guard lock(mutex_);
  claimed_ = false;
  set(state);
}

void trn_event::unclaim() {
  const std::lock_guard lock(mutex_);
  claimed_ = false;
}

trn_event* trn_event_create(void) { return new (std::nothrow) trn_event; }

void trn_event_destroy(trn_event* event) { delete event; }

trn_status trn_event_reset(trn_event* event) {
  return event != nullptr && event->reset() ? TRN_OK : TRN_REFUSED;
}

trn_status trn_event_signal(trn_event* event, trn_status status) {
  const trn_event_state state = status == TRN_OK ? TRN_EVENT_DONE : TRN_EVENT_ERROR;
  return event != nullptr && event->signal(state) ? TRN_OK : TRN_REFUSED;
}

trn_event_state trn_event_wait(trn_event* event, int64_t timeout_ns) {
  return event == nullptr ? TRN_EVENT_ERROR : event->wait(timeout_ns);
}

trn_event_state trn_event_query(const trn_event* event) { return event == nullptr ? TRN_EVENT_ERROR : event->query(); }
