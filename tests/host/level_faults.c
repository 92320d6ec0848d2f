/* Each rule about requests that share leading blocks broken once, with the field that must be named. */
#include "host.h"

typedef struct level_fault {
  const char *what, *field;
  void (*apply)(offer *o);
} level_fault;

static void many_levels(offer *o) { o->batch.num_prefixes = o->batch.num_reqs + 1; }
static void negative_count(offer *o) { o->batch.num_prefixes = -1; }
static void short_levels(offer *o) { --find_field(o, "prefix_indptr")->shape[0]; }
static void late_level(offer *o) { o->arrays.prefix_indptr[0] = 1; }
static void empty_level(offer *o) { o->arrays.prefix_indptr[1] = 0; }
static void level_outside(offer *o) { ++o->arrays.prefix_indptr[o->batch.num_prefixes]; }
static void half_block(offer *o) { o->arrays.prefix_lens[0] += BLOCK / 2; }
static void negative_level(offer *o) { o->arrays.prefix_lens[0] = -BLOCK; }
static void uncached_level(offer *o) { o->arrays.prefix_lens[0] = MAX_LEN; }

static const level_fault level_faults[] = {
    {"more ranges than requests", "num_prefixes", many_levels},
    {"fewer than no ranges", "num_prefixes", negative_count},
    {"range bounds shorter than the ranges", "prefix_indptr", short_levels},
    {"ranges that do not start at 0", "prefix_indptr", late_level},
    {"a range without requests", "prefix_indptr", empty_level},
    {"ranges that end past the requests", "prefix_indptr", level_outside},
    {"a shared part of a block", "prefix_lens", half_block},
    {"a negative length", "prefix_lens", negative_level},
    {"shared tokens that were not cached", "prefix_lens", uncached_level},
};

/* Whole blocks that every request of the step had cached. */
static int shortest_context(const offer *o) {
  int shortest = MAX_LEN;
  for (int r = 0; r < o->batch.num_reqs; ++r) {
    const int cached = o->arrays.positions[o->arrays.query_start_loc[r]];
    if (cached < shortest) shortest = cached;
  }
  return shortest / BLOCK * BLOCK;
}

/* All requests in one range, whose blocks differ after the common tokens. */
static int foreign_blocks(host *h, const offer *good) {
  static offer bad;
  const int cached = shortest_context(good);
  if (good->batch.num_reqs < 2 || cached <= COMMON) return 0;
  copy_offer(h, &bad, good);
  bad.batch.num_prefixes = 1;
  bad.arrays.prefix_indptr[1] = good->batch.num_reqs;
  bad.arrays.prefix_lens[0] = cached;
  name_fields(h, &bad);
  bind_offer(h, &bad);
  expect_refused(h, &bad, "shared tokens in other blocks", "prefix_lens");
  return 1;
}

void try_level_faults(host *h, const offer *good) {
  static offer bad;
  copy_offer(h, &bad, good);
  if (!h->info.accepts_prefix_levels) {
    bad.batch.num_prefixes = 1;
    expect_refused(h, &bad, "levels that are not accepted", "num_prefixes");
    return;
  }
  if (good->batch.num_prefixes == 0) return;
  int tried = 0;
  for (; tried < (int)(sizeof level_faults / sizeof *level_faults); ++tried) {
    copy_offer(h, &bad, good);
    level_faults[tried].apply(&bad);
    expect_refused(h, &bad, level_faults[tried].what, level_faults[tried].field);
  }
  printf("level_faults %d refused %d apart %d\n", h->step, tried, foreign_blocks(h, good));
}
