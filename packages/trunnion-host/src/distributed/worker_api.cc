// The C function of worker.h: checks sizes, turns exceptions into statuses.
#include <cstddef>
#include <cstdio>
#include <exception>

#include "distributed/worker_loop.h"
#include "older_options.h"
#include "trunnion/worker.h"

namespace {

trn_status fail(trn_status status, const char* text, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", text);
  return status;
}

}  // namespace

trn_status trn_worker_run(const trn_worker_options* options, char* error, size_t error_size) {
  constexpr std::size_t kBegin = offsetof(trn_worker_options, executor);
  if (options == nullptr || options->struct_size < kBegin + trunnion::kOldestOptions ||
      !trunnion::is_whole(options->executor) || options->struct_size < kBegin + options->executor.struct_size) {
    return fail(TRN_REFUSED, "options: struct_size is not that of this library's header", error, error_size);
  }
  if (options->executor.tp_rank < 1) {
    return fail(TRN_REFUSED, "tp_rank: a worker is a rank above 0; rank 0 is the host", error, error_size);
  }
  try {
    trunnion::distributed::WorkerLoop(options->socket).run(trunnion::whole_options(options->executor));
    return TRN_OK;
  } catch (const trunnion::Refused& refused) {
    return fail(TRN_REFUSED, refused.what(), error, error_size);
  } catch (const std::invalid_argument& refused) {
    return fail(TRN_REFUSED, refused.what(), error, error_size);
  } catch (const std::exception& fatal) {
    return fail(TRN_FATAL, fatal.what(), error, error_size);
  }
}
