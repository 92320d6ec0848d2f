// A rank above 0: obeys rank 0 until told to close, and does not outlive it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "distributed/batch_codec.h"
#include "distributed/message_socket.h"

namespace trunnion::distributed {

class WorkerLoop {
 public:
  explicit WorkerLoop(int fd);
  ~WorkerLoop();

  // On this thread: create the executor, then do what rank 0 says. Returns when rank 0 says close; throws what ended it
  // otherwise, after telling rank 0.
  void run(const trn_create_options& options);

 private:
  void serve(const trn_create_options& options);
  void listen();
  Message next();
  void report(trn_status status, const std::string& text) noexcept;
  Bytes& encoded(std::span<const int32_t> list);

  MessageSocket socket_;
  Bytes payload_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> inbox_;
  std::atomic<bool> ended_ = false;
  std::thread listener_;
};

}  // namespace trunnion::distributed
