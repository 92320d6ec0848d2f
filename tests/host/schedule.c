/* Requests, blocks and steps: decodes first, then chunks of prompts within the token budget. */
#include <string.h>

#include "host.h"

static int32_t take_block(host *h, int group) {
  if (h->num_free[group] == 0) fail("out of blocks");
  return h->free_blocks[group][--h->num_free[group]];
}

static void shuffle(host *h, int32_t *values, int count) {
  for (int i = count - 1; i > 0; --i) {
    const int j = below(&h->random, i + 1);
    const int32_t kept = values[i];
    values[i] = values[j];
    values[j] = kept;
  }
}

void start_requests(host *h) {
  static const int prompt_lens[NUM_REQUESTS] = {13, 7, 21};
  uint64_t prompts = 42; /* the prompts do not depend on the seed */
  for (int g = 0; g < h->info.num_groups; ++g) {
    h->num_free[g] = h->num_blocks[g] - 1;
    for (int i = 0; i < h->num_free[g]; ++i) h->free_blocks[g][i] = i + 1;
    shuffle(h, h->free_blocks[g], h->num_free[g]);
  }
  for (int r = 0; r < NUM_REQUESTS; ++r) {
    request *q = &h->requests[r];
    q->num_prompt = q->num_tokens = prompt_lens[r];
    for (int i = 0; i < q->num_prompt; ++i) q->tokens[i] = below(&prompts, h->info.vocab_size);
    if (h->options.levels) memcpy(q->tokens, h->requests[0].tokens, COMMON * sizeof(int32_t));
    for (int g = 0; g < h->info.num_groups; ++g) {
      if (h->groups[g].kind == TRN_CACHE_RECURRENT) q->state = take_block(h, g);
    }
  }
}

/* Tokens to run now: 1 for a decode, else a chunk within `budget`. */
static int wanted(const request *q, int budget) {
  const int rest = q->num_tokens - q->num_computed;
  return rest < budget ? rest : budget;
}

static bool is_decode(const request *q) { return q->num_tokens - q->num_computed == 1 && q->num_computed > 0; }

static int choose(host *h) {
  int32_t order[NUM_REQUESTS];
  for (int r = 0; r < NUM_REQUESTS; ++r) order[r] = r;
  shuffle(h, order, NUM_REQUESTS);
  int rows = 0, budget = h->options.chunk;
  for (int decodes = 1; decodes >= 0; --decodes) {
    for (int i = 0; i < NUM_REQUESTS; ++i) {
      const request *q = &h->requests[order[i]];
      if (q->done || is_decode(q) != (decodes == 1)) continue;
      const int tokens = wanted(q, budget);
      if (tokens == 0) continue;
      h->in_batch[rows] = order[i];
      h->query_lens[rows++] = tokens;
      budget -= tokens;
    }
  }
  return rows;
}

static int32_t window_start(const trn_cache_group_spec *group, int first_position) {
  const int first = group->window > 0 ? first_position - group->window + 1 : 0;
  return first > 0 ? first / BLOCK * BLOCK : 0;
}

static void fill_attention(host *h, offer *o, int g, int row, int begin) {
  group_arrays *a = &o->arrays.groups[g];
  request *q = &h->requests[h->in_batch[row]];
  const int width = h->groups[g].max_blocks_per_seq;
  const int32_t start = window_start(&h->groups[g], q->num_computed);
  const int end = q->num_computed + h->query_lens[row];
  for (int i = 0; i < start / BLOCK; ++i) {
    if (q->blocks[g][i] != 0) h->free_blocks[g][h->num_free[g]++] = q->blocks[g][i];
    q->blocks[g][i] = 0;
  }
  a->kv_start[row] = start;
  memset(&a->block_table[row * width], 0, (size_t)width * sizeof(int32_t));
  if (row == 0) a->kv_indptr[0] = 0;
  int32_t entries = a->kv_indptr[row];
  for (int i = start / BLOCK; i * BLOCK < end; ++i) {
    if (q->blocks[g][i] == 0) q->blocks[g][i] = take_block(h, g);
    a->block_table[row * width + i - start / BLOCK] = q->blocks[g][i];
    a->kv_indices[entries++] = q->blocks[g][i];
  }
  a->kv_indptr[row + 1] = entries;
  a->kv_last_page_len[row] = (end - 1) % BLOCK + 1;
  for (int i = 0; i < h->query_lens[row]; ++i) {
    const int position = q->num_computed + i;
    a->slot_mapping[begin + i] = q->blocks[g][position / BLOCK] * BLOCK + position % BLOCK;
  }
}

