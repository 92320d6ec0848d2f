// Where events wait for their reader: one bounded channel per request, and a hub that finds them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trunnion/serving.h"

namespace trunnion::serving {

struct TokenEvent {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

struct FinishEvent {
  int32_t reason = TRN_FINISH_ERROR;
  int32_t stop_id = -1;
  int32_t num_prompt_tokens = 0, num_cached_tokens = 0, num_output_tokens = 0, num_preemptions = 0;
  uint64_t seed = 0;
  std::string error;
  std::vector<float> embedding = {};
};

// Filled and emptied under the hub's lock; only `num_waiting` is read without it.
struct Channel {
  uint64_t id = 0;
  std::deque<TokenEvent> tokens;
  std::optional<FinishEvent> finish;
  bool gone = false;  // its finish has been read
  std::atomic<int32_t> num_waiting = 0;
  std::condition_variable readable;
};

class EventHub {
 public:
  // A channel that holds `capacity` unread tokens is full; `on_room` is called when a reader makes room in it.
  EventHub(int32_t capacity, std::function<void()> on_room);

  // A new channel, or null and the reason once the hub is sealed.
  std::shared_ptr<Channel> open(uint64_t id, std::string& sealed);
  // `coming` tokens are on their way to it.
  bool full(const Channel& channel, int32_t coming) const { return channel.num_waiting.load() + coming >= capacity_; }

  // Of the loop thread. A channel that seal() has finished ignores both.
  void push(Channel& channel, TokenEvent token);
  void finish(Channel& channel, FinishEvent finish);
  // Finish every open channel and open no more. The first call decides the text.
  void seal(int32_t reason, const std::string& text);
  std::string sealed() const;

  // request_id 0 = any, oldest request first. timeout_ms < 0 = no limit. CLOSED once sealed and empty.
  trn_host_status next(uint64_t request_id, int64_t timeout_ms, trn_host_event& event);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  trn_host_status next_of(Lock& lock, std::shared_ptr<Channel> channel, const Deadline& deadline,
                          trn_host_event& event);
  trn_host_status next_of_any(Lock& lock, const Deadline& deadline, trn_host_event& event);
  // INVALID when the reader's memory cannot hold the event's embedding.
  trn_host_status take(Lock& lock, const std::shared_ptr<Channel>& channel, trn_host_event& event);

  const int32_t capacity_;
  const std::function<void()> on_room_;
  mutable std::mutex mutex_;
  std::condition_variable any_readable_;
  std::map<uint64_t, std::shared_ptr<Channel>> channels_;
  uint64_t last_any_ = 0;  // the request that the last next_of_any() served
  bool is_sealed_ = false;
  std::string seal_text_;
};

}  // namespace trunnion::serving
