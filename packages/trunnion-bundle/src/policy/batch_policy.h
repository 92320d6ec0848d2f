// When which queued requests run together: a state machine without threads, clock or tensors.
//
// Every entry point is told the time, and appends what has to happen to a list of actions. The same events give the same
// actions; tests/policy_model.py says the same in Python and must agree to the letter.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trunnion::bundle {

using Micros = int64_t;
inline constexpr Micros kNever = std::numeric_limits<Micros>::max();

enum class Padding { kPadUp, kBatchDown, kLeastCost };
enum class Oversize { kSplit, kRefuse };

struct BatchingOptions {
  std::vector<int64_t> allowed;  // rows of a batch, ascending
  Micros max_delay = 0;          // how long an idle runner waits for more; 0 = not at all
  int64_t max_queue_rows = 0;    // over all queues, beyond what runs
  Micros max_queue_delay = 0;    // 0 = a request waits as long as its deadline allows
  Padding padding = Padding::kPadUp;
  Oversize oversize = Oversize::kRefuse;
  int64_t bypass_rows = 0;  // requests of as many rows run alone and at once; 0 = none do
  int32_t num_priorities = 1;
  int32_t num_runners = 1;
  std::vector<Micros> latency;  // of a batch of allowed[i] rows, as measured; empty = unknown, taken for 0
};

// Throws std::invalid_argument that names the field, its value and the limit.
void check_options(const BatchingOptions& options);

enum class Refusal { kQueueFull, kTooLarge, kExpired, kDraining };
enum class RunReason { kFull, kDelay, kIdle, kDeadline, kBypass, kDraining };
const char* name_of(Refusal refusal);
const char* name_of(RunReason reason);

struct Submission {
  uint64_t id = 0;
  uint64_t shape = 0;  // requests of different shapes never share a batch
  int64_t rows = 0;
  int32_t priority = 0;       // 0 is served first
  Micros deadline = kNever;   // absolute
};

// `rows` rows of request `id` from its row `first`.
struct Part {
  uint64_t id = 0;
  int64_t first = 0, rows = 0;
};

struct Batch {
  int32_t runner = 0;
  uint64_t shape = 0;
  int64_t size = 0, rows = 0;  // an allowed size, and how many of it are rows of requests
  RunReason reason = RunReason::kIdle;
  std::vector<Part> parts;
};

struct Actions {
  std::vector<uint64_t> expired;
  std::vector<Batch> batches;
};

class BatchPolicy {
 public:
  explicit BatchPolicy(BatchingOptions options);

  // Queue a request, or say why not. What its arrival sets off is in `actions` either way.
  std::optional<Refusal> submit(Micros now, const Submission& submission, Actions& actions);
  // Whether the request had rows in a queue; they are gone. Rows that run already go on.
  bool cancel(Micros now, uint64_t id, Actions& actions);
  // The batch on `runner` has ended.
  void finish(Micros now, int32_t runner, Actions& actions);
  // Time has passed.
  void advance(Micros now, Actions& actions);
  // Refuse what comes, run what is queued without waiting.
  void drain(Micros now, Actions& actions);

  // When advance() has something to do if nothing else happens before; kNever = nothing.
  Micros next_wake(Micros now) const;
  int64_t queued_rows() const { return queued_rows_; }
  // When the longest waiting request of each priority came; priorities of which none waits are absent.
  std::map<int32_t, Micros> oldest_arrivals() const;
  bool is_idle() const { return queued_rows_ == 0 && busy_ == 0; }

 private:
  struct Entry {
    Part part;
    Micros arrival = 0, deadline = kNever;
  };
  // (priority, order of arrival): the order in which a queue is served.
  using Place = std::pair<int32_t, uint64_t>;
  struct QueueKey {
    uint64_t shape = 0;
    bool bypass = false;
    auto operator<=>(const QueueKey&) const = default;
  };
  using Queue = std::map<Place, Entry>;
  struct Request {
    QueueKey queue;
    std::vector<Place> places;
    Micros expiry = kNever;
  };
  // The longest run of a queue's first entries that fits the largest size, and whether it should start.
  struct Candidate {
    int32_t count = 0;     // entries
    int32_t must = 1;      // as many of them have to run now
    int64_t rows = 0;
    Micros ready_at = 0;   // when it should start if nothing changes
    RunReason reason = RunReason::kIdle;
  };
  using Queues = std::map<QueueKey, Queue>;

  void expire(Micros now, Actions& actions);
  void dispatch(Micros now, Actions& actions);
  Candidate candidate(Micros now, const QueueKey& key, const Queue& queue) const;
  int32_t choose_count(const Queue& queue, const Candidate& candidate) const;
  void run(const QueueKey& key, Queue& queue, const Candidate& candidate, Actions& actions);
  void remove(uint64_t id, const Request& request);
  size_t size_index(int64_t rows) const;
  Micros latency(int64_t rows) const;
  int64_t largest() const { return options_.allowed.back(); }

  const BatchingOptions options_;
  Queues queues_;
  std::map<uint64_t, Request> requests_;  // those with rows in a queue
  std::set<std::pair<Micros, uint64_t>> expiries_;
  std::vector<bool> running_;
  int32_t busy_ = 0;
  int64_t queued_rows_ = 0;
  uint64_t arrivals_ = 0;
  bool draining_ = false;
};

}  // namespace trunnion::bundle
