#include "distributed/message_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

namespace trunnion::distributed {
namespace {

constexpr uint32_t kMagic = 0x4e52546du;  // "mTRN"
// Far above any batch; a length beyond it is a fault, not a message.
constexpr uint64_t kMaxPayload = uint64_t{1} << 30;

struct Header {
  uint32_t magic = kMagic;
  uint32_t version = kProtocolVersion;
  MessageType type{};
  uint32_t reserved = 0;
  uint64_t size = 0;
};

void set_send_timeout(int fd, double seconds) {
  if (seconds <= 0) return;
  timeval timeout{};
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_usec = static_cast<suseconds_t>(std::fmod(seconds, 1.0) * 1e6);
  if (timeout.tv_sec == 0 && timeout.tv_usec == 0) timeout.tv_usec = 1;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

}  // namespace

MessageSocket::MessageSocket(int fd, double send_timeout_s) : fd_(fd) {
  int type = 0;
  socklen_t length = sizeof type;
  sockaddr_storage peer;
  socklen_t peer_length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) {
    throw std::invalid_argument("descriptor " + std::to_string(fd) + " is no connected stream socket");
  }
  // A process started later must not keep the connection open.
  fcntl(fd, F_SETFD, fcntl(fd, F_GETFD) | FD_CLOEXEC);
  set_send_timeout(fd, send_timeout_s);
}

MessageSocket::~MessageSocket() { close(fd_); }

void MessageSocket::shut_down() noexcept { shutdown(fd_, SHUT_RDWR); }

void MessageSocket::send(MessageType type, std::span<const std::byte> payload) {
  const std::lock_guard lock(sending_);
  Header header{.type = type, .size = payload.size()};
  iovec parts[2] = {{&header, sizeof header}, {const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  size_t left = sizeof header + payload.size();
  while (left > 0) {
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      const bool timed_out = errno == EAGAIN || errno == EWOULDBLOCK;
      throw ConnectionLost(timed_out ? "it does not read what it is sent" : std::strerror(errno));
    }
    left -= static_cast<size_t>(sent);
    auto skip = static_cast<size_t>(sent);
    for (iovec& part : parts) {
      const size_t taken = std::min(skip, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      skip -= taken;
    }
  }
}

void MessageSocket::receive_all(void* to, size_t size) {
  auto* next = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t received = recv(fd_, next, size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) throw ConnectionLost(std::strerror(errno));
    if (received == 0) throw ConnectionLost("the connection is closed");
    next += received;
    size -= static_cast<size_t>(received);
  }
}

Message MessageSocket::receive() {
  Header header;
  receive_all(&header, sizeof header);
  if (header.magic != kMagic) throw ProtocolError("what it sends is no message of trunnion");
  if (header.version != kProtocolVersion) {
    throw ProtocolError("it speaks protocol " + std::to_string(header.version) + ", this side " +
                        std::to_string(kProtocolVersion));
  }
  if (header.size > kMaxPayload) throw ProtocolError("a message of " + std::to_string(header.size) + " bytes");
  Message message{header.type, Bytes(header.size)};
  receive_all(message.payload.data(), message.payload.size());
  return message;
}

}  // namespace trunnion::distributed
