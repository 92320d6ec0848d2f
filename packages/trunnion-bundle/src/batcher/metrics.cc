#include "batcher/metrics.h"

#include <cstdio>

namespace trunnion::bundle {
namespace {

std::string line(const std::string& name, const std::string& labels, double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", value);
  return name + "{" + labels + "} " + text + "\n";
}

}  // namespace

void Histogram::add(double seconds) {
  for (size_t i = 0; i < kBounds.size(); ++i) counts_[i] += seconds <= kBounds[i] ? 1 : 0;
  ++count_;
  sum_ += seconds;
}

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string text;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    char bound[32];
    std::snprintf(bound, sizeof bound, "%g", kBounds[i]);
    text += line(name + "_bucket", labels + ",le=\"" + bound + "\"", static_cast<double>(counts_[i]));
  }
  text += line(name + "_bucket", labels + ",le=\"+Inf\"", static_cast<double>(count_));
  text += line(name + "_count", labels, static_cast<double>(count_));
  return text + line(name + "_sum", labels, sum_);
}

void Metrics::add_answer(Code code, int64_t rows) {
  const std::lock_guard lock(mutex_);
  ++requests_[code];
  if (code == Code::kOk) rows_ += static_cast<uint64_t>(rows);
}

void Metrics::add_refusal(Refusal refusal) {
  const std::lock_guard lock(mutex_);
  ++refusals_[refusal];
}

void Metrics::add_batch(const Batch& batch, double seconds) {
  const std::lock_guard lock(mutex_);
  ++batches_[{batch.size, batch.reason}];
  padded_rows_ += static_cast<uint64_t>(batch.size - batch.rows);
  execute_.add(seconds);
}

void Metrics::add_wait(double seconds) {
  const std::lock_guard lock(mutex_);
  queue_.add(seconds);
}

std::string Metrics::text(const std::string& labels) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [code, count] : requests_) {
    text += line("bundle_requests_total", labels + ",code=\"" + name_of(code) + "\"", static_cast<double>(count));
  }
  for (const auto& [refusal, count] : refusals_) {
    text += line("bundle_rejected_total", labels + ",reason=\"" + name_of(refusal) + "\"", static_cast<double>(count));
  }
  for (const auto& [key, count] : batches_) {
    const std::string more = ",size=\"" + std::to_string(key.first) + "\",reason=\"" + name_of(key.second) + "\"";
    text += line("bundle_batches_total", labels + more, static_cast<double>(count));
  }
  text += line("bundle_rows_total", labels, static_cast<double>(rows_));
  text += line("bundle_padded_rows_total", labels, static_cast<double>(padded_rows_));
  text += queue_.text("bundle_queue_seconds", labels);
  return text + execute_.text("bundle_execute_seconds", labels);
}

}  // namespace trunnion::bundle
