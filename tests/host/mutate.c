/* Malformed batches without end: a good one with one to three random changes, each judged by the oracle. */
#include <string.h>

#include "host.h"

static int32_t random_value(host *h, int32_t old) {
  static const int32_t extremes[] = {-1, 0, 1, -2147483647 - 1, 2147483647, -2, NUM_BLOCKS, NUM_BLOCKS * BLOCK, MAX_LEN,
                                     MAX_TOKENS + 1};
  switch (below(&h->mutants, 4)) {
    case 0: return old == 2147483647 ? old : old + 1;
    case 1: return old == -2147483647 - 1 ? old : old - 1;
    case 2: return extremes[below(&h->mutants, (int)(sizeof extremes / sizeof *extremes))];
    default: return below(&h->mutants, 2 * MAX_LEN);
  }
}

static void mutate_count(host *h, offer *o) {
  int32_t *counts[] = {&o->batch.num_tokens,       &o->batch.num_reqs,      &o->batch.num_logits,
                       &o->batch.num_decodes,      &o->batch.decode_query_len, &o->batch.max_query_len,
                       &o->batch.max_seq_len,      &o->batch.lens_are_exact, &o->batch.buffer_set,
                       &o->batch.num_groups,       &o->batch.num_prefixes,  &o->batch.has_token_types};
  int32_t *count = counts[below(&h->mutants, (int)(sizeof counts / sizeof *counts))];
  *count = random_value(h, *count);
}

static void mutate_tensor(host *h, offered *f) {
  switch (below(&h->mutants, 10)) {
    case 0: f->tensor.dtype.bits = 64; break;
    case 1: f->tensor.dtype.code = (uint8_t)(1 + below(&h->mutants, 5)); break;
    case 2: f->tensor.dtype.lanes = 2; break;
    case 3: f->tensor.device.device_type = below(&h->mutants, 2) ? kDLCUDA : kDLExtDev; break;
    case 4: f->tensor.ndim = below(&h->mutants, 4); break;
    case 5: f->shape[0] -= 1 + below(&h->mutants, 2); break;
    case 6: f->shape[1] += below(&h->mutants, 2) ? 1 : -1; break;
    case 7: f->strides[f->tensor.ndim == 2 ? below(&h->mutants, 2) : 0] *= 2; break;
    case 8: f->tensor.data = NULL; break;
    default: f->tensor.byte_offset = (uint64_t)(1 + below(&h->mutants, 3)); break;
  }
}

static void mutate_value(host *h, offered *f) {
  const int64_t used = f->shape[0] * f->shape[1];
  if (used < 1 || used > f->capacity) return;
  int32_t *one = &f->data[below(&h->mutants, (int)used)];
  int32_t *other = &f->data[below(&h->mutants, (int)used)];
  if (below(&h->mutants, 4) == 0) {
    const int32_t kept = *one;
    *one = *other;
    *other = kept;
  } else if (below(&h->mutants, 4) == 0) {
    *one = *other;
  } else {
    *one = random_value(h, *one);
  }
}

/* Slots and CSR as table, starts and positions say, so that only the rule between requests or groups is broken. */
static void derive(const host *h, offer *o, int g) {
  group_arrays *a = &o->arrays.groups[g];
  const int width = h->groups[g].max_blocks_per_seq;
  int entries = 0;
  for (int r = 0; r < o->batch.num_reqs; ++r) {
    const int32_t *row = &a->block_table[r * width];
    for (int t = o->arrays.query_start_loc[r]; t < o->arrays.query_start_loc[r + 1]; ++t) {
      const int offset = o->arrays.positions[t] - a->kv_start[r];
      const bool inside = offset >= 0 && offset / BLOCK < width;
      a->slot_mapping[t] = inside ? row[offset / BLOCK] * BLOCK + offset % BLOCK : -1;
    }
    const int live = (o->arrays.seq_lens[r] - a->kv_start[r] + BLOCK - 1) / BLOCK;
    a->kv_indptr[r] = entries;
    for (int j = 0; j < live && j < width; ++j) a->kv_indices[entries++] = row[j];
    a->kv_last_page_len[r] = (o->arrays.seq_lens[r] - a->kv_start[r] - 1) % BLOCK + 1;
  }
  a->kv_indptr[o->batch.num_reqs] = entries;
  for (int i = 0; i < o->num_fields; ++i) {
    if (o->fields[i].group == g && strstr(o->fields[i].name, "kv_indices")) o->fields[i].shape[0] = entries;
  }
}

