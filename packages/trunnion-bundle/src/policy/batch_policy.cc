#include "policy/batch_policy.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace trunnion::bundle {
namespace {

void require(bool holds, const char* field, int64_t value, const std::string& expected) {
  if (holds) return;
  throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) + ", expected " + expected);
}

// What is left of a deadline, without passing below the smallest time there is.
Micros latest_start(Micros deadline, Micros latency) { return deadline == kNever ? kNever : deadline - latency; }

}  // namespace

void check_options(const BatchingOptions& options) {
  if (options.allowed.empty()) throw std::invalid_argument("allowed is empty, expected at least one batch size");
  int64_t last = 0;
  for (const int64_t size : options.allowed) {
    require(size > last, "allowed", size, "sizes that ascend from 1");
    last = size;
  }
  require(options.max_delay >= 0, "max_delay_us", options.max_delay, "0 or more");
  require(options.max_queue_rows >= last, "max_queue_rows", options.max_queue_rows,
          "at least the largest batch, " + std::to_string(last));
  require(options.max_queue_delay >= 0, "max_queue_delay_us", options.max_queue_delay, "0 (no limit) or more");
  require(options.bypass_rows >= 0, "bypass_rows", options.bypass_rows, "0 (none) or more");
  require(options.num_priorities >= 1, "priorities", options.num_priorities, "1 or more");
  require(options.num_runners >= 1, "num_runners", options.num_runners, "1 or more");
  const size_t measured = options.latency.size();
  require(measured == 0 || measured == options.allowed.size(), "number of latencies", static_cast<int64_t>(measured),
          "one per allowed size");
}

const char* name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kQueueFull: return "queue_full";
    case Refusal::kTooLarge: return "too_large";
    case Refusal::kExpired: return "deadline";
    case Refusal::kDraining: return "draining";
  }
  return "";
}

const char* name_of(RunReason reason) {
  switch (reason) {
    case RunReason::kFull: return "full";
    case RunReason::kDelay: return "delay";
    case RunReason::kIdle: return "idle";
    case RunReason::kDeadline: return "deadline";
    case RunReason::kBypass: return "bypass";
    case RunReason::kDraining: return "draining";
  }
  return "";
}

BatchPolicy::BatchPolicy(BatchingOptions options) : options_(std::move(options)) {
  check_options(options_);
  running_.assign(static_cast<size_t>(options_.num_runners), false);
}

std::optional<Refusal> BatchPolicy::submit(Micros now, const Submission& submission, Actions& actions) {
  expire(now, actions);
  const int64_t rows = submission.rows;
  const auto refusal = [&]() -> std::optional<Refusal> {
    if (draining_) return Refusal::kDraining;
    if (rows > largest() && options_.oversize == Oversize::kRefuse) return Refusal::kTooLarge;
    if (rows > options_.max_queue_rows) return Refusal::kTooLarge;
    if (submission.deadline <= now) return Refusal::kExpired;
    if (rows > options_.max_queue_rows - queued_rows_) return Refusal::kQueueFull;
    return std::nullopt;
  }();
  if (!refusal) {
    const bool bypass = options_.bypass_rows > 0 && rows >= options_.bypass_rows;
    Request request{.queue = {submission.shape, bypass}, .places = {}, .expiry = submission.deadline};
    if (options_.max_queue_delay > 0) request.expiry = std::min(request.expiry, now + options_.max_queue_delay);
    Queue& queue = queues_[request.queue];
    for (int64_t first = 0; first < rows; first += largest()) {
      const Part part{submission.id, first, std::min(largest(), rows - first)};
      const Place place{submission.priority, arrivals_++};
      queue.emplace(place, Entry{part, now, submission.deadline});
      request.places.push_back(place);
    }
    queued_rows_ += rows;
    if (request.expiry != kNever) expiries_.emplace(request.expiry, submission.id);
    requests_.emplace(submission.id, std::move(request));
  }
  dispatch(now, actions);
  return refusal;
}

bool BatchPolicy::cancel(Micros now, uint64_t id, Actions& actions) {
  expire(now, actions);
  const auto found = requests_.find(id);
  const bool was_queued = found != requests_.end();
  if (was_queued) {
    const auto node = requests_.extract(found);
    expiries_.erase({node.mapped().expiry, id});
    remove(id, node.mapped());
  }
  dispatch(now, actions);
  return was_queued;
}

void BatchPolicy::finish(Micros now, int32_t runner, Actions& actions) {
  running_[static_cast<size_t>(runner)] = false;
  --busy_;
  advance(now, actions);
}

void BatchPolicy::advance(Micros now, Actions& actions) {
  expire(now, actions);
  dispatch(now, actions);
}

void BatchPolicy::drain(Micros now, Actions& actions) {
  draining_ = true;
  advance(now, actions);
}

Micros BatchPolicy::next_wake(Micros now) const {
  Micros wake = expiries_.empty() ? kNever : expiries_.begin()->first;
  if (busy_ == options_.num_runners) return wake;
  for (const auto& [key, queue] : queues_) wake = std::min(wake, candidate(now, key, queue).ready_at);
  return wake;
}

std::map<int32_t, Micros> BatchPolicy::oldest_arrivals() const {
  std::map<int32_t, Micros> found;
  for (const auto& [key, queue] : queues_) {
    // Within a priority the first came first.
    for (auto entry = queue.begin(); entry != queue.end(); entry = queue.lower_bound({entry->first.first + 1, 0})) {
      Micros& oldest = found.emplace(entry->first.first, kNever).first->second;
      oldest = std::min(oldest, entry->second.arrival);
    }
  }
  return found;
}

