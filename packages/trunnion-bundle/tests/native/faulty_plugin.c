/* A plugin that does what its configuration says once it is given a 99: x FP32 [batch, 4] -> INT64 [batch, 2] below 5. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion_bundle/plugin.h"

#ifndef VERSION
#define VERSION TRN_PLUGIN_ABI_VERSION
#endif
#ifndef CLOSE
#define CLOSE close_plugin
#endif
#ifndef SALT
#define SALT 0
#endif

struct trn_plugin {
  char fault[32];
};

static trn_plugin_status open_plugin(const char *configuration, trn_plugin **plugin, char *error, size_t error_size) {
  if (strcmp(configuration, "closed") == 0) {
    snprintf(error, error_size, "it is closed today");
    return TRN_PLUGIN_FAILED;
  }
  *plugin = calloc(1, sizeof(trn_plugin));
  snprintf((*plugin)->fault, sizeof (*plugin)->fault, "%s", configuration);
  return TRN_PLUGIN_OK;
}

static trn_plugin_status run_plugin(trn_plugin *plugin, const trn_plugin_call *call, char *error, size_t error_size) {
  const float *x = call->inputs[0].data;
  const int64_t rows = call->inputs[0].dims[0];
  const char *fault = "";
  for (int64_t i = 0; i < rows * 4; ++i) {
    if (x[i] == 99) fault = plugin->fault;
  }
  const int is = strlen(fault) > 0;
  if (is && strcmp(fault, "fails") == 0) {
    snprintf(error, error_size, "a disk is full");
    return TRN_PLUGIN_FAILED;
  }
  if (is && strcmp(fault, "endless") == 0) {
    memset(error, 'e', error_size);
    return TRN_PLUGIN_FAILED;
  }
  if (is && strcmp(fault, "refuses") == 0) {
    snprintf(error, error_size, "99 is too many");
    return TRN_PLUGIN_REFUSED;
  }
  if (is && strcmp(fault, "nothing") == 0) return TRN_PLUGIN_OK;
  int64_t dims[9] = {rows, 2};
  int num_dims = 2, output = 0;
  trn_dtype dtype = TRN_DTYPE_INT64;
  if (strcmp(fault, "rows") == 0) dims[0] = rows + 1;
  if (strcmp(fault, "columns") == 0) dims[1] = 3;
  if (strcmp(fault, "rank") == 0) num_dims = 1;
  if (strcmp(fault, "dtype") == 0) dtype = TRN_DTYPE_FLOAT32;
  if (strcmp(fault, "unknown dtype") == 0) dtype = (trn_dtype)77;
  if (strcmp(fault, "index") == 0) output = 1;
  if (strcmp(fault, "twice") == 0) call->allocate(call->context, 0, dtype, num_dims, dims);
  int64_t *y = call->allocate(call->context, output, dtype, num_dims, dims);
  if (y == NULL) return TRN_PLUGIN_OK; /* The caller knows why. */
  for (int64_t i = 0; i < rows * 2; ++i) y[i] = ((int64_t)x[(i / 2) * 4] + i % 2 + SALT) % 5;
  if (strcmp(fault, "range") == 0) y[1] = 5;
  return TRN_PLUGIN_OK;
}

static inline void close_plugin(trn_plugin *plugin) { free(plugin); }

static const trn_plugin_api kApi = {VERSION, sizeof(trn_plugin_api), "faulty", open_plugin, run_plugin, CLOSE};

const trn_plugin_api *trn_plugin_get_api(void) { return &kApi; }
