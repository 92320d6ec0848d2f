// A thin C++17 class over contract.h: RAII, and one exception type per status.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trunnion/contract.h"

namespace trunnion {

/// Base of what an executor throws; `field()` names the batch field at fault, or is empty.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, std::string field) : std::runtime_error(message), field_(std::move(field)) {}
  const std::string& field() const noexcept { return field_; }

 private:
  std::string field_;
};

/// Nothing was enqueued, caches are intact, the next call works.
class Refused : public Error {
 public:
  using Error::Error;
};

/// This batch's slots and states are undefined: recompute, unpublish its prefix blocks.
class Failed : public Error {
 public:
  using Error::Error;
};

/// The rank cannot go on: exit the process.
class Fatal : public Error {
 public:
  using Error::Error;
};

[[noreturn]] inline void throw_status(trn_status status, const std::string& message, const std::string& field) {
  if (status == TRN_REFUSED) throw Refused(message, field);
  if (status == TRN_FAILED) throw Failed(message, field);
  throw Fatal(message, field);
}

/// An event between threads, see trn_event; destroyed when it goes out of scope.
class Event {
 public:
  Event() : handle_(trn_event_create()) {
    if (handle_ == nullptr) throw std::bad_alloc();
  }
  ~Event() { trn_event_destroy(handle_); }
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// False while a step is to signal it.
  bool reset() noexcept { return trn_event_reset(handle_) == TRN_OK; }
  /// Done, or an error; false if it is signalled already, or a step is to signal it.
  bool signal(trn_status status = TRN_OK) noexcept { return trn_event_signal(handle_, status) == TRN_OK; }
  trn_event_state wait() noexcept { return trn_event_wait(handle_, -1); }
  /// TRN_EVENT_PENDING if `limit` is over.
  trn_event_state wait(std::chrono::nanoseconds limit) noexcept { return trn_event_wait(handle_, limit.count()); }
  trn_event_state query() const noexcept { return trn_event_query(handle_); }
  trn_event* handle() const noexcept { return handle_; }

 private:
  trn_event* handle_;
};

/// One executor, closed when it goes out of scope. All calls come from the thread that created it.
class Executor {
 public:
  /// `options` with sizes and versions filled in; the caller sets the rest.
  static trn_create_options default_options() {
    trn_create_options options{};
    options.struct_size = sizeof options;
    options.abi_version = TRN_ABI_VERSION;
    options.contract_version = TRN_CONTRACT_VERSION;
    options.dtype = "auto";
    options.tp_size = 1;
    return options;
  }

  explicit Executor(const trn_create_options& options) {
    std::array<char, 2048> error{};
    const trn_status status = trn_executor_create(&options, &handle_, error.data(), error.size());
    if (status != TRN_OK) throw_status(status, error.data(), "");
  }
  ~Executor() { close(); }
  Executor(Executor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Executor& operator=(Executor&& other) noexcept {
    if (this != &other) {
      close();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  trn_model_info model_info() {
    auto info = sized<trn_model_info>();
    check(trn_executor_model_info(handle_, &info));
    return info;
  }

  /// Pointers inside stay valid until close.
  std::vector<trn_cache_group_spec> kv_cache_spec() {
    std::vector<trn_cache_group_spec> groups(static_cast<std::size_t>(model_info().num_groups));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i] = sized<trn_cache_group_spec>();
      check(trn_executor_cache_group(handle_, static_cast<std::int32_t>(i), &groups[i]));
    }
    return groups;
  }

  trn_memory_profile memory_profile() {
    auto profile = sized<trn_memory_profile>();
    check(trn_executor_memory_profile(handle_, &profile));
    return profile;
  }

  void allocate_kv_cache(const std::vector<std::int32_t>& num_blocks) {
    check(trn_executor_allocate_kv_cache(handle_, num_blocks.data(), static_cast<std::int32_t>(num_blocks.size())));
  }

  void bind_kv_cache(const std::vector<trn_cache_tensor>& tensors) {
    check(trn_executor_bind_kv_cache(handle_, tensors.data(), static_cast<std::int32_t>(tensors.size())));
  }

  /// JSON: captured, eager, on_reference, seconds, bytes.
  std::string warm_up() {
    const char* report = nullptr;
    check(trn_executor_warm_up(handle_, &report));
    return report;
  }

  /// Pointers inside stay valid until close.
  trn_input_buffers input_buffers(std::int32_t buffer_set) {
    auto buffers = sized<trn_input_buffers>();
    check(trn_executor_input_buffers(handle_, buffer_set, &buffers));
    return buffers;
  }

  /// A batch with its size filled in and every tensor "in the lent buffers".
  static trn_forward_batch batch() {
    auto batch = sized<trn_forward_batch>();
    batch.decode_query_len = 1;
    batch.lens_are_exact = 1;
    return batch;
  }

  trn_forward_output execute(const trn_forward_batch& batch) {
    auto output = sized<trn_forward_output>();
    check(trn_executor_execute(handle_, &batch, &output));
    return output;
  }

  /// Throws Refused for a batch that execute would refuse; runs nothing.
  void validate(const trn_forward_batch& batch) { check(trn_executor_validate(handle_, &batch)); }

  void wait(std::uint64_t fence) { check(trn_executor_wait(handle_, fence)); }

  trn_executor_stats stats() {
    auto stats = sized<trn_executor_stats>();
    check(trn_executor_get_stats(handle_, &stats));
    return stats;
  }

  /// Why steps ran eager, in order of appearance: reason and steps. `num_eager_reasons` of `stats()` says how many.
  std::pair<std::string, std::uint64_t> eager_reason(std::int32_t index) {
    const char* reason = nullptr;
    std::uint64_t steps = 0;
    check(trn_executor_eager_reason(handle_, index, &reason, &steps));
    return {reason, steps};
  }

  void close() noexcept { trn_executor_close(std::exchange(handle_, nullptr)); }

  trn_executor* handle() const noexcept { return handle_; }

 private:
  template <typename Struct>
  static Struct sized() {
    Struct value{};
    value.struct_size = sizeof value;
    return value;
  }

  void check(trn_status status) const {
    if (status != TRN_OK) throw_status(status, trn_last_error(handle_), trn_last_error_field(handle_));
  }

  trn_executor* handle_ = nullptr;
};

}  // namespace trunnion
