#include "batcher/batcher.h"

#include <algorithm>
#include <exception>

#include "batcher/quiet_thread.h"
#include "bundle/errors.h"

namespace trunnion::bundle {
namespace {

const char* const kWaitedTooLong = "the request waited in the queue as long as it may";

}  // namespace

Batcher::Batcher(const BatchingOptions& options, Executor& executor, const Clock& clock, Metrics& metrics)
    : executor_(executor), clock_(clock), metrics_(metrics), policy_(options) {
  for (int i = 0; i < options.num_runners; ++i) runners_.push_back(std::make_unique<Runner>());
  for (int i = 0; i < options.num_runners; ++i) runners_[static_cast<size_t>(i)]->thread = quiet_thread([this, i] { run(i); });
  timer_ = quiet_thread([this] { keep_time(); });
  deliverer_ = quiet_thread([this] { deliver(); });
}

Batcher::~Batcher() {
  Answers left;
  {
    const Lock lock(mutex_);
    while (!queued_.empty()) {
      const RequestPtr request = queued_.begin()->second;
      Actions actions;
      if (policy_.cancel(clock_.now(), request->id, actions)) left.push_back(request);
      queued_.erase(request->id);
      const Answers expired = apply(actions);
      left.insert(left.end(), expired.begin(), expired.end());
    }
    is_closing_ = true;
    for (auto& runner : runners_) runner->assigned.notify_one();
    time_changed_.notify_one();
  }
  for (auto& runner : runners_) runner->thread.join();
  timer_.join();
  {
    const std::lock_guard lock(delivery_mutex_);
    no_more_deliveries_ = true;
    delivery_ready_.notify_one();
  }
  deliverer_.join();
  answer_all(left, Code::kUnavailable, "the server is going away");
}

std::optional<Refusal> Batcher::submit(const RequestPtr& request) {
  Answers expired;
  std::optional<Refusal> refusal;
  {
    const Lock lock(mutex_);
    request->id = ++last_id_;
    request->arrival = clock_.now();
    request->rows_left = request->rows;
    const Submission submission{request->id, request->shape, request->rows, request->priority, request->deadline};
    Actions actions;
    // Known before it is submitted: it may be in a batch at once.
    queued_.emplace(request->id, request);
    refusal = is_closing_ ? Refusal::kDraining : policy_.submit(request->arrival, submission, actions);
    if (refusal) queued_.erase(request->id);
    expired = apply(actions);
  }
  if (refusal) metrics_.add_refusal(*refusal);
  answer_all(expired, Code::kDeadline, kWaitedTooLong);
  return refusal;
}

void Batcher::cancel(const Request& request) {
  Answers expired, cancelled;
  {
    const Lock lock(mutex_);
    const auto found = queued_.find(request.id);
    Actions actions;
    if (found != queued_.end() && policy_.cancel(clock_.now(), request.id, actions)) {
      cancelled.push_back(found->second);
      queued_.erase(found);
    }
    expired = apply(actions);
  }
  answer_all(cancelled, Code::kCancelled, "the request was cancelled");
  answer_all(expired, Code::kDeadline, kWaitedTooLong);
}

bool Batcher::drain(std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  Actions actions;
  policy_.drain(clock_.now(), actions);
  const Answers expired = apply(actions);
  lock.unlock();
  answer_all(expired, Code::kDeadline, kWaitedTooLong);
  lock.lock();
  return became_idle_.wait_for(lock, timeout, [this] { return policy_.is_idle() && pending_deliveries_ == 0; });
}

int64_t Batcher::queued_rows() const {
  const Lock lock(mutex_);
  return policy_.queued_rows();
}

std::map<int32_t, Micros> Batcher::longest_waits() const {
  const Lock lock(mutex_);
  std::map<int32_t, Micros> waits;
  for (const auto& [priority, arrival] : policy_.oldest_arrivals()) waits[priority] = clock_.now() - arrival;
  return waits;
}

Batcher::Answers Batcher::apply(Actions& actions) {
  Answers expired;
  for (const uint64_t id : actions.expired) {
    const auto found = queued_.find(id);
    if (found == queued_.end()) continue;
    expired.push_back(std::move(found->second));
    queued_.erase(found);
  }
  for (Batch& batch : actions.batches) {
    Assignment assignment;
    for (const Part& part : batch.parts) {
      const auto found = queued_.find(part.id);
      assignment.parts.push_back(BatchPart{found->second, part.first, part.rows});
      // The rows of a request leave the queue in order: behind the last of them nothing is left.
      if (part.first + part.rows == found->second->rows) queued_.erase(found);
    }
    Runner& runner = *runners_[static_cast<size_t>(batch.runner)];
    assignment.batch = std::move(batch);
    runner.next = std::move(assignment);
    runner.assigned.notify_one();
  }
  const Micros wake = policy_.next_wake(clock_.now());
  if (wake < planned_wake_) {
    planned_wake_ = wake;
    time_changed_.notify_one();
  }
  if (policy_.is_idle() && pending_deliveries_ == 0) became_idle_.notify_all();
  return expired;
}

void Batcher::run(int index) {
  Runner& runner = *runners_[static_cast<size_t>(index)];
  Lock lock(mutex_);
  for (;;) {
    runner.assigned.wait(lock, [&] { return runner.next || is_closing_; });
    if (!runner.next) return;
    const Assignment assignment = std::move(*runner.next);
    runner.next.reset();
    ++pending_deliveries_;
    lock.unlock();

    const Micros start = clock_.now();
    for (const BatchPart& part : assignment.parts) {
      if (part.first == 0) metrics_.add_wait(static_cast<double>(start - part.request->arrival) * 1e-6);
    }
    Executor::Delivery delivery;
    try {
      delivery = executor_.execute(assignment.batch, assignment.parts);
    } catch (const InvalidRequest& error) {
      // All of a batch have the sizes that do not fit.
      delivery = [this, parts = assignment.parts, text = std::string(error.what())] { fail(parts, {Code::kInvalid, text}); };
    } catch (const std::exception& error) {
      delivery = [this, parts = assignment.parts, text = std::string(error.what())] { fail(parts, {Code::kFault, text}); };
    }
    metrics_.add_batch(assignment.batch, static_cast<double>(clock_.now() - start) * 1e-6);
    {
      const std::lock_guard handing(delivery_mutex_);
      deliveries_.push_back(std::move(delivery));
      delivery_ready_.notify_one();
    }

    lock.lock();
    Actions actions;
    policy_.finish(clock_.now(), index, actions);
    const Answers expired = apply(actions);
    lock.unlock();
    answer_all(expired, Code::kDeadline, kWaitedTooLong);
    lock.lock();
  }
}

void Batcher::keep_time() {
  Lock lock(mutex_);
  while (!is_closing_) {
    planned_wake_ = policy_.next_wake(clock_.now());
    if (planned_wake_ == kNever) {
      time_changed_.wait(lock);
    } else if (const Micros left = planned_wake_ - clock_.now(); left > 0) {
      time_changed_.wait_for(lock, std::chrono::microseconds(left));
    }
    if (is_closing_) return;
    Actions actions;
    policy_.advance(clock_.now(), actions);
    const Answers expired = apply(actions);
    lock.unlock();
    answer_all(expired, Code::kDeadline, kWaitedTooLong);
    lock.lock();
  }
}

void Batcher::deliver() {
  std::unique_lock lock(delivery_mutex_);
  for (;;) {
    delivery_ready_.wait(lock, [this] { return !deliveries_.empty() || no_more_deliveries_; });
    if (deliveries_.empty()) return;
    const Executor::Delivery delivery = std::move(deliveries_.front());
    deliveries_.pop_front();
    lock.unlock();
    delivery();
    {
      const Lock counting(mutex_);
      --pending_deliveries_;
      if (policy_.is_idle() && pending_deliveries_ == 0) became_idle_.notify_all();
    }
    lock.lock();
  }
}

void Batcher::fail(const std::vector<BatchPart>& parts, const Answer& answer) {
  for (const BatchPart& part : parts) {
    part.request->answer(answer);
    // Nothing waits for the rest of it.
    cancel(*part.request);
  }
}

void Batcher::answer_all(const Answers& requests, Code code, const std::string& message) {
  for (const RequestPtr& request : requests) request->answer({code, message});
}

}  // namespace trunnion::bundle
