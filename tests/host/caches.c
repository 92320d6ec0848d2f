/* Caches that the host allocates in one piece, so that it can compare, keep and restore every bit of them. */
#include <stdlib.h>
#include <string.h>

#include "host.h"

static int64_t bytes_of(const host *h, int group) {
  return h->groups[group].bytes_per_block * (int64_t)h->num_blocks[group];
}

static void bind_caches(host *h) {
  static trn_cache_tensor tensors[MAX_CACHE_TENSORS];
  static int64_t shapes[MAX_CACHE_TENSORS][8];
  uint8_t *next = h->cache;
  int count = 0;
  for (int g = 0; g < h->info.num_groups; ++g) {
    for (int layer = 0; layer < h->groups[g].num_layers; ++layer) {
      for (int i = 0; i < h->groups[g].num_tensors; ++i, ++count) {
        const trn_cache_tensor_spec *spec = &h->groups[g].tensors[i];
        if (count == MAX_CACHE_TENSORS || spec->ndim > 7) fail("more cache tensors than this host can keep");
        shapes[count][0] = h->num_blocks[g];
        memcpy(&shapes[count][1], spec->shape, (size_t)spec->ndim * sizeof(int64_t));
        tensors[count] = (trn_cache_tensor){.group = g, .layer = layer, .name = spec->name};
        tensors[count].tensor = (DLTensor){.data = next,
                                           .device = {kDLCPU, 0},
                                           .ndim = spec->ndim + 1,
                                           .dtype = spec->dtype,
                                           .shape = shapes[count]};
        next += spec->bytes_per_block * h->num_blocks[g];
      }
    }
  }
  check(h, trn_executor_bind_kv_cache(h->executor, tensors, count), "bind_kv_cache");
}

void provide_caches(host *h) {
  if (h->options.allocate) {
    check(h, trn_executor_allocate_kv_cache(h->executor, h->num_blocks, h->info.num_groups), "allocate_kv_cache");
    return;
  }
  for (int g = 0; g < h->info.num_groups; ++g) h->cache_bytes += (size_t)bytes_of(h, g);
  h->cache = aligned_alloc(64, (h->cache_bytes + 63) / 64 * 64);
  h->snapshot = malloc(h->cache_bytes);
  if (h->cache == NULL || h->snapshot == NULL) fail("out of memory");
  memset(h->cache, 0, h->cache_bytes);
  bind_caches(h);
}

void take_snapshot(host *h) {
  if (h->cache != NULL) memcpy(h->snapshot, h->cache, h->cache_bytes);
}

bool caches_unchanged(const host *h) {
  return h->cache == NULL || memcmp(h->snapshot, h->cache, h->cache_bytes) == 0;
}

void restore_caches(host *h) {
  if (h->cache != NULL) memcpy(h->cache, h->snapshot, h->cache_bytes);
}