/* The first half of a prompt and what is generated are of type 0. */
static int32_t type_of(const host *h, const request *q, int position) {
  const bool second = position >= q->num_prompt / 2 && position < q->num_prompt;
  return second && h->info.num_token_types > 0 ? h->info.num_token_types - 1 : 0;
}

static void fill_row(host *h, offer *o, int row, int begin) {
  const request *q = &h->requests[h->in_batch[row]];
  batch_arrays *a = &o->arrays;
  for (int i = 0; i < h->query_lens[row]; ++i) {
    a->input_ids[begin + i] = q->tokens[q->num_computed + i];
    const bool newest = q->num_computed + i == q->num_tokens - 1 && q->num_tokens > q->num_prompt;
    if (h->options.device && newest && q->sampled_step == h->step) a->input_ids[begin + i] = -1 - q->sampled_row;
    a->positions[begin + i] = q->num_computed + i;
    a->token_type_ids[begin + i] = type_of(h, q, q->num_computed + i);
    if (a->token_type_ids[begin + i] != 0) o->batch.has_token_types = 1;
  }
  a->query_start_loc[row + 1] = begin + h->query_lens[row];
  a->seq_lens[row] = q->num_computed + h->query_lens[row];
  a->logits_indices[row] = begin + h->query_lens[row] - 1;
  for (int g = 0; g < h->info.num_groups; ++g) {
    if (h->groups[g].kind == TRN_CACHE_RECURRENT) {
      a->groups[g].state_indices[row] = q->state;
      a->groups[g].has_initial_state[row] = q->num_computed > 0;
      a->groups[g].num_accepted[row] = 1;
    } else {
      fill_attention(h, o, g, row, begin);
    }
  }
}

bool build_step(host *h, offer *o) {
  const int rows = choose(h);
  if (rows == 0) return false;
  if (h->options.levels) share_blocks(h);
  memset(o, 0, sizeof *o);
  trn_forward_batch *batch = &o->batch;
  *batch = (trn_forward_batch){.struct_size = sizeof *batch,
                               .buffer_set = h->step % h->info.num_buffer_sets,
                               .num_reqs = rows,
                               .num_logits = rows,
                               .decode_query_len = 1,
                               .lens_are_exact = 1};
  for (int row = 0; row < rows; ++row) {
    const request *q = &h->requests[h->in_batch[row]];
    if (is_decode(q)) batch->num_decodes = row + 1;
    fill_row(h, o, row, batch->num_tokens);
    batch->num_tokens += h->query_lens[row];
    if (h->query_lens[row] > batch->max_query_len) batch->max_query_len = h->query_lens[row];
    if (o->arrays.seq_lens[row] > batch->max_seq_len) batch->max_seq_len = o->arrays.seq_lens[row];
  }
  if (h->options.levels && h->info.accepts_prefix_levels) say_levels(h, o);
  name_fields(h, o);
  bind_offer(h, o);
  return true;
}

void finish_step(host *h, const trn_forward_output *output) {
  for (int row = 0; row < output->num_logits; ++row) {
    request *q = &h->requests[h->in_batch[row]];
    q->num_computed += h->query_lens[row];
    if (q->num_computed < q->num_tokens) continue;
    const float *logits = output->logits + (size_t)row * (size_t)h->info.vocab_size;
    int best = 0;
    for (int id = 1; id < h->info.vocab_size; ++id) {
      if (logits[id] > logits[best]) best = id;
    }
    q->tokens[q->num_tokens++] = best;
    q->sampled_row = row;
    q->sampled_step = h->step + 1;
    if (h->options.device) h->sampled_ids[row] = best;
    q->done = q->num_tokens == q->num_prompt + NEW_TOKENS;
  }
}

/* After FAILED the step's slots and states are undefined: its requests start over. */
void forget_step(host *h) {
  for (int row = 0; row < MAX_SEQS && h->query_lens[row] > 0; ++row) {
    request *q = &h->requests[h->in_batch[row]];
    q->num_computed = 0;
    for (int g = 0; g < h->info.num_groups; ++g) {
      for (int i = 0; i < MAX_COLUMNS; ++i) {
        if (q->blocks[g][i] != 0) h->free_blocks[g][h->num_free[g]++] = q->blocks[g][i];
        q->blocks[g][i] = 0;
      }
    }
  }
}
