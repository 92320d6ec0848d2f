// The host's events of the steps in flight: a slot per buffer set and cache layer, which backends reach by its address.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "event.h"
#include "status.h"

namespace trunnion::executor {

/// A batch of a host that was built before prefix levels ends there, after its events.
inline constexpr std::size_t kLeastBatchSize = offsetof(trn_forward_batch, num_prefixes);

/// What both functions on slots return; SLOT_* of interfaces/kv_events.py.
enum class SlotResult : std::int32_t { kOk = 0, kError = 1, kTimeout = 2, kMisused = 3 };

/// The events of one layer in one step.
struct KvSlot {
  enum class State { kIdle, kArmed, kReady, kErrorSeen, kTimedOut, kWritten };

  trn_event* ready = nullptr;
  trn_event* written = nullptr;
  std::int64_t timeout_ns = 0;
  /// Atomic, since a device's stream may call from a thread of its own.
  std::atomic<State> state = State::kIdle;

  /// Blocks until `ready` is there; what went wrong stays in `state`.
  SlotResult wait() noexcept;
  /// Signals `written`: done, or an error if `wait` saw one.
  SlotResult signal() noexcept;
};

/// The two as a backend gets them: of a `KvSlot`.
std::int32_t wait_kv_slot(void* slot) noexcept;
std::int32_t signal_kv_slot(void* slot) noexcept;

/// All slots of one executor. Whatever becomes of a step that began, each of its `kv_written` is signalled once.
class KvEvents {
 public:
  /// Buffer sets of an executor.
  static constexpr std::int32_t kNumSets = 2;

  /// `layers` are the names of the cache layers, over all cache groups; a failure of one of several ranks is fatal.
  KvEvents(std::vector<std::string> layers, bool several_ranks);
  ~KvEvents() { fail_all(); }
  KvEvents(const KvEvents&) = delete;
  KvEvents& operator=(const KvEvents&) = delete;

  std::size_t num_layers() const noexcept { return layers_.size(); }
  KvSlot& slot(std::int32_t set, std::size_t layer) { return sets_[set].slots[layer]; }

  /// REFUSED unless sizes fit and every `kv_written` is pending and belongs to no step.
  void check(const trn_kv_events& events) const;
  /// Take the events for the step in `set`. REFUSED, and nothing is taken, if one of them is in use.
  void begin(std::int32_t set, const trn_kv_events& events);
  /// The step in `set` is done: FAILED (FATAL with several ranks) unless every layer waited and wrote. A step without
  /// tokens may leave layers out.
  void finish(std::int32_t set, bool has_tokens);
  /// The step in `set` failed: signal what is left with an error. Without a step it does nothing.
  void fail(std::int32_t set) noexcept;
  void fail_all() noexcept;

 private:
  struct Set {
    std::unique_ptr<KvSlot[]> slots;
    bool active = false;
  };

  const std::vector<std::string> layers_;
  const trn_status failure_;
  Set sets_[kNumSets];
};

/// Of a batch, or NULL, that no step was made of: signal every `kv_written` that is pending and belongs to no step.
void refuse_kv_events(const trn_forward_batch* batch) noexcept;

}  // namespace trunnion::executor
