#include "distributed/worker_loop.h"

#include <unistd.h>

#include "serving/quiet_thread.h"

namespace trunnion::distributed {
namespace {

// EX_SOFTWARE of sysexits.h, as the host's own.
constexpr int kOrphanExitCode = 70;

}  // namespace

WorkerLoop::WorkerLoop(int fd) : socket_(fd, 0), listener_(serving::quiet_thread([this] { listen(); })) {}

WorkerLoop::~WorkerLoop() {
  ended_ = true;
  socket_.shut_down();
  listener_.join();
}

// The executor's thread may be deep in a collective that nobody will join any more: only _exit ends that.
void WorkerLoop::listen() {
  try {
    while (true) {
      Message message = socket_.receive();
      const bool last = message.type == MessageType::kClose;
      {
        const std::lock_guard lock(mutex_);
        inbox_.push_back(std::move(message));
      }
      changed_.notify_one();
      if (last) return;
    }
  } catch (const std::exception&) {
    if (!ended_) _exit(kOrphanExitCode);
  }
}

Message WorkerLoop::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !inbox_.empty(); });
  Message message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

void WorkerLoop::run(const trn_create_options& options) {
  try {
    serve(options);
  } catch (const Refused& error) {
    report(TRN_REFUSED, error.what());
    throw;
  } catch (const Failed& error) {
    report(TRN_FAILED, error.what());
    throw;
  } catch (const std::exception& error) {
    report(TRN_FATAL, error.what());
    throw;
  }
}

void WorkerLoop::report(trn_status status, const std::string& text) noexcept {
  ended_ = true;
  try {
    PayloadWriter writer(payload_);
    writer.put(static_cast<int32_t>(status));
    writer.put_text(text);
    socket_.send(MessageType::kError, payload_);
  } catch (const std::exception&) {
    // Rank 0 has gone, and needs no reason any more.
  }
}

Bytes& WorkerLoop::encoded(std::span<const int32_t> list) {
  PayloadWriter(payload_).put_list(list);
  return payload_;
}

void WorkerLoop::serve(const trn_create_options& options) {
  Executor executor(options);
  const ModelFacts facts = read_facts(executor, options.limits);
  std::vector<trn_input_buffers> sets;
  for (int32_t set = 0; set < facts.num_buffer_sets; ++set) sets.push_back(executor.input_buffers(set));
  const BatchCodec codec(facts);
  DecodedImages images;
  socket_.send(MessageType::kLoaded, encoded(facts.fingerprint));
  while (true) {
    const Message message = next();
    switch (message.type) {
      case MessageType::kAllocate:
        executor.allocate_kv_cache(PayloadReader(message.payload).take_list(facts.groups.size()));
        socket_.send(MessageType::kAllocated);
        break;
      case MessageType::kWarmUp:
        executor.warm_up();
        socket_.send(MessageType::kWarm);
        break;
      case MessageType::kExecute: {
        executor.wait(executor.execute(codec.decode(message.payload, sets, images)).fence);
        PayloadWriter(payload_).put(executor.stats());
        socket_.send(MessageType::kExecuted, payload_);
        break;
      }
      case MessageType::kClose:
        return;
      default:
        throw ProtocolError("rank 0 sent a message of type " + std::to_string(static_cast<uint32_t>(message.type)));
    }
  }
}

}  // namespace trunnion::distributed
