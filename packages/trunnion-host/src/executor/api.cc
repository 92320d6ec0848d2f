// The C functions of contract.h: no exception leaves them, and no other thread or forked process gets in.
#include <algorithm>
#include <cstring>
#include <new>

#include "core.h"
#include "create_options.h"
#include "status.h"

struct trn_executor {
  explicit trn_executor(const trn_create_options& options)
      : core(options, options.share_with == nullptr ? nullptr : &options.share_with->core) {}
  trunnion::executor::Core core;
};

namespace {

using trunnion::executor::StatusError;

void copy_line(const std::string& line, char* out, std::size_t size) {
  if (out == nullptr || size == 0) return;
  const std::size_t length = std::min(line.size(), size - 1);
  std::memcpy(out, line.data(), length);
  out[length] = '\0';
}

trn_status report(trn_executor* executor, trn_status status, const std::string& field, const char* message) {
  executor->core.error = message;
  executor->core.error_field = field;
  executor->core.lost = executor->core.lost || status == TRN_FATAL;
  return status;
}

template <typename Call>
trn_status guarded(trn_executor* executor, const Call& call) {
  if (executor == nullptr || executor->core.usable_here() != nullptr) return TRN_REFUSED;
  // After a FATAL the first message is the one that matters.
  if (executor->core.lost) return TRN_FATAL;
  try {
    call(executor->core);
    return TRN_OK;
  } catch (const StatusError& error) {
    return report(executor, error.status(), error.field(), error.what());
  } catch (const std::bad_alloc&) {
    return report(executor, TRN_FATAL, "", "out of host memory");
  } catch (const std::exception& error) {
    return report(executor, TRN_FAILED, "", error.what());
  }
}

}  // namespace

uint32_t trn_abi_version(void) { return TRN_ABI_VERSION; }

uint64_t trn_features(void) { return TRN_FEATURE_NULL_EXECUTOR | trunnion::executor::python_backend_feature(); }

trn_status trn_executor_create(const trn_create_options* options, trn_executor** out, char* error, size_t error_size) {
  copy_line("", error, error_size);
  if (out != nullptr) *out = nullptr;
  if (options == nullptr || out == nullptr) {
    copy_line("options and out must not be NULL", error, error_size);
    return TRN_REFUSED;
  }
  try {
    *out = new trn_executor(trunnion::executor::checked_options(*options));
    return TRN_OK;
  } catch (const StatusError& refused) {
    copy_line(refused.what(), error, error_size);
    return refused.status();
  } catch (const std::exception& failed) {
    copy_line(failed.what(), error, error_size);
    return TRN_FAILED;
  }
}

const char* trn_last_error(const trn_executor* executor) {
  if (executor == nullptr) return "the executor is NULL";
  const char* why = executor->core.usable_here();
  return why != nullptr ? why : executor->core.error.c_str();
}

const char* trn_last_error_field(const trn_executor* executor) {
  if (executor == nullptr || executor->core.usable_here() != nullptr) return "";
  return executor->core.error_field.c_str();
}

trn_status trn_executor_model_info(trn_executor* executor, trn_model_info* info) {
  return guarded(executor, [&](auto& core) { core.model_info(info); });
}

trn_status trn_executor_cache_group(trn_executor* executor, int32_t group, trn_cache_group_spec* spec) {
  return guarded(executor, [&](auto& core) { core.cache_group(group, spec); });
}

trn_status trn_executor_memory_profile(trn_executor* executor, trn_memory_profile* profile) {
  return guarded(executor, [&](auto& core) { core.memory_profile(profile); });
}

trn_status trn_executor_allocate_kv_cache(trn_executor* executor, const int32_t* num_blocks, int32_t num_groups) {
  return guarded(executor, [&](auto& core) { core.allocate_kv_cache(num_blocks, num_groups); });
}

trn_status trn_executor_bind_kv_cache(trn_executor* executor, const trn_cache_tensor* tensors, int32_t num_tensors) {
  return guarded(executor, [&](auto& core) { core.bind_kv_cache(tensors, num_tensors); });
}

trn_status trn_executor_warm_up(trn_executor* executor, const char** report) {
  return guarded(executor, [&](auto& core) {
    const char* text = core.warm_up();
    if (report != nullptr) *report = text;
  });
}

trn_status trn_executor_input_buffers(trn_executor* executor, int32_t buffer_set, trn_input_buffers* buffers) {
  return guarded(executor, [&](auto& core) { core.input_buffers(buffer_set, buffers); });
}

trn_status trn_executor_execute(trn_executor* executor, const trn_forward_batch* batch, trn_forward_output* output) {
  bool begun = false;
  const trn_status status = guarded(executor, [&](auto& core) { core.execute(batch, output, &begun); });
  // Whatever kept the step from beginning, nobody waits for its layers in vain.
  if (!begun && status != TRN_OK) trunnion::executor::refuse_kv_events(batch);
  return status;
}

trn_status trn_executor_wait(trn_executor* executor, uint64_t fence) {
  return guarded(executor, [&](auto& core) { core.wait(fence); });
}

trn_status trn_executor_validate(trn_executor* executor, const trn_forward_batch* batch) {
  return guarded(executor, [&](auto& core) { core.validate(batch); });
}

trn_status trn_executor_get_stats(trn_executor* executor, trn_executor_stats* stats) {
  return guarded(executor, [&](auto& core) { core.stats(stats); });
}

trn_status trn_executor_eager_reason(trn_executor* executor, int32_t index, const char** reason, uint64_t* steps) {
  return guarded(executor, [&](auto& core) { core.eager_reason(index, reason, steps); });
}

void trn_executor_close(trn_executor* executor) {
  if (executor == nullptr) return;
  // Another thread or a forked child must not run the destructor: leaking is the lesser harm.
  if (executor->core.usable_here() != nullptr) return;
  delete executor;
}
