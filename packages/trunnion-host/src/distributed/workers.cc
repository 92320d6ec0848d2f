#include "distributed/workers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "serving/quiet_thread.h"

namespace trunnion::distributed {
namespace {

// When one rank goes, the others fail soon after; who went without a word is the cause.
constexpr std::chrono::milliseconds kGrace{200};
constexpr double kCloseSeconds = 10;

}  // namespace

Workers::Workers(std::vector<std::unique_ptr<MessageSocket>> sockets, double timeout_s,
                 std::function<void(const std::string&)> on_lost)
    : timeout_s_(timeout_s), on_lost_(std::move(on_lost)), ranks_(sockets.size()) {
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i].socket = std::move(sockets[i]);
  for (Rank& rank : ranks_) rank.reader = serving::quiet_thread([this, &rank] { read(rank); });
}

Workers::~Workers() {
  {
    const Lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  abandon();
  for (Rank& rank : ranks_) rank.reader.join();
}

void Workers::read(Rank& rank) {
  try {
    while (true) {
      const Message message = rank.socket->receive();
      if (message.type == MessageType::kError) {
        PayloadReader reader(message.payload);
        const auto status = static_cast<trn_status>(reader.take<int32_t>());
        return lose(rank, status, reader.take_text(), true);
      }
      take(rank, message);
    }
  } catch (const ConnectionLost&) {
    lose(rank, TRN_FATAL, "its process has ended, or closed the connection", false);
  } catch (const ProtocolError& error) {
    lose(rank, TRN_FATAL, error.what(), true);
  }
}

void Workers::take(Rank& rank, const Message& message) {
  PayloadReader reader(message.payload);
  const Lock lock(mutex_);
  if (message.type == MessageType::kLoaded) rank.fingerprint = reader.take_list(message.payload.size());
  if (message.type == MessageType::kExecuted) {
    // A worker of another build may know more figures, or fewer.
    std::memcpy(&rank.stats, message.payload.data(), std::min(sizeof rank.stats, message.payload.size()));
    rank.stats.struct_size = sizeof rank.stats;
    ++rank.executed;
  }
  rank.reached = message.type;
  changed_.notify_all();
}

void Workers::lose(Rank& rank, trn_status status, const std::string& error, bool said_why) {
  Lock lock(mutex_);
  rank.lost = true;
  rank.said_why = said_why;
  rank.status = status;
  rank.error = error;
  changed_.notify_all();
  wait(lock, std::chrono::duration<double>(kGrace).count(), [this] { return closing_; });
  if (closing_ || !watched_ || reported_) return;
  reported_ = true;
  const std::string text = line(*first_lost());
  lock.unlock();
  on_lost_(text);
  abandon();
}

const Workers::Rank* Workers::first_lost() const {
  const Rank* found = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.lost && (found == nullptr || (found->said_why && !rank.said_why))) found = &rank;
  }
  return found;
}

std::string Workers::line(const Rank& rank) const { return "rank " + std::to_string(number(rank)) + ": " + rank.error; }

void Workers::throw_lost(const Rank& rank) const {
  // Only while loading is there anything to correct.
  throw_status(watched_ ? TRN_FATAL : rank.status, line(rank), "");
}

template <typename Condition>
bool Workers::wait(Lock& lock, double seconds, Condition condition) {
  if (seconds > 0) return changed_.wait_for(lock, std::chrono::duration<double>(seconds), condition);
  changed_.wait(lock, condition);
  return true;
}

void Workers::tell(MessageType type, std::span<const std::byte> payload) {
  for (Rank& rank : ranks_) {
    try {
      rank.socket->send(type, payload);
    } catch (const ConnectionLost& error) {
      Lock lock(mutex_);
      // Its last words may be on the way.
      wait(lock, std::chrono::duration<double>(kGrace).count(), [&] { return rank.lost; });
      if (const Rank* lost = first_lost(); lost != nullptr) throw_lost(*lost);
      throw Fatal("rank " + std::to_string(number(rank)) + ": " + error.what(), "");
    }
  }
}

void Workers::await(MessageType reached, const char* what) {
  Lock lock(mutex_);
  const auto is_there = [&](const Rank& rank) { return rank.reached >= reached; };
  const bool in_time = wait(lock, timeout_s_, [&] {
    return first_lost() != nullptr || std::all_of(ranks_.begin(), ranks_.end(), is_there);
  });
  if (const Rank* lost = first_lost(); lost != nullptr) throw_lost(*lost);
  if (in_time) return;
  const Rank& late = *std::find_if_not(ranks_.begin(), ranks_.end(), is_there);
  char text[128];
  std::snprintf(text, sizeof text, "rank %d: has not %s within %g s of rank 0", number(late), what, timeout_s_);
  throw Fatal(text, "");
}

