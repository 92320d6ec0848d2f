// Rank 0's view of the other ranks: what they are told, what they have answered, and which of them is lost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "distributed/batch_codec.h"
#include "distributed/message_socket.h"
#include "trunnion/serving.h"

namespace trunnion::distributed {

// Methods that wait or send throw trunnion::Error with a line that names the rank. Thread-safe.
class Workers {
 public:
  // Sockets of ranks 1, 2, ... `on_lost` is called once, on a thread of this object, when a rank is lost after warm_up
  // has begun: from there on rank 0 may wait for it in a collective. `timeout_s` bounds every wait; 0 = none.
  Workers(std::vector<std::unique_ptr<MessageSocket>> sockets, double timeout_s,
          std::function<void(const std::string&)> on_lost);
  ~Workers();

  int32_t count() const { return static_cast<int32_t>(ranks_.size()); }

  // Without workers these three are rank 0's own calls and nothing else.

  // Load rank 0; the workers load meanwhile.
  Executor create(const trn_create_options& options) const;
  // Allocate the caches and warm up, on every rank; the report is rank 0's.
  std::string start(Executor& mine, const trn_limits& limits, const std::vector<int32_t>& num_blocks);
  // One step on every rank. `batch` lies in the lent buffers `from`. Refused if nothing was sent; once it is, whatever
  // goes wrong is Fatal: the others are running the step.
  trn_forward_output execute(Executor& mine, const trn_forward_batch& batch, const trn_input_buffers& from);

  // The statistics of one rank after all steps so far. std::out_of_range for another rank.
  trn_executor_stats stats(int32_t rank);
  // Why rank 0 failed with `reason`: because of another rank, or on its own.
  std::string explain(const std::string& reason);
  // "rank 1" or "ranks 1, 2", whoever has not answered the last step; "" if all have.
  std::string silent_ranks();

  // Ask all to close, and wait until they have.
  void close();
  // Close the connections: workers find that out and exit.
  void abandon() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    std::unique_ptr<MessageSocket> socket;
    std::thread reader;
    // Under mutex_.
    MessageType reached{};
    std::vector<int32_t> fingerprint;
    uint64_t executed = 0;
    trn_executor_stats stats{};
    bool lost = false, said_why = false;
    trn_status status = TRN_FATAL;
    std::string error;
  };
  using Lock = std::unique_lock<std::mutex>;

  void read(Rank& rank);
  void take(Rank& rank, const Message& message);
  void lose(Rank& rank, trn_status status, const std::string& error, bool said_why);
  void await_loaded(ModelFacts facts);
  void tell(MessageType type, std::span<const std::byte> payload = {});
  void await(MessageType reached, const char* what);
  template <typename Condition>
  bool wait(Lock& lock, double seconds, Condition condition);
  const Rank* first_lost() const;
  std::string line(const Rank& rank) const;
  // Under mutex_.
  int32_t number(const Rank& rank) const { return static_cast<int32_t>(&rank - ranks_.data()) + 1; }
  [[noreturn]] void throw_lost(const Rank& rank) const;

  const double timeout_s_;
  const std::function<void(const std::string&)> on_lost_;
  std::vector<Rank> ranks_;
  std::optional<BatchCodec> codec_;
  Bytes payload_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t sent_ = 0;
  bool watched_ = false, reported_ = false, closing_ = false;
};

// The sockets that the options name. std::invalid_argument when their number does not fit tp_size, or one is none.
std::vector<std::unique_ptr<MessageSocket>> take_sockets(const trn_host_options& options);

}  // namespace trunnion::distributed
