#include "model/model.h"

namespace trunnion::bundle {
namespace {

BatchingOptions with_latencies(BatchingOptions options, const std::vector<Micros>& latencies) {
  options.latency = latencies;
  return options;
}

std::string refusal_text(const SignatureSpec& spec, Refusal refusal, int64_t rows) {
  const BatchingOptions& options = spec.batching.options;
  switch (refusal) {
    case Refusal::kQueueFull: return "the queue is full: " + std::to_string(options.max_queue_rows) + " rows at most";
    case Refusal::kTooLarge: {
      const int64_t most = options.oversize == Oversize::kRefuse ? options.allowed.back() : options.max_queue_rows;
      return "the request has " + std::to_string(rows) + " rows, at most " + std::to_string(most) + " are allowed";
    }
    case Refusal::kExpired: return "the deadline had passed when the request came";
    case Refusal::kDraining: return "the server is going away";
  }
  return "";
}

Code code_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kQueueFull: return Code::kQueueFull;
    case Refusal::kTooLarge: return Code::kInvalid;
    case Refusal::kExpired: return Code::kDeadline;
    case Refusal::kDraining: return Code::kUnavailable;
  }
  return Code::kFault;
}

}  // namespace

Signature::Signature(const Contract& contract, const SignatureSpec& spec, std::unique_ptr<Engine> engine,
                     const std::filesystem::path& folder, bool allows_plugins)
    : spec_(spec),
      program_(spec, contract.modules.at(spec.module), "bundle.json.signatures." + spec.name, {.folder = folder, .symbols = spec.symbols, .allows_plugins = allows_plugins}),
      executor_(contract.modules.at(spec.module), program_, std::move(engine)),
      warm_from_(clock_.now()),
      latencies_(warm_up(spec, program_, executor_, clock_, folder)),
      warm_seconds_(static_cast<double>(clock_.now() - warm_from_) * 1e-6),
      batcher_(std::make_unique<Batcher>(with_latencies(spec.batching.options, latencies_), executor_, clock_, metrics_)) {}

bool Signature::submit(const RequestPtr& request, std::span<const WireTensor> inputs, const RequestOptions& options) {
  const int32_t levels = spec_.batching.options.num_priorities;
  if (options.priority < 0 || options.priority > levels) {
    throw InvalidRequest("priority is " + std::to_string(options.priority) + ", expected 0 (the default) ... " + std::to_string(levels));
  }
  if (options.timeout < 0) throw InvalidRequest("timeout is " + std::to_string(options.timeout) + " us, expected 0 (none) or more");
  admit(spec_, inputs, program_, *request);
  request->priority = options.priority == 0 ? spec_.batching.default_priority : static_cast<int32_t>(options.priority) - 1;
  request->deadline = options.deadline;
  const Micros now = clock_.now();
  if (options.timeout > 0 && options.timeout < kNever - now) request->deadline = std::min(request->deadline, now + options.timeout);
  const int64_t rows = request->rows;
  const auto refusal = batcher_->submit(request);
  if (!refusal) return true;
  if (*refusal == Refusal::kDraining) return false;
  request->answer({code_of(*refusal), refusal_text(spec_, *refusal, rows)});
  return true;
}

std::string Signature::metrics(const std::string& labels) const {
  const std::string mine = labels + ",signature=\"" + spec_.name + "\"";
  std::string text = metrics_.text(mine) + "bundle_queue_rows{" + mine + "} " + std::to_string(batcher_->queued_rows()) + "\n";
  const auto waits = batcher_->longest_waits();
  for (int32_t level = 0; level < spec_.batching.options.num_priorities; ++level) {
    const auto wait = waits.find(level);
    const double seconds = wait == waits.end() ? 0 : static_cast<double>(wait->second) * 1e-6;
    // Clients count from 1.
    text += "bundle_queue_oldest_seconds{" + mine + ",priority=\"" + std::to_string(level + 1) + "\"} " + std::to_string(seconds) + "\n";
  }
  return text;
}

}  // namespace trunnion::bundle
