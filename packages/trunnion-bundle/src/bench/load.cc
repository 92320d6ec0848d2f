#include "bench/load.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <stdexcept>

namespace trunnion::bundle {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using Seconds = std::chrono::duration<double>;

constexpr const char* kMethod = "/inference.GRPCInferenceService/ModelInfer";
// After which a call counts as an error.
constexpr std::chrono::seconds kCallLimit{20};

grpc::ByteBuffer serialized(const inference::ModelInferRequest& request) {
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

SteadyTime after(SteadyTime time, double seconds) {
  return time + std::chrono::duration_cast<SteadyTime::duration>(Seconds(seconds));
}

// A call in flight; it stays where it is, for gRPC writes into it.
struct Call {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  grpc::ByteBuffer response;
  grpc::Status status;
  SteadyTime planned;
};

class GrpcConnections final : public Connections {
 public:
  GrpcConnections(const std::string& server, int channels) {
    for (int i = 0; i < channels; ++i) {
      grpc::ChannelArguments arguments;
      // Else all channels would share one connection.
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetMaxReceiveMessageSize(-1);
      stubs_.push_back(std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments)));
    }
  }

  AskedAnswer try_ask(const inference::ModelInferRequest& request) override {
    grpc::CompletionQueue queue;
    Call call;
    start(call, serialized(request), std::chrono::steady_clock::now(), *stubs_[0], queue);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    AskedAnswer answer;
    answer.code = static_cast<int>(call.status.error_code());
    answer.status = call.status.ok() ? "OK" : std::to_string(answer.code) + ": " + call.status.error_message();
    if (!call.status.ok()) return answer;
    grpc::Slice slice;
    call.response.DumpToSingleSlice(&slice);
    if (!answer.response.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) throw std::runtime_error("the answer is no ModelInferResponse");
    return answer;
  }

  LoadResult run(const inference::ModelInferRequest& request, const LoadPlan& plan, const std::function<void()>& on_measure) override;

 private:
  static void start(Call& call, const grpc::ByteBuffer& bytes, SteadyTime planned, grpc::GenericStub& stub, grpc::CompletionQueue& queue) {
    call.context = std::make_unique<grpc::ClientContext>();
    call.context->set_deadline(std::chrono::system_clock::now() + kCallLimit);
    call.planned = planned;
    call.response.Clear();
    call.reader = stub.PrepareUnaryCall(call.context.get(), kMethod, bytes, &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.response, &call.status, &call);
  }

  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

// One run, on the calling thread.
class Run {
 public:
  Run(const LoadPlan& plan, const std::function<void()>& on_measure)
      : on_measure_(on_measure),
        begin_(std::chrono::steady_clock::now()),
        measured_from_(after(begin_, plan.warmup_seconds)),
        end_(after(measured_from_, plan.seconds)) {}

  SteadyTime begin() const { return begin_; }
  // One error voids the run, so it ends with it.
  bool is_over(SteadyTime now) const { return now >= end_ || result_.errors > 0; }

  void tick(SteadyTime now) {
    if (!is_measuring_ && now >= measured_from_) {
      is_measuring_ = true;
      started_ = now;
      on_measure_();
    }
    if (is_measuring_ && !is_done_ && now >= end_) {
      is_done_ = true;
      result_.seconds = Seconds(now - started_).count();
      on_measure_();
    }
  }

  void ended(const Call& call, SteadyTime now) {
    if (!call.status.ok()) {
      if (result_.errors++ == 0) result_.first_error = call.status.error_message();
    } else if (is_measuring_ && !is_done_) {
      result_.latencies.push_back(std::chrono::duration<double, std::milli>(now - call.planned).count());
    }
  }

  LoadResult take() {
    std::sort(result_.latencies.begin(), result_.latencies.end());
    return std::move(result_);
  }

 private:
  const std::function<void()>& on_measure_;
  const SteadyTime begin_, measured_from_, end_;
  SteadyTime started_;
  bool is_measuring_ = false, is_done_ = false;
  LoadResult result_;
};

LoadResult GrpcConnections::run(const inference::ModelInferRequest& request, const LoadPlan& plan, const std::function<void()>& on_measure) {
  const grpc::ByteBuffer bytes = serialized(request);
  grpc::CompletionQueue queue;
  Run run(plan, on_measure);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<Call*> free;
  std::mt19937_64 random(1);
  std::exponential_distribution<double> gap(plan.rate > 0 ? plan.rate : 1);
  SteadyTime next = run.begin();
  size_t in_flight = 0, started = 0;
  const auto launch = [&](SteadyTime planned) {
    if (free.empty()) {
      calls.push_back(std::make_unique<Call>());
      free.push_back(calls.back().get());
    }
    Call* call = free.back();
    free.pop_back();
    ++in_flight;
    start(*call, bytes, planned, *stubs_[started++ % stubs_.size()], queue);
  };
  for (int64_t i = 0; i < plan.concurrency; ++i) launch(run.begin());
  for (;;) {
    SteadyTime now = std::chrono::steady_clock::now();
    run.tick(now);
    const bool is_over = run.is_over(now);
    if (is_over && in_flight == 0) break;
    // Calls that are due start even if the server answers none: their wait counts.
    while (plan.rate > 0 && !is_over && next <= now) {
      launch(next);
      next = after(next, gap(random));
    }
    const SteadyTime until = plan.rate > 0 && !is_over ? next : after(now, 0.01);
    void* tag = nullptr;
    bool ok = false;
    const auto status = queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + (until - now));
    if (status != grpc::CompletionQueue::GOT_EVENT) continue;
    now = std::chrono::steady_clock::now();
    auto* call = static_cast<Call*>(tag);
    run.tick(now);
    run.ended(*call, now);
    --in_flight;
    free.push_back(call);
    if (plan.rate <= 0 && !run.is_over(now)) launch(now);
  }
  queue.Shutdown();
  return run.take();
}

}  // namespace

inference::ModelInferResponse Connections::ask(const inference::ModelInferRequest& request) {
  AskedAnswer answer = try_ask(request);
  if (answer.code != 0) throw std::runtime_error(answer.status);
  return std::move(answer.response);
}

std::unique_ptr<Connections> connect(const std::string& server, int channels) {
  return std::make_unique<GrpcConnections>(server, channels);
}

}  // namespace trunnion::bundle
