/* A plugin that hashes the words of texts into a fixed width: text BYTES [batch] -> FP32 [batch, width].
 *
 * A word adds 1 or -1 at one place, both by MurmurHash3 (x86, 32 bits, seed 0), as scikit-learn's FeatureHasher does. The
 * configuration is {"width": W}. Build: cc -O2 -shared -fPIC -Iinclude examples/feature_hashing.c -o feature_hashing.so
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion_bundle/plugin.h"

struct trn_plugin {
  int64_t width;
};

static uint32_t rotated(uint32_t x, int bits) { return (x << bits) | (x >> (32 - bits)); }

static uint32_t mixed(uint32_t block) { return rotated(block * 0xcc9e2d51u, 15) * 0x1b873593u; }

static int32_t murmur3(const unsigned char *data, uint64_t size) {
  uint32_t hash = 0, last = 0;
  uint64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    const uint32_t block = data[i] | (uint32_t)data[i + 1] << 8 | (uint32_t)data[i + 2] << 16 | (uint32_t)data[i + 3] << 24;
    hash = rotated(hash ^ mixed(block), 13) * 5 + 0xe6546b64u;
  }
  for (int shift = 0; i < size; ++i, shift += 8) last |= (uint32_t)data[i] << shift;
  hash ^= mixed(last) ^ (uint32_t)size;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return (int32_t)(hash ^ (hash >> 16));
}

static void add_words(const trn_plugin_bytes *text, float *row, int64_t width) {
  for (uint64_t start = 0; start < text->size;) {
    const char *space = memchr(text->data + start, ' ', text->size - start);
    const uint64_t end = space == NULL ? text->size : (uint64_t)(space - text->data);
    if (end > start) {
      const int64_t hash = murmur3((const unsigned char *)text->data + start, end - start);
      row[(hash < 0 ? -hash : hash) % width] += hash < 0 ? -1 : 1;
    }
    start = end + 1;
  }
}

static trn_plugin_status open_plugin(const char *configuration, trn_plugin **plugin, char *error, size_t error_size) {
  long width = 0;
  if (sscanf(configuration, " { \"width\" : %ld }", &width) != 1 || width < 1) {
    snprintf(error, error_size, "the configuration is %s, expected {\"width\": a number from 1}", configuration);
    return TRN_PLUGIN_FAILED;
  }
  *plugin = malloc(sizeof(trn_plugin));
  if (*plugin == NULL) return TRN_PLUGIN_FAILED;
  (*plugin)->width = width;
  return TRN_PLUGIN_OK;
}

static trn_plugin_status run_plugin(trn_plugin *plugin, const trn_plugin_call *call, char *error, size_t error_size) {
  const trn_plugin_tensor *texts = call->inputs;
  if (call->num_inputs != 1 || texts->dtype != TRN_DTYPE_BYTES || texts->num_dims != 1) {
    snprintf(error, error_size, "it takes one input of BYTES and one dim");
    return TRN_PLUGIN_FAILED;
  }
  const trn_plugin_bytes *elements = texts->data;
  for (int64_t row = 0; row < texts->dims[0]; ++row) {
    if (elements[row].size == 0) {
      snprintf(error, error_size, "text %lld is empty", (long long)row);
      return TRN_PLUGIN_REFUSED;
    }
  }
  const int64_t dims[] = {texts->dims[0], plugin->width};
  float *features = call->allocate(call->context, 0, TRN_DTYPE_FLOAT32, 2, dims);
  if (features == NULL) return TRN_PLUGIN_FAILED;
  memset(features, 0, sizeof(float) * (size_t)(dims[0] * dims[1]));
  for (int64_t row = 0; row < dims[0]; ++row) add_words(&elements[row], features + row * dims[1], dims[1]);
  return TRN_PLUGIN_OK;
}

static void close_plugin(trn_plugin *plugin) { free(plugin); }

static const trn_plugin_api kApi = {TRN_PLUGIN_ABI_VERSION, sizeof(trn_plugin_api), "feature_hashing", open_plugin, run_plugin, close_plugin};

const trn_plugin_api *trn_plugin_get_api(void) { return &kApi; }