/* A change that touches a whole request, with all that follows from it: only the rule is broken. */
static void mutate_request(host *h, offer *o) {
  const int g = below(&h->mutants, h->info.num_groups);
  const int r = below(&h->mutants, o->batch.num_reqs);
  const int begin = o->arrays.query_start_loc[r], end = o->arrays.query_start_loc[r + 1];
  group_arrays *a = &o->arrays.groups[g];
  if (h->groups[g].kind == TRN_CACHE_RECURRENT) {
    a->state_indices[r] = a->state_indices[below(&h->mutants, o->batch.num_reqs)];
    return;
  }
  const int width = h->groups[g].max_blocks_per_seq;
  int32_t *row = &a->block_table[r * width];
  const int live = (o->arrays.seq_lens[r] - a->kv_start[r] + BLOCK - 1) / BLOCK;
  const int kind = below(&h->mutants, 3);
  if (kind == 0) {
    const int other = below(&h->mutants, o->batch.num_reqs);
    row[below(&h->mutants, live)] = a->block_table[other * width + below(&h->mutants, live)];
  } else if (kind == 1 && live > 1) {
    memmove(row, row + 1, (size_t)(width - 1) * sizeof *row);
    row[width - 1] = 0;
    a->kv_start[r] += BLOCK;
  } else {
    const int shift = below(&h->mutants, 2) ? 1 : -1;
    if (o->arrays.positions[begin] + shift < 0) return;
    for (int t = begin; t < end; ++t) o->arrays.positions[t] += shift;
    for (int all = 0; all < h->info.num_groups; ++all) {
      if (h->groups[all].kind != TRN_CACHE_RECURRENT) derive(h, o, all);
    }
    return;
  }
  derive(h, o, g);
}

/* Ranges that are cut, joined or longer, in values that are right by themselves. */
static void mutate_levels(host *h, offer *o) {
  batch_arrays *a = &o->arrays;
  const int p = below(&h->mutants, o->batch.num_prefixes);
  switch (below(&h->mutants, 4)) {
    case 0: a->prefix_lens[p] += BLOCK; break;
    case 1: a->prefix_lens[p] -= BLOCK; break;
    case 2: a->prefix_lens[p] = a->prefix_lens[below(&h->mutants, o->batch.num_prefixes)]; break;
    default:
      if (o->batch.num_prefixes > 1) a->prefix_indptr[--o->batch.num_prefixes] = o->batch.num_reqs;
  }
}

static void mutate_once(host *h, offer *o) {
  offered *f = &o->fields[below(&h->mutants, o->num_fields)];
  const int kind = below(&h->mutants, 8);
  if (kind == 0) mutate_count(h, o);
  else if (kind == 1) mutate_tensor(h, f);
  else mutate_value(h, f);
}

void mutate(host *h, offer *o) {
  if (below(&h->mutants, 4) == 0) {
    mutate_request(h, o);
    return;
  }
  if (o->batch.num_prefixes > 0 && below(&h->mutants, 4) == 0) {
    mutate_levels(h, o);
    return;
  }
  const int changes = 1 + below(&h->mutants, 3);
  for (int i = 0; i < changes; ++i) mutate_once(h, o);
}

void fuzz(host *h, const offer *good, int count) {
  static offer mutant;
  int refused = 0, allowed = 0;
  take_snapshot(h);
  for (int i = 0; i < count; ++i) {
    copy_offer(h, &mutant, good);
    mutate(h, &mutant);
    const bool valid = oracle_allows(h, &mutant);
    trn_forward_output output = {.struct_size = sizeof output};
    const trn_status status = trn_executor_execute(h->executor, &mutant.batch, &output);
    if (status == TRN_OK && valid) {
      ++allowed;
      check(h, trn_executor_wait(h->executor, output.fence), "wait");
      restore_caches(h);
      continue;
    }
    if (status != TRN_REFUSED || valid) {
      fail("step %d mutant %d: the oracle says %s, execute says %d: %s", h->step, i, valid ? "valid" : "invalid",
           (int)status, status == TRN_OK ? "" : trn_last_error(h->executor));
    }
    if (trn_last_error_field(h->executor)[0] == '\0') fail("no field named: %s", trn_last_error(h->executor));
    if (!caches_unchanged(h)) fail("a refused batch changed the caches: %s", trn_last_error(h->executor));
    ++refused;
  }
  printf("fuzz %d refused %d allowed %d\n", h->step, refused, allowed);
}
