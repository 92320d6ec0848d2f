/* Each rule about types of tokens broken once, with the field that must be named. */
#include <string.h>

#include "host.h"

typedef struct type_fault {
  const char *what, *field;
  void (*apply)(const host *h, offer *o);
} type_fault;

static void many(const host *h, offer *o) { (void)h; o->batch.has_token_types = 2; }
static void negative_count(const host *h, offer *o) { (void)h; o->batch.has_token_types = -1; }
static void short_types(const host *h, offer *o) { (void)h; --find_field(o, "token_type_ids")->shape[0]; }
static void wide_types(const host *h, offer *o) { (void)h; find_field(o, "token_type_ids")->tensor.dtype.bits = 64; }
static void type_outside(const host *h, offer *o) { o->arrays.token_type_ids[0] = h->info.num_token_types; }
static void negative_type(const host *h, offer *o) { (void)h; o->arrays.token_type_ids[o->batch.num_tokens - 1] = -1; }

static const type_fault type_faults[] = {
    {"neither types nor none", "has_token_types", many},
    {"fewer than no types", "has_token_types", negative_count},
    {"types of fewer tokens", "token_type_ids", short_types},
    {"int64 types", "token_type_ids", wide_types},
    {"a type the model does not have", "token_type_ids", type_outside},
    {"a negative type", "token_type_ids", negative_type},
};

/* The text has the value, the limit and the request. */
static void expect_named(host *h, const offer *good) {
  static offer bad;
  copy_offer(h, &bad, good);
  const int last = good->batch.num_tokens - 1;
  bad.arrays.token_type_ids[last] = 9;
  expect_refused(h, &bad, "type 9", "token_type_ids");
  char expected[128];
  snprintf(expected, sizeof expected, "token %d of request %d is 9, expected 0 ... %d", last, good->batch.num_reqs - 1,
           h->info.num_token_types - 1);
  if (strstr(trn_last_error(h->executor), expected) == NULL) {
    fail("expected '%s' in: %s", expected, trn_last_error(h->executor));
  }
}

void try_type_faults(host *h, const offer *good) {
  static offer bad;
  if (h->info.num_token_types == 0) {
    copy_offer(h, &bad, good);
    bad.batch.has_token_types = 1;
    expect_refused(h, &bad, "types that are not taken", "has_token_types");
    if (strstr(trn_last_error(h->executor), "does not take token types") == NULL) {
      fail("a refusal without its reason: %s", trn_last_error(h->executor));
    }
    return;
  }
  if (good->batch.has_token_types == 0) return;
  int tried = 0;
  for (; tried < (int)(sizeof type_faults / sizeof *type_faults); ++tried) {
    copy_offer(h, &bad, good);
    type_faults[tried].apply(h, &bad);
    expect_refused(h, &bad, type_faults[tried].what, type_faults[tried].field);
  }
  expect_named(h, good);
  printf("type_faults %d refused %d\n", h->step, tried);
}
