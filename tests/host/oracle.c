/* The contract's rules over an offered batch, naively: no shared code with the library, no care for speed. */
#include <string.h>

#include "host.h"

static bool is_table(const char *name) { return strstr(name, "block_table") || strstr(name, "state_indices"); }

static bool tensor_allowed(const offered *f, int64_t rows) {
  const DLTensor *t = &f->tensor;
  const bool table = is_table(f->name);
  if (t->device.device_type != kDLCPU) return false;
  if (t->dtype.code != kDLInt || t->dtype.bits != 32 || t->dtype.lanes != 1) return false;
  if (t->ndim != (table ? 2 : 1) || t->shape == NULL || t->shape[0] < rows) return false;
  if (t->data == NULL) return rows == 0;
  if (t->byte_offset != 0) return false; /* mutants only use offsets that misalign */
  if (t->strides != NULL) {
    if (table && (t->shape[1] > 1 && t->strides[1] != 1)) return false;
    if (t->shape[0] > 1 && t->strides[0] != (table ? t->shape[1] : 1)) return false;
  }
  return true;
}

static bool counts_allowed(const host *h, const trn_forward_batch *b) {
  return b->struct_size >= sizeof *b && b->buffer_set >= 0 && b->buffer_set < h->info.num_buffer_sets &&
         b->num_tokens >= 0 && b->num_tokens <= MAX_TOKENS && b->num_reqs >= 0 && b->num_reqs <= MAX_SEQS &&
         b->num_logits >= 0 && b->num_logits <= MAX_ROWS && b->num_decodes >= 0 && b->num_decodes <= b->num_reqs &&
         b->decode_query_len >= 1 && b->decode_query_len <= 1 && b->num_prefixes >= 0 &&
         b->num_prefixes <= (h->info.accepts_prefix_levels ? b->num_reqs : 0) && b->has_token_types >= 0 &&
         b->has_token_types <= (h->info.num_token_types > 0 ? 1 : 0) &&
         (b->lens_are_exact == 1 || (b->lens_are_exact == 0 && h->info.accepts_upper_bound_lens)) &&
         (b->groups == NULL || b->num_groups == h->info.num_groups);
}

static bool is_types(const char *name) { return strcmp(name, "token_type_ids") == 0; }

static int64_t rows_needed(const offer *o, const char *name) {
  const trn_forward_batch *b = &o->batch;
  if (strcmp(name, "input_ids") == 0 || strcmp(name, "positions") == 0 || strstr(name, "slot_mapping")) return b->num_tokens;
  if (is_types(name)) return b->num_tokens;
  if (strcmp(name, "query_start_loc") == 0 || strstr(name, "kv_indptr")) return b->num_reqs + 1;
  if (strcmp(name, "logits_indices") == 0) return b->num_logits;
  if (strstr(name, "kv_indices")) return 0;
  if (strcmp(name, "prefix_indptr") == 0) return b->num_prefixes + 1;
  if (strcmp(name, "prefix_lens") == 0) return b->num_prefixes;
  return b->num_reqs;
}

static bool is_level(const char *name) { return strncmp(name, "prefix_", 7) == 0; }

static bool requests_allowed(const offer *o) {
  const trn_forward_batch *b = &o->batch;
  const batch_arrays *a = &o->arrays;
  int longest_query = 0, longest = 0;
  if (a->query_start_loc[0] != 0 || a->query_start_loc[b->num_reqs] != b->num_tokens) return false;
  for (int r = 0; r < b->num_reqs; ++r) {
    if (a->query_start_loc[r + 1] <= a->query_start_loc[r] || a->query_start_loc[r + 1] > b->num_tokens) return false;
    const int tokens = a->query_start_loc[r + 1] - a->query_start_loc[r];
    if (r < b->num_decodes && tokens != b->decode_query_len) return false;
    if (a->seq_lens[r] < tokens || a->seq_lens[r] > MAX_LEN) return false;
    for (int i = 0; i < tokens; ++i) {
      if (a->positions[a->query_start_loc[r] + i] != a->seq_lens[r] - tokens + i) return false;
    }
    if (tokens > longest_query) longest_query = tokens;
    if (a->seq_lens[r] > longest) longest = a->seq_lens[r];
  }
  return b->max_query_len == longest_query && b->max_seq_len == longest;
}

static bool ids_allowed(const host *h, const offer *o) {
  for (int t = 0; t < o->batch.num_tokens; ++t) {
    if (o->arrays.input_ids[t] < 0 || o->arrays.input_ids[t] >= h->info.vocab_size) return false;
  }
  for (int t = 0; o->batch.has_token_types && t < o->batch.num_tokens; ++t) {
    if (o->arrays.token_type_ids[t] < 0 || o->arrays.token_type_ids[t] >= h->info.num_token_types) return false;
  }
  for (int n = 0; n < o->batch.num_logits; ++n) {
    if (o->arrays.logits_indices[n] < 0 || o->arrays.logits_indices[n] >= o->batch.num_tokens) return false;
  }
  return true;
}

