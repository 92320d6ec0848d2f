// A connected stream socket between rank 0 and one worker that carries whole messages.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <stdexcept>

#include "distributed/payload.h"

namespace trunnion::distributed {

// Raised with every change of a message; both ends refuse another one.
inline constexpr uint32_t kProtocolVersion = 1;

enum class MessageType : uint32_t {
  // From a worker, in this order: loaded (its facts), allocated, warm, then one executed (its statistics) per execute.
  kLoaded = 1,
  kAllocated = 2,
  kWarm = 3,
  kExecuted = 4,
  // From a worker, its last: a trn_status and one line.
  kError = 5,
  // From rank 0.
  kAllocate = 11,
  kWarmUp = 12,
  kExecute = 13,
  kClose = 14,
};

struct Message {
  MessageType type{};
  Bytes payload;
};

// The other side has closed the connection, or it broke.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns the descriptor. Any thread may send; one thread receives.
class MessageSocket {
 public:
  // `send_timeout_s` 0 = none. std::invalid_argument when `fd` is no connected stream socket; it stays the caller's then.
  MessageSocket(int fd, double send_timeout_s);
  ~MessageSocket();
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  // ConnectionLost, also when the other side does not read for `send_timeout_s`.
  void send(MessageType type, std::span<const std::byte> payload = {});
  // Waits. ConnectionLost, or ProtocolError when what came is no message of this version.
  Message receive();
  // Both ends find the connection closed, now and in calls that wait.
  void shut_down() noexcept;

 private:
  void receive_all(void* to, size_t size);

  const int fd_;
  std::mutex sending_;
};

}  // namespace trunnion::distributed
