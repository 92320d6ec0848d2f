/* What runs one lowering of a bundle: a shared library that exports trn_engine_get_api().
 *
 * The server opens it with RTLD_LOCAL and sees none of what it links, so that an engine may bring a framework (and its
 * protobuf) that the server must not know. Every tensor is dense, row major and in the host's memory, aligned to 64 bytes.
 * All sizes, types and index ranges have been checked by the caller against the bundle.
 */
#ifndef TRUNNION_BUNDLE_ENGINE_H
#define TRUNNION_BUNDLE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "trunnion_bundle/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every change of this file; server and engine must have the same. */
#define TRN_ENGINE_ABI_VERSION 1u

typedef enum trn_engine_status {
  TRN_ENGINE_OK = 0,
  /* open(): the lowering cannot run here: another platform, an instruction set, missing constants.
   * infer(): it has nothing for inputs of these sizes. */
  TRN_ENGINE_REFUSED = 1,
  TRN_ENGINE_FAILED = 2   /* the engine or its model failed; the next call may succeed */
} trn_engine_status;

typedef struct trn_engine_tensor {
  const char *name; /* of the module's input or output */
  trn_dtype dtype;
  int32_t num_dims;
  const int64_t *dims;
  void *data; /* inputs are only read */
  uint64_t num_bytes;
} trn_engine_tensor;

typedef struct trn_engine_options {
  uint32_t struct_size;
  const char *bundle;         /* folder of the bundle, whose files are verified */
  const char *lowering;       /* the platform's object of bundle.json, as JSON; its paths are relative to the bundle */
  const char *module;         /* the one of its modules to run */
  const char *contract;       /* what bundle.json says of that module's inputs and outputs, as JSON */
  const char *const *weights; /* paths of the checkpoint's files */
  int32_t num_weights;
  int32_t num_runners;  /* infer() is called with 0 ... num_runners - 1, each by one thread at a time */
  const char *settings; /* of this machine, as a JSON object: for instance which PJRT plugin */
} trn_engine_options;

typedef struct trn_engine trn_engine;

/* `error` receives one line, cut to `error_size`, whenever the status is not TRN_ENGINE_OK. Nothing throws. */
typedef struct trn_engine_api {
  uint32_t abi_version; /* TRN_ENGINE_ABI_VERSION */
  uint32_t struct_size;
  const char *name;
  /* 1 when results are made up, which the server says in its metadata. */
  int32_t is_simulated;
  trn_engine_status (*open)(const trn_engine_options *options, trn_engine **engine, char *error, size_t error_size);
  /* All outputs are written whole. `inputs` and `outputs` are in the order of the module. */
  trn_engine_status (*infer)(trn_engine *engine, int32_t runner, const trn_engine_tensor *inputs, int32_t num_inputs,
                             const trn_engine_tensor *outputs, int32_t num_outputs, char *error, size_t error_size);
  void (*close)(trn_engine *engine);
} trn_engine_api;

typedef const trn_engine_api *(*trn_engine_get_api_fn)(void);

/* Exported by every engine. */
__attribute__((visibility("default"))) const trn_engine_api *trn_engine_get_api(void);

#ifdef __cplusplus
}
#endif
#endif