static bool row_allowed(const host *h, const offer *o, int g, int r) {
  const group_arrays *a = &o->arrays.groups[g];
  const int width = h->groups[g].max_blocks_per_seq;
  const int first = o->arrays.positions[o->arrays.query_start_loc[r]];
  const int seen = h->groups[g].window > 0 && first >= h->groups[g].window ? first - h->groups[g].window + 1 : 0;
  if (a->kv_start[r] < 0 || a->kv_start[r] > seen || a->kv_start[r] % BLOCK != 0) return false;
  const int live = (o->arrays.seq_lens[r] - a->kv_start[r] + BLOCK - 1) / BLOCK;
  if (live > width) return false;
  const int32_t *row = &a->block_table[r * width];
  for (int j = 0; j < width; ++j) {
    if (j >= live && row[j] != 0) return false;
    if (j < live && (row[j] < 1 || row[j] >= h->num_blocks[g])) return false;
    for (int k = 0; k < j && j < live; ++k) {
      if (row[k] == row[j]) return false;
    }
  }
  for (int t = o->arrays.query_start_loc[r]; t < o->arrays.query_start_loc[r + 1]; ++t) {
    const int offset = o->arrays.positions[t] - a->kv_start[r];
    if (a->slot_mapping[t] != -1 && a->slot_mapping[t] != row[offset / BLOCK] * BLOCK + offset % BLOCK) return false;
  }
  if (!(h->info.required_fields & TRN_FIELD_KV_CSR)) return true;
  if ((int64_t)a->kv_indptr[r + 1] - a->kv_indptr[r] != live || a->kv_indptr[0] != 0) return false;
  for (int j = 0; j < live; ++j) {
    if (a->kv_indices[a->kv_indptr[r] + j] != row[j]) return false;
  }
  return a->kv_last_page_len[r] == o->arrays.seq_lens[r] - a->kv_start[r] - (live - 1) * BLOCK;
}

static int request_of(const offer *o, int token) {
  int r = 0;
  while (o->arrays.query_start_loc[r + 1] <= token) ++r;
  return r;
}

static bool writes_apart(const offer *o, int g) {
  const int32_t *slots = o->arrays.groups[g].slot_mapping;
  for (int t = 0; t < o->batch.num_tokens; ++t) {
    for (int u = 0; u < t; ++u) {
      if (slots[t] < 0 || slots[u] < 0) continue;
      if (slots[t] == slots[u]) return false;
      if (slots[t] / BLOCK == slots[u] / BLOCK && request_of(o, t) != request_of(o, u)) return false;
    }
  }
  return true;
}

/* Every pair of a range, block by block. */
static bool pair_shares(const host *h, const offer *o, int one, int other, int tokens) {
  for (int g = 0; g < h->info.num_groups; ++g) {
    if (h->groups[g].kind != TRN_CACHE_FULL && h->groups[g].kind != TRN_CACHE_MLA) continue;
    const int32_t *table = o->arrays.groups[g].block_table;
    const int width = h->groups[g].max_blocks_per_seq;
    for (int j = 0; j < tokens / BLOCK; ++j) {
      if (table[one * width + j] != table[other * width + j]) return false;
    }
  }
  return true;
}

static bool levels_allowed(const host *h, const offer *o) {
  const batch_arrays *a = &o->arrays;
  const int count = o->batch.num_prefixes;
  if (count == 0) return true;
  if (a->prefix_indptr[0] != 0 || a->prefix_indptr[count] != o->batch.num_reqs) return false;
  for (int p = 0; p < count; ++p) {
    if (a->prefix_indptr[p + 1] <= a->prefix_indptr[p] || a->prefix_indptr[p + 1] > o->batch.num_reqs) return false;
    const int tokens = a->prefix_lens[p];
    if (tokens < 0 || tokens % BLOCK != 0) return false;
    for (int r = a->prefix_indptr[p]; r < a->prefix_indptr[p + 1]; ++r) {
      if (a->positions[a->query_start_loc[r]] < tokens) return false;
      for (int s = a->prefix_indptr[p]; s < r; ++s) {
        if (!pair_shares(h, o, s, r, tokens)) return false;
      }
    }
  }
  return true;
}

static bool states_allowed(const host *h, const offer *o, int g) {
  const group_arrays *a = &o->arrays.groups[g];
  for (int r = 0; r < o->batch.num_reqs; ++r) {
    if (a->state_indices[r] < 1 || a->state_indices[r] >= h->num_blocks[g]) return false;
    const bool started = o->arrays.positions[o->arrays.query_start_loc[r]] > 0;
    if (a->has_initial_state[r] != (started ? 1 : 0)) return false;
    for (int s = 0; s < r; ++s) {
      if (a->state_indices[r] == a->state_indices[s]) return false;
    }
  }
  return true;
}

bool oracle_allows(const host *h, const offer *o) {
  if (!counts_allowed(h, &o->batch)) return false;
  for (int i = 0; i < o->num_fields; ++i) {
    const offered *f = &o->fields[i];
    if (is_level(f->name) && o->batch.num_prefixes == 0) continue;
    if (is_types(f->name) && o->batch.has_token_types == 0) continue;
    if (!tensor_allowed(f, rows_needed(o, f->name))) return false;
    if (is_table(f->name) && f->shape[1] != h->groups[f->group].max_blocks_per_seq) return false;
  }
  if (!requests_allowed(o) || !ids_allowed(h, o)) return false;
  for (int g = 0; g < h->info.num_groups; ++g) {
    if (h->groups[g].kind == TRN_CACHE_RECURRENT) {
      if (!states_allowed(h, o, g)) return false;
      continue;
    }
    for (int r = 0; r < o->batch.num_reqs; ++r) {
      if (!row_allowed(h, o, g, r)) return false;
    }
    if (!writes_apart(o, g)) return false;
  }
  if (!levels_allowed(h, o)) return false;
  for (int i = 0; i < o->num_fields; ++i) {
    const offered *f = &o->fields[i];
    if (!strstr(f->name, "kv_indices")) continue;
    const int32_t used = o->arrays.groups[f->group].kv_indptr[o->batch.num_reqs];
    if (f->shape[0] < used || (f->tensor.data == NULL && used > 0)) return false;
  }
  return true;
}
