// From exceptions to what the C interface of engines reports.
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>

#include "trunnion_bundle/engine.h"

namespace trunnion::bundle {

// The lowering cannot run on this machine.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline trn_engine_status report(char* error, size_t error_size, const char* text, trn_engine_status status) {
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", text);
  return status;
}

template <typename Function>
trn_engine_status guarded(char* error, size_t error_size, Function function) noexcept {
  try {
    function();
    return TRN_ENGINE_OK;
  } catch (const Refused& caught) {
    return report(error, error_size, caught.what(), TRN_ENGINE_REFUSED);
  } catch (const std::exception& caught) {
    return report(error, error_size, caught.what(), TRN_ENGINE_FAILED);
  } catch (...) {
    return report(error, error_size, "an exception of an unknown type", TRN_ENGINE_FAILED);
  }
}

}  // namespace trunnion::bundle