void BatchPolicy::expire(Micros now, Actions& actions) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const uint64_t id = expiries_.begin()->second;
    expiries_.erase(expiries_.begin());
    const auto node = requests_.extract(id);
    remove(id, node.mapped());
    actions.expired.push_back(id);
  }
}

// The rows of a request that still are in its queue; an emptied queue goes too.
void BatchPolicy::remove(uint64_t id, const Request& request) {
  const auto found = queues_.find(request.queue);
  if (found == queues_.end()) throw std::logic_error("request " + std::to_string(id) + " has no queue");
  Queue& queue = found->second;
  for (const Place& place : request.places) {
    const auto entry = queue.extract(place);
    if (entry.empty()) continue;
    queued_rows_ -= entry.mapped().part.rows;
  }
  if (queue.empty()) queues_.erase(found);
}

void BatchPolicy::dispatch(Micros now, Actions& actions) {
  while (busy_ < options_.num_runners) {
    // Of the queues that are due, the one whose first entry is served first.
    auto best = queues_.end();
    Candidate chosen;
    for (auto queue = queues_.begin(); queue != queues_.end(); ++queue) {
      if (best != queues_.end() && best->second.begin()->first < queue->second.begin()->first) continue;
      const Candidate found = candidate(now, queue->first, queue->second);
      if (found.ready_at > now) continue;
      best = queue;
      chosen = found;
    }
    if (best == queues_.end()) return;
    const QueueKey key = best->first;
    run(key, best->second, chosen, actions);
    if (best->second.empty()) queues_.erase(best);
  }
}

BatchPolicy::Candidate BatchPolicy::candidate(Micros now, const QueueKey& key, const Queue& queue) const {
  Candidate found{.count = 1, .rows = queue.begin()->second.part.rows, .ready_at = now,
                  .reason = RunReason::kBypass};
  if (key.bypass) return found;
  Micros oldest = kNever;
  auto entry = queue.begin();
  found.count = 0;
  found.rows = 0;
  for (; entry != queue.end() && found.rows + entry->second.part.rows <= largest(); ++entry) {
    found.rows += entry->second.part.rows;
    oldest = std::min(oldest, entry->second.arrival);
    ++found.count;
  }
  const bool is_full = found.rows == largest() || entry != queue.end();
  const Micros takes = latency(found.rows);
  Micros urgent = kNever;
  int32_t index = 0;
  for (entry = queue.begin(); index < found.count; ++entry) {
    ++index;
    const Micros start = latest_start(entry->second.deadline, takes);
    urgent = std::min(urgent, start);
    if (start <= now) found.must = index;
  }
  if (is_full || draining_ || options_.max_delay == 0) {
    found.reason = is_full ? RunReason::kFull : draining_ ? RunReason::kDraining : RunReason::kIdle;
    return found;
  }
  const Micros spent = oldest + options_.max_delay;
  found.ready_at = std::min(spent, urgent);
  found.reason = urgent < spent ? RunReason::kDeadline : RunReason::kDelay;
  return found;
}

int32_t BatchPolicy::choose_count(const Queue& queue, const Candidate& candidate) const {
  if (options_.padding == Padding::kPadUp) return candidate.count;
  std::vector<int64_t> sums;
  for (auto entry = queue.begin(); std::ssize(sums) < candidate.count; ++entry) {
    sums.push_back((sums.empty() ? 0 : sums.back()) + entry->second.part.rows);
  }
  if (options_.padding == Padding::kBatchDown) {
    const auto above = std::upper_bound(options_.allowed.begin(), options_.allowed.end(), candidate.rows);
    if (above == options_.allowed.begin()) return candidate.count;
    const int64_t down = *std::prev(above);
    const auto fitting = std::upper_bound(sums.begin(), sums.end(), down) - sums.begin();
    return fitting < candidate.must ? candidate.count : static_cast<int32_t>(fitting);
  }
  int32_t best = candidate.must;
  for (int32_t count = candidate.must + 1; count <= candidate.count; ++count) {
    const int64_t rows = sums[static_cast<size_t>(count - 1)], best_rows = sums[static_cast<size_t>(best - 1)];
    // Time per row, compared without division; of equals the one with more rows.
    if (latency(rows) * best_rows <= latency(best_rows) * rows) best = count;
  }
  return best;
}

void BatchPolicy::run(const QueueKey& key, Queue& queue, const Candidate& candidate, Actions& actions) {
  const int32_t count = key.bypass ? 1 : choose_count(queue, candidate);
  const auto runner = std::find(running_.begin(), running_.end(), false);
  Batch batch{.runner = static_cast<int32_t>(runner - running_.begin()), .shape = key.shape, .size = 0, .rows = 0,
              .reason = candidate.reason, .parts = {}};
  for (int32_t taken = 0; taken < count; ++taken) {
    const auto entry = queue.extract(queue.begin());
    const Part& part = entry.mapped().part;
    batch.parts.push_back(part);
    batch.rows += part.rows;
    const auto request = requests_.find(part.id);
    std::erase(request->second.places, entry.key());
    if (request->second.places.empty()) {
      expiries_.erase({request->second.expiry, part.id});
      requests_.erase(request);
    }
  }
  queued_rows_ -= batch.rows;
  batch.size = options_.allowed[size_index(batch.rows)];
  *runner = true;
  ++busy_;
  actions.batches.push_back(std::move(batch));
}

size_t BatchPolicy::size_index(int64_t rows) const {
  const auto found = std::lower_bound(options_.allowed.begin(), options_.allowed.end(), rows);
  return static_cast<size_t>(found - options_.allowed.begin());
}

Micros BatchPolicy::latency(int64_t rows) const {
  return options_.latency.empty() ? 0 : options_.latency[size_index(rows)];
}

}  // namespace trunnion::bundle
