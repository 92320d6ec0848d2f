// The table of functions by which a library gives its engine to the server.
#pragma once

#include "engines/guarded.h"

namespace trunnion::bundle {

// Of `Engine`, a library's own `trn_engine`: a constructor from options, and `infer`.
template <typename Engine>
constexpr trn_engine_api engine_api(const char* name, int32_t is_simulated) {
  return {.abi_version = TRN_ENGINE_ABI_VERSION,
          .struct_size = sizeof(trn_engine_api),
          .name = name,
          .is_simulated = is_simulated,
          .open = [](const trn_engine_options* options, Engine** engine, char* error, size_t error_size) {
            return guarded(error, error_size, [&] { *engine = new Engine(*options); });
          },
          .infer =
              [](Engine* engine, int32_t runner, const trn_engine_tensor* inputs, int32_t num_inputs,
                 const trn_engine_tensor* outputs, int32_t num_outputs, char* error, size_t error_size) {
                return guarded(error, error_size,
                               [&] { engine->infer(runner, inputs, num_inputs, outputs, num_outputs); });
              },
          .close = [](Engine* engine) { delete engine; }};
}

}  // namespace trunnion::bundle
