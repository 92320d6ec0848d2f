/* Requests that share leading blocks, and what a batch says of them: ranges of neighbours, as far as all of it share. */
#include "host.h"

static bool sees_all(const host *h, int group) {
  return h->groups[group].kind == TRN_CACHE_FULL || h->groups[group].kind == TRN_CACHE_MLA;
}

static int whole_blocks(int tokens) { return tokens / BLOCK; }

/* Leading blocks of equal tokens that both requests have computed. */
static int equal_blocks(const request *one, const request *other) {
  int tokens = 0;
  while (tokens < one->num_computed && tokens < other->num_computed && one->tokens[tokens] == other->tokens[tokens]) {
    ++tokens;
  }
  return whole_blocks(tokens);
}

/* What a request has computed lies in the first request's blocks, too, as far as their tokens are equal: it takes those,
 * and forgets its own, which nobody gets again. */
void share_blocks(host *h) {
  for (int r = 1; r < NUM_REQUESTS; ++r) {
    const int count = equal_blocks(&h->requests[0], &h->requests[r]);
    for (int g = 0; g < h->info.num_groups; ++g) {
      if (!sees_all(h, g)) continue;
      for (int i = 0; i < count; ++i) h->requests[r].blocks[g][i] = h->requests[0].blocks[g][i];
    }
  }
}

/* Leading blocks that two requests share in every group that sees all. */
static int shared_blocks(const host *h, const request *one, const request *other) {
  int count = whole_blocks(one->num_computed < other->num_computed ? one->num_computed : other->num_computed);
  for (int g = 0; g < h->info.num_groups; ++g) {
    if (!sees_all(h, g)) continue;
    int same = 0;
    while (same < count && one->blocks[g][same] == other->blocks[g][same]) ++same;
    count = same;
  }
  return count;
}

/* Now and then a range ends early, says less than it could, or nothing: all of that is allowed. */
void say_levels(host *h, offer *o) {
  int ranges = 0, count = 0;
  for (int row = 0; row < o->batch.num_reqs; ++row) {
    const request *q = &h->requests[h->in_batch[row]];
    const int with_last = row == 0 ? 0 : shared_blocks(h, &h->requests[h->in_batch[row - 1]], q);
    const bool joins = with_last > 0 && below(&h->random, 4) != 0;
    if (!joins) {
      o->arrays.prefix_indptr[ranges++] = row;
      count = whole_blocks(q->num_computed);
    }
    if (joins && with_last < count) count = with_last;
    const bool less = count > 0 && below(&h->random, 4) == 0;
    o->arrays.prefix_lens[ranges - 1] = (less ? count - 1 : count) * BLOCK;
  }
  o->arrays.prefix_indptr[ranges] = o->batch.num_reqs;
  o->batch.num_prefixes = ranges;
}
