// The C functions of serving.h over Engine: checks sizes, turns exceptions into statuses.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "serving/engine.h"
#include "serving/older_host_options.h"
#include "trunnion/serving.h"

using trunnion::serving::Engine;

struct trn_host {
  explicit trn_host(const trn_host_options& options) : engine(options) {}
  Engine engine;
};

namespace {

void write_error(const std::string& text, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", text.c_str());
}

template <typename Struct>
bool has_size(const Struct* value) {
  return value != nullptr && value->struct_size >= sizeof(Struct);
}

size_t write_text(const std::string& text, char* out, size_t size) {
  if (out != nullptr && size > 0) std::snprintf(out, size, "%s", text.c_str());
  return text.size();
}

}  // namespace

trn_host_status trn_host_create(const trn_host_options* options, trn_host** out, char* error, size_t error_size) {
  if (out == nullptr) return TRN_HOST_INVALID;
  *out = nullptr;
  const auto whole = options == nullptr ? std::nullopt : trunnion::serving::whole_options(*options);
  if (!whole) {
    write_error("options: struct_size is not that of this library's header", error, error_size);
    return TRN_HOST_INVALID;
  }
  try {
    *out = new trn_host(*whole);
    return TRN_HOST_OK;
  } catch (const trunnion::Fatal& fatal) {
    write_error(fatal.what(), error, error_size);
    return TRN_HOST_DEAD;
  } catch (const std::exception& invalid) {
    write_error(invalid.what(), error, error_size);
    return TRN_HOST_INVALID;
  }
}

trn_host_status trn_host_submit(trn_host* host, const trn_host_request* request, uint64_t* request_id, char* error,
                                size_t error_size) {
  // The struct of an older caller ends before token_type_ids.
  const bool sized = request != nullptr && request->struct_size >= offsetof(trn_host_request, token_type_ids);
  if (!sized || !has_size(&request->sampling) || request_id == nullptr) {
    write_error("request: struct_size is not that of this library's header", error, error_size);
    return TRN_HOST_INVALID;
  }
  try {
    std::string reason;
    const trn_host_status status = host->engine.submit(*request, *request_id, reason);
    if (status != TRN_HOST_OK) write_error(reason, error, error_size);
    return status;
  } catch (const std::exception& invalid) {
    write_error(invalid.what(), error, error_size);
    return TRN_HOST_INVALID;
  }
}

trn_host_status trn_host_next_event(trn_host* host, uint64_t request_id, int64_t timeout_ms, trn_host_event* event) {
  if (!has_size(event)) return TRN_HOST_INVALID;
  float* const embedding = event->embedding;
  const int32_t embedding_capacity = event->embedding_capacity;
  *event = {};
  event->struct_size = sizeof *event;
  event->embedding = embedding;
  event->embedding_capacity = embedding_capacity;
  event->stop_id = -1;
  return host->engine.next_event(request_id, timeout_ms, *event);
}

trn_host_status trn_host_cancel(trn_host* host, uint64_t request_id) { return host->engine.cancel(request_id); }

trn_host_status trn_host_model_info(trn_host* host, trn_model_info* info) {
  if (!has_size(info)) return TRN_HOST_INVALID;
  *info = host->engine.model_info();
  return TRN_HOST_OK;
}

trn_host_status trn_host_get_stats(trn_host* host, trn_host_stats* stats) {
  if (!has_size(stats)) return TRN_HOST_INVALID;
  *stats = host->engine.stats().totals;
  return TRN_HOST_OK;
}

size_t trn_host_stats_json(trn_host* host, char* text, size_t size) {
  return write_text(host->engine.stats().to_json(), text, size);
}

size_t trn_host_warm_up_report(trn_host* host, char* text, size_t size) {
  return write_text(host->engine.warm_up_report(), text, size);
}

trn_host_status trn_host_get_worker_stats(trn_host* host, int32_t rank, trn_executor_stats* stats) {
  if (!has_size(stats) || rank < 1 || rank > host->engine.workers().count()) return TRN_HOST_INVALID;
  *stats = host->engine.workers().stats(rank);
  return TRN_HOST_OK;
}

trn_host_status trn_host_reset_prefix_cache(trn_host* host) { return host->engine.reset_prefix_cache(); }

void trn_host_shutdown(trn_host* host) { host->engine.shutdown(); }

void trn_host_close(trn_host* host) { delete host; }
