/* A step of a signature in code of one's own: a shared library that exports trn_plugin_get_api().
 *
 * It is code that the server executes: a server loads none unless it was told to (--allow-plugins). Every tensor is dense,
 * row major and in the host's memory. Nothing may be thrown, and nothing kept of what a call points to.
 */
#ifndef TRUNNION_BUNDLE_PLUGIN_H
#define TRUNNION_BUNDLE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "trunnion_bundle/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every change of this file; server and plugin must have the same. */
#define TRN_PLUGIN_ABI_VERSION 1u

typedef enum trn_plugin_status {
  TRN_PLUGIN_OK = 0,
  /* run() of a step of scope request: the request is wrong, which its client is told. In a batch it is a failure. */
  TRN_PLUGIN_REFUSED = 1,
  TRN_PLUGIN_FAILED = 2 /* the next call may succeed */
} trn_plugin_status;

/* One element of a tensor of TRN_DTYPE_BYTES; not terminated. */
typedef struct trn_plugin_bytes {
  const char *data;
  uint64_t size;
} trn_plugin_bytes;

typedef struct trn_plugin_tensor {
  trn_dtype dtype;
  int32_t num_dims;
  const int64_t *dims;
  const void *data; /* of TRN_DTYPE_BYTES: trn_plugin_bytes */
} trn_plugin_tensor;

/* The rows of one request, or of a batch, by the scope of the step. */
typedef struct trn_plugin_call {
  uint32_t struct_size;
  int32_t num_inputs;
  int32_t num_outputs;
  const trn_plugin_tensor *inputs; /* in the order of the step */
  void *context;
  /* Memory for an output, aligned to 64 bytes, to be written whole. Each output is asked for once, with the dtype and dims that
   * the step declares: the batch is that of the inputs, a symbol within its limits. NULL where they are others: then return. */
  void *(*allocate)(void *context, int32_t output, trn_dtype dtype, int32_t num_dims, const int64_t *dims);
} trn_plugin_call;

typedef struct trn_plugin trn_plugin;

/* `error` receives one line, cut to `error_size`, whenever the status is not TRN_PLUGIN_OK. */
typedef struct trn_plugin_api {
  uint32_t abi_version; /* TRN_PLUGIN_ABI_VERSION */
  uint32_t struct_size;
  const char *name;
  /* `configuration` is the step's: a string, by custom JSON. */
  trn_plugin_status (*open)(const char *configuration, trn_plugin **plugin, char *error, size_t error_size);
  /* Called by several threads at once. Each row is treated by itself. */
  trn_plugin_status (*run)(trn_plugin *plugin, const trn_plugin_call *call, char *error, size_t error_size);
  void (*close)(trn_plugin *plugin);
} trn_plugin_api;

typedef const trn_plugin_api *(*trn_plugin_get_api_fn)(void);

/* Exported by every plugin. */
__attribute__((visibility("default"))) const trn_plugin_api *trn_plugin_get_api(void);

#ifdef __cplusplus
}
#endif
#endif
