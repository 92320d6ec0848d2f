// Waiting and signalling at one layer, and a step's events from begin to its end, whatever that is.
#include "kv_events.h"

namespace trunnion::executor {
namespace {

trn_event* at(trn_event* const* events, std::size_t layer) { return events == nullptr ? nullptr : events[layer]; }

std::string written_field(std::size_t layer) { return concat("kv_events.kv_written[", layer, "]"); }

[[noreturn]] void refuse_written(std::size_t layer) {
  refuse(written_field(layer), "is not pending, or stands here or in a step in flight already: reset it first");
}

/// What a slot says of a layer that has not written, or nullptr.
const char* why_unwritten(KvSlot::State state) {
  switch (state) {
    case KvSlot::State::kArmed: return "did not run";
    case KvSlot::State::kReady: return "did not say that it has written";
    case KvSlot::State::kErrorSeen: return "was kept from its cache: its kv_ready was signalled with an error";
    case KvSlot::State::kTimedOut: return "was kept from its cache: its kv_ready did not come in time";
    case KvSlot::State::kIdle:
    case KvSlot::State::kWritten: break;
  }
  return nullptr;
}

}  // namespace

SlotResult KvSlot::wait() noexcept {
  if (state != State::kArmed) return SlotResult::kMisused;
  const trn_event_state seen = ready == nullptr ? TRN_EVENT_DONE : ready->wait(timeout_ns);
  state = seen == TRN_EVENT_DONE ? State::kReady : seen == TRN_EVENT_ERROR ? State::kErrorSeen : State::kTimedOut;
  if (seen == TRN_EVENT_DONE) return SlotResult::kOk;
  return seen == TRN_EVENT_ERROR ? SlotResult::kError : SlotResult::kTimeout;
}

SlotResult KvSlot::signal() noexcept {
  State seen = State::kReady;
  if (!state.compare_exchange_strong(seen, State::kWritten)) {
    // An error stays in `state` until the step is finished, which signals it.
    return seen == State::kErrorSeen || seen == State::kTimedOut ? SlotResult::kError : SlotResult::kMisused;
  }
  if (written != nullptr) written->signal_claimed(TRN_EVENT_DONE);
  return SlotResult::kOk;
}

std::int32_t wait_kv_slot(void* slot) noexcept { return static_cast<std::int32_t>(static_cast<KvSlot*>(slot)->wait()); }

std::int32_t signal_kv_slot(void* slot) noexcept {
  return static_cast<std::int32_t>(static_cast<KvSlot*>(slot)->signal());
}

KvEvents::KvEvents(std::vector<std::string> layers, bool several_ranks)
    : layers_(std::move(layers)), failure_(several_ranks ? TRN_FATAL : TRN_FAILED) {
  for (Set& set : sets_) set.slots = std::make_unique<KvSlot[]>(layers_.size());
}

void KvEvents::check(const trn_kv_events& events) const {
  if (events.struct_size < sizeof events) {
    refuse("kv_events.struct_size", events.struct_size, " is below ", sizeof events);
  }
  if (events.num_layers < 0 || static_cast<std::size_t>(events.num_layers) != layers_.size()) {
    refuse("kv_events.num_layers", events.num_layers, " is not the ", layers_.size(),
                     " layers of all cache groups");
  }
  if (events.ready_timeout_ns < 0) refuse("kv_events.ready_timeout_ns", events.ready_timeout_ns, " is negative");
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const trn_event* written = at(events.kv_written, layer);
    if (written != nullptr && written->query() != TRN_EVENT_PENDING) refuse_written(layer);
  }
}

void KvEvents::begin(std::int32_t index, const trn_kv_events& events) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    trn_event* written = at(events.kv_written, layer);
    if (written == nullptr || written->claim()) continue;
    for (std::size_t taken = 0; taken < layer; ++taken) {
      if (trn_event* event = at(events.kv_written, taken)) event->unclaim();
    }
    refuse_written(layer);
  }
  Set& set = sets_[index];
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    KvSlot& slot = set.slots[layer];
    slot.ready = at(events.kv_ready, layer);
    slot.written = at(events.kv_written, layer);
    slot.timeout_ns = events.ready_timeout_ns == 0 ? TRN_KV_READY_TIMEOUT_NS : events.ready_timeout_ns;
    slot.state = KvSlot::State::kArmed;
  }
  set.active = true;
}

void KvEvents::finish(std::int32_t index, bool has_tokens) {
  Set& set = sets_[index];
  if (!set.active) return;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    KvSlot& slot = set.slots[layer];
    if (!has_tokens && slot.state == KvSlot::State::kArmed) {
      // Nothing to write, and nothing was read.
      slot.state = KvSlot::State::kReady;
      slot.signal();
    }
    const char* why = why_unwritten(slot.state);
    if (why == nullptr) continue;
    fail(index);
    throw StatusError(failure_, "kv_events", concat("kv_events: layer ", layer, " (", layers_[layer], ") ", why));
  }
  fail(index);
}

void KvEvents::fail(std::int32_t index) noexcept {
  Set& set = sets_[index];
  if (!set.active) return;
  set.active = false;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    KvSlot& slot = set.slots[layer];
    const bool unsignalled = slot.state.exchange(KvSlot::State::kIdle) != KvSlot::State::kWritten;
    if (unsignalled && slot.written != nullptr) slot.written->signal_claimed(TRN_EVENT_ERROR);
  }
}

void KvEvents::fail_all() noexcept {
  for (std::int32_t index = 0; index < kNumSets; ++index) fail(index);
}

void refuse_kv_events(const trn_forward_batch* batch) noexcept {
  if (batch == nullptr || batch->struct_size < kLeastBatchSize || batch->kv_events == nullptr) return;
  const trn_kv_events& events = *batch->kv_events;
  if (events.struct_size < sizeof events || events.kv_written == nullptr) return;
  for (std::int32_t layer = 0; layer < events.num_layers; ++layer) {
    if (trn_event* event = events.kv_written[layer]) event->signal(TRN_EVENT_ERROR);
  }
}

}  // namespace trunnion::executor
