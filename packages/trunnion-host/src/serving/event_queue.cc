#include "serving/event_queue.h"

#include <algorithm>
#include <cstdio>

namespace trunnion::serving {
namespace {

bool has_event(const Channel& channel) { return !channel.tokens.empty() || channel.finish.has_value(); }

// False when the deadline has passed and `ready` still is false.
template <typename Ready>
bool wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                const std::optional<std::chrono::steady_clock::time_point>& deadline, Ready ready) {
  if (deadline) return condition.wait_until(lock, *deadline, ready);
  condition.wait(lock, ready);
  return true;
}

void write_token(const TokenEvent& token, trn_host_event& event) {
  event.type = TRN_EVENT_TOKEN;
  event.token_id = token.token_id;
  event.logprob = token.logprob;
  event.num_top = static_cast<int32_t>(token.top.size());
  for (size_t i = 0; i < token.top.size(); ++i) {
    event.top_ids[i] = token.top[i].first;
    event.top_logprobs[i] = token.top[i].second;
  }
}

void write_finish(const FinishEvent& finish, trn_host_event& event) {
  event.type = TRN_EVENT_FINISHED;
  event.finish_reason = finish.reason;
  event.stop_id = finish.stop_id;
  event.num_prompt_tokens = finish.num_prompt_tokens;
  event.num_cached_tokens = finish.num_cached_tokens;
  event.num_output_tokens = finish.num_output_tokens;
  event.num_preemptions = finish.num_preemptions;
  event.seed = finish.seed;
  std::snprintf(event.error, sizeof event.error, "%s", finish.error.c_str());
  event.embedding_size = static_cast<int32_t>(finish.embedding.size());
  std::copy(finish.embedding.begin(), finish.embedding.end(), event.embedding);
}

bool has_room(const FinishEvent& finish, const trn_host_event& event) {
  if (finish.embedding.empty()) return true;
  return event.embedding != nullptr && event.embedding_capacity >= std::ssize(finish.embedding);
}

}  // namespace

EventHub::EventHub(int32_t capacity, std::function<void()> on_room)
    : capacity_(capacity), on_room_(std::move(on_room)) {}

std::shared_ptr<Channel> EventHub::open(uint64_t id, std::string& sealed) {
  const std::lock_guard lock(mutex_);
  if (is_sealed_) {
    sealed = seal_text_;
    return nullptr;
  }
  auto channel = std::make_shared<Channel>();
  channel->id = id;
  channels_[id] = channel;
  return channel;
}

void EventHub::push(Channel& channel, TokenEvent token) {
  const std::lock_guard lock(mutex_);
  if (channel.finish || channel.gone) return;
  channel.tokens.push_back(std::move(token));
  ++channel.num_waiting;
  channel.readable.notify_one();
  any_readable_.notify_one();
}

void EventHub::finish(Channel& channel, FinishEvent finish) {
  const std::lock_guard lock(mutex_);
  if (channel.finish || channel.gone) return;
  channel.finish = std::move(finish);
  channel.readable.notify_all();
  any_readable_.notify_all();
}

void EventHub::seal(int32_t reason, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (is_sealed_) return;
  is_sealed_ = true;
  seal_text_ = text;
  for (auto& [id, channel] : channels_) {
    if (!channel->finish) channel->finish = FinishEvent{.reason = reason, .error = text};
    channel->readable.notify_all();
  }
  any_readable_.notify_all();
}

std::string EventHub::sealed() const {
  const std::lock_guard lock(mutex_);
  return seal_text_;
}

trn_host_status EventHub::next(uint64_t request_id, int64_t timeout_ms, trn_host_event& event) {
  Deadline deadline;
  // Longer than a year is for ever; the clock could not hold much more.
  if (timeout_ms >= 0 && timeout_ms < int64_t{366} * 24 * 3600 * 1000) {
    deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  }
  Lock lock(mutex_);
  if (request_id == 0) return next_of_any(lock, deadline, event);
  const auto found = channels_.find(request_id);
  if (found != channels_.end()) return next_of(lock, found->second, deadline, event);
  return is_sealed_ && channels_.empty() ? TRN_HOST_CLOSED : TRN_HOST_UNKNOWN_REQUEST;
}

// The channel is held by value: another reader may end its place in the map.
trn_host_status EventHub::next_of(Lock& lock, std::shared_ptr<Channel> channel, const Deadline& deadline,
                                  trn_host_event& event) {
  const auto ready = [&] { return channel->gone || has_event(*channel); };
  if (!wait_until(channel->readable, lock, deadline, ready)) return TRN_HOST_TIMEOUT;
  if (channel->gone) return TRN_HOST_UNKNOWN_REQUEST;
  return take(lock, channel, event);
}

trn_host_status EventHub::next_of_any(Lock& lock, const Deadline& deadline, trn_host_event& event) {
  std::shared_ptr<Channel> channel;
  const auto ready = [&] {
    // Round robin, so that a request that is always readable hides no other.
    const auto begin = channels_.upper_bound(last_any_);
    const auto readable = [](const auto& entry) { return has_event(*entry.second); };
    auto found = std::find_if(begin, channels_.end(), readable);
    if (found == channels_.end()) found = std::find_if(channels_.begin(), channels_.end(), readable);
    if (found != channels_.end()) channel = found->second;
    return channel != nullptr || (is_sealed_ && channels_.empty());
  };
  if (!wait_until(any_readable_, lock, deadline, ready)) return TRN_HOST_TIMEOUT;
  if (channel == nullptr) return TRN_HOST_CLOSED;
  last_any_ = channel->id;
  return take(lock, channel, event);
}

trn_host_status EventHub::take(Lock& lock, const std::shared_ptr<Channel>& channel, trn_host_event& event) {
  event.request_id = channel->id;
  bool made_room = false;
  if (!channel->tokens.empty()) {
    write_token(channel->tokens.front(), event);
    channel->tokens.pop_front();
    made_room = channel->num_waiting-- == capacity_;
  } else {
    if (!has_room(*channel->finish, event)) return TRN_HOST_INVALID;
    write_finish(*channel->finish, event);
    channel->gone = true;
    channels_.erase(channel->id);
    // Other readers of this request, and readers of any after the last one, have nothing left to wait for.
    channel->readable.notify_all();
    any_readable_.notify_all();
  }
  lock.unlock();
  if (made_room) on_room_();
  return TRN_HOST_OK;
}

}  // namespace trunnion::serving