void Workers::await_loaded(ModelFacts facts) {
  await(MessageType::kLoaded, "loaded the model");
  for (const Rank& rank : ranks_) {
    if (rank.fingerprint == facts.fingerprint) continue;
    throw Refused("rank " + std::to_string(number(rank)) + ": has loaded another model, or with other limits, than rank 0",
                  "");
  }
  codec_.emplace(std::move(facts));
}

Executor Workers::create(const trn_create_options& options) const {
  if (ranks_.empty()) return Executor(options);
  try {
    return Executor(options);
  } catch (const Refused& error) {
    throw Refused(std::string("rank 0: ") + error.what(), error.field());
  } catch (const Error& error) {
    throw Fatal(std::string("rank 0: ") + error.what(), error.field());
  }
}

std::string Workers::start(Executor& mine, const trn_limits& limits, const std::vector<int32_t>& num_blocks) {
  if (!ranks_.empty()) {
    await_loaded(read_facts(mine, limits));
    PayloadWriter(payload_).put_list(num_blocks);
    tell(MessageType::kAllocate, payload_);
  }
  mine.allocate_kv_cache(num_blocks);
  if (ranks_.empty()) return mine.warm_up();
  await(MessageType::kAllocated, "allocated its caches");
  {
    const Lock lock(mutex_);
    watched_ = true;
  }
  tell(MessageType::kWarmUp);
  try {
    std::string report = mine.warm_up();
    await(MessageType::kWarm, "warmed up");
    return report;
  } catch (const Error& error) {
    throw Fatal(explain(error.what()), error.field());
  }
}

trn_forward_output Workers::execute(Executor& mine, const trn_forward_batch& batch, const trn_input_buffers& from) {
  if (ranks_.empty()) return mine.execute(batch);
  mine.validate(batch);
  codec_->encode(batch, from, payload_);
  tell(MessageType::kExecute, payload_);
  {
    const Lock lock(mutex_);
    ++sent_;
  }
  try {
    return mine.execute(batch);
  } catch (const Error& error) {
    throw Fatal(error.what(), error.field());
  }
}

trn_executor_stats Workers::stats(int32_t rank) {
  Lock lock(mutex_);
  const Rank& asked = ranks_.at(static_cast<size_t>(rank) - 1);
  // The answer to the last step follows it closely.
  wait(lock, 1.0, [&] { return asked.lost || asked.executed >= sent_; });
  return asked.stats;
}

std::string Workers::explain(const std::string& reason) {
  if (ranks_.empty()) return reason;
  Lock lock(mutex_);
  wait(lock, 2 * std::chrono::duration<double>(kGrace).count(), [this] { return first_lost() != nullptr; });
  const Rank* lost = first_lost();
  return lost != nullptr ? line(*lost) : "rank 0: " + reason;
}

std::string Workers::silent_ranks() {
  const Lock lock(mutex_);
  std::string names;
  int count = 0;
  for (const Rank& rank : ranks_) {
    if (rank.executed >= sent_) continue;
    names += (count++ == 0 ? "" : ", ") + std::to_string(number(rank));
  }
  return count == 0 ? "" : (count == 1 ? "rank " : "ranks ") + names;
}

void Workers::close() {
  {
    const Lock lock(mutex_);
    if (closing_ || first_lost() != nullptr) return;
    closing_ = true;
  }
  try {
    tell(MessageType::kClose);
  } catch (const Error&) {
    // It is gone already.
  }
  Lock lock(mutex_);
  wait(lock, kCloseSeconds, [this] {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.lost; });
  });
}

void Workers::abandon() noexcept {
  for (Rank& rank : ranks_) rank.socket->shut_down();
}

std::vector<std::unique_ptr<MessageSocket>> take_sockets(const trn_host_options& options) {
  const int32_t expected = std::max(options.executor.tp_size, 1) - 1;
  if (options.num_workers != expected || (expected > 0 && options.worker_sockets == nullptr)) {
    throw std::invalid_argument("num_workers is " + std::to_string(options.num_workers) + ", tp_size " +
                                std::to_string(options.executor.tp_size) + " takes " + std::to_string(expected));
  }
  if (options.executor.tp_rank != 0) {
    throw std::invalid_argument("tp_rank is " + std::to_string(options.executor.tp_rank) + ", the host is rank 0");
  }
  std::vector<std::unique_ptr<MessageSocket>> sockets;
  for (int32_t i = 0; i < expected; ++i) {
    sockets.push_back(std::make_unique<MessageSocket>(options.worker_sockets[i], options.worker_timeout_s));
  }
  return sockets;
}

}  // namespace trunnion::distributed
