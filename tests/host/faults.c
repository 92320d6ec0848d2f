/* Each rule of the contract broken once, with the field that must be named; wrong threads, forks and creations too. */
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"

typedef struct fault {
  const char *what;
  const char *field; /* the refusal must name it; "groups[0]." is the first attention group */
  void (*apply)(const host *h, offer *o);
} fault;

static offered *at(offer *o, const char *name) {
  offered *field = find_field(o, name);
  if (field == NULL) fail("this batch has no %s", name);
  return field;
}

static void int64_ids(const host *h, offer *o) { (void)h; at(o, "input_ids")->tensor.dtype.bits = 64; }
static void float_ids(const host *h, offer *o) { (void)h; at(o, "input_ids")->tensor.dtype.code = kDLFloat; }
static void device_ids(const host *h, offer *o) { (void)h; at(o, "input_ids")->tensor.device.device_type = kDLCUDA; }
static void short_ids(const host *h, offer *o) { (void)h; --at(o, "input_ids")->shape[0]; }
static void large_id(const host *h, offer *o) { o->arrays.input_ids[0] = h->info.vocab_size; }
static void negative_id(const host *h, offer *o) { (void)h; o->arrays.input_ids[0] = -1; }
static void flat_table(const host *h, offer *o) { (void)h; at(o, "groups[0].block_table")->tensor.ndim = 1; }
static void narrow_table(const host *h, offer *o) { (void)h; --at(o, "groups[0].block_table")->shape[1]; }
static void strided_table(const host *h, offer *o) {
  (void)h;
  at(o, "groups[0].block_table")->shape[0] = 2;
  at(o, "groups[0].block_table")->strides[0] *= 2;
}
static void misaligned(const host *h, offer *o) { (void)h; at(o, "positions")->tensor.byte_offset = 2; }
static void no_data(const host *h, offer *o) { (void)h; at(o, "seq_lens")->tensor.data = NULL; }
static void many_tokens(const host *h, offer *o) { (void)h; o->batch.num_tokens = MAX_TOKENS + 1; }
static void many_requests(const host *h, offer *o) { (void)h; o->batch.num_reqs = MAX_SEQS + 1; }
static void many_rows(const host *h, offer *o) { (void)h; o->batch.num_logits = MAX_ROWS + 1; }
static void bad_set(const host *h, offer *o) { o->batch.buffer_set = h->info.num_buffer_sets; }
static void old_struct(const host *h, offer *o) { (void)h; o->batch.struct_size = 8; }
static void late_start(const host *h, offer *o) { (void)h; o->arrays.query_start_loc[0] = 1; }
static void falling_start(const host *h, offer *o) { (void)h; o->arrays.query_start_loc[1] = -3; }
static void early_end(const host *h, offer *o) { (void)h; --o->arrays.query_start_loc[o->batch.num_reqs]; }
static void long_decodes(const host *h, offer *o) { (void)h; o->batch.decode_query_len = 2; }
static void foreign_source(const host *h, offer *o) { (void)h; o->batch.hidden_source = 1; }
static void foreign_hidden(const host *h, offer *o) { (void)h; o->batch.hidden_indices = o->batch.input_ids; }
static void foreign_image(const host *h, offer *o) { (void)h; o->batch.num_encoder_items = 1; }
static void short_len(const host *h, offer *o) { (void)h; o->arrays.seq_lens[0] = 0; }
static void long_len(const host *h, offer *o) { (void)h; o->arrays.seq_lens[0] = MAX_LEN + 1; }
static void wrong_max(const host *h, offer *o) { (void)h; --o->batch.max_seq_len; }
static void wrong_max_query(const host *h, offer *o) { (void)h; --o->batch.max_query_len; }
static void wrong_position(const host *h, offer *o) { (void)h; ++o->arrays.positions[0]; }
static void inexact(const host *h, offer *o) { (void)h; o->batch.lens_are_exact = 0; }
static void row_outside(const host *h, offer *o) { (void)h; o->arrays.logits_indices[0] = o->batch.num_tokens; }
static void row_negative(const host *h, offer *o) { (void)h; o->arrays.logits_indices[0] = -1; }
static void slot_outside(const host *h, offer *o) { (void)h; o->arrays.groups[0].slot_mapping[0] = NUM_BLOCKS * BLOCK; }
static void slot_in_padding(const host *h, offer *o) { (void)h; o->arrays.groups[0].slot_mapping[0] = 0; }
static void slot_minus_two(const host *h, offer *o) { (void)h; o->arrays.groups[0].slot_mapping[0] = -2; }
static void slot_shifted(const host *h, offer *o) { (void)h; ++o->arrays.groups[0].slot_mapping[0]; }
static void block_zero(const host *h, offer *o) { (void)h; o->arrays.groups[0].block_table[0] = 0; }
static void block_outside(const host *h, offer *o) { (void)h; o->arrays.groups[0].block_table[0] = NUM_BLOCKS; }
static void block_past_end(const host *h, offer *o) {
  o->arrays.groups[0].block_table[h->groups[0].max_blocks_per_seq - 1] = 1;
}
static void block_twice(const host *h, offer *o) {
  (void)h;
  o->arrays.groups[0].block_table[1] = o->arrays.groups[0].block_table[0];
}
static void shared_write(const host *h, offer *o) {
  /* The block that the first request writes to takes the place of one that the second writes to. */
  group_arrays *a = &o->arrays.groups[0];
  const int block = a->slot_mapping[0] / BLOCK;
  const int begin = o->arrays.query_start_loc[1];
  const int column = o->arrays.positions[begin] / BLOCK;
  a->block_table[h->groups[0].max_blocks_per_seq + column] = block;
  for (int t = begin; t < o->arrays.query_start_loc[2]; ++t) {
    const int position = o->arrays.positions[t];
    if (position / BLOCK == column) a->slot_mapping[t] = block * BLOCK + position % BLOCK;
  }
}
static void moved_start(const host *h, offer *o) { (void)h; o->arrays.groups[0].kv_start[0] = BLOCK; }
static void odd_start(const host *h, offer *o) { (void)h; o->arrays.groups[0].kv_start[0] = 1; }
static void few_groups(const host *h, offer *o) { (void)h; --o->batch.num_groups; }
static void foreign_field(const host *h, offer *o) {
  (void)h;
  o->groups[0].state_indices = &at(o, "seq_lens")->tensor;
}

static const fault faults[] = {
    {"int64 ids", "input_ids", int64_ids},
    {"float ids", "input_ids", float_ids},
    {"ids on a device", "input_ids", device_ids},
    {"ids shorter than the step", "input_ids", short_ids},
    {"id = vocab_size", "input_ids", large_id},
    {"negative id", "input_ids", negative_id},
    {"one-dimensional table", "groups[0].block_table", flat_table},
    {"table of the wrong width", "groups[0].block_table", narrow_table},
    {"table that is not contiguous", "groups[0].block_table", strided_table},
    {"misaligned data", "positions", misaligned},
    {"no data", "seq_lens", no_data},
    {"too many tokens", "num_tokens", many_tokens},
    {"too many requests", "num_reqs", many_requests},
    {"too many rows of logits", "num_logits", many_rows},
    {"buffer set outside", "buffer_set", bad_set},
    {"older struct", "struct_size", old_struct},
    {"query_start_loc does not start at 0", "query_start_loc", late_start},
    {"query_start_loc falls", "query_start_loc", falling_start},
    {"query_start_loc ends before T", "query_start_loc", early_end},
    {"decodes longer than max_decode_query_len", "decode_query_len", long_decodes},
    {"a draft's source", "hidden_source", foreign_source},
    {"a draft's field", "hidden_indices", foreign_hidden},
    {"an image for a text model", "encoder_items", foreign_image},
    {"seq_len below the query", "seq_lens", short_len},
    {"seq_len above max_model_len", "seq_lens", long_len},
    {"wrong max_seq_len", "max_seq_len", wrong_max},
    {"wrong max_query_len", "max_query_len", wrong_max_query},
    {"position that seq_lens denies", "positions", wrong_position},
    {"upper bounds not accepted", "lens_are_exact", inexact},
    {"logits row outside", "logits_indices", row_outside},
    {"negative logits row", "logits_indices", row_negative},
    {"slot outside the pool", "groups[0].slot_mapping", slot_outside},
    {"slot in block 0", "groups[0].slot_mapping", slot_in_padding},
    {"slot -2", "groups[0].slot_mapping", slot_minus_two},
    {"slot that the table denies", "groups[0].slot_mapping", slot_shifted},
    {"block 0 in a live column", "groups[0].block_table", block_zero},
    {"block outside the pool", "groups[0].block_table", block_outside},
    {"block past the end", "groups[0].block_table", block_past_end},
    {"one block twice in a row", "groups[0].block_table", block_twice},
    {"two requests write to one block", "groups[0].slot_mapping", shared_write},
    {"start moved in a full group", "groups[0].kv_start", moved_start},
    {"start inside a block", "groups[0].kv_start", odd_start},
    {"a group too few", "num_groups", few_groups},
    {"a field the group does not have", "groups[0].state_indices", foreign_field},
};

void expect_refused(host *h, offer *o, const char *what, const char *field) {
  trn_forward_output output = {.struct_size = sizeof output};
  const trn_status status = trn_executor_execute(h->executor, &o->batch, &output);
  if (status != TRN_REFUSED) fail("%s: status %d, expected REFUSED", what, (int)status);
  if (strcmp(trn_last_error_field(h->executor), field) != 0) {
    fail("%s: named '%s', expected '%s': %s", what, trn_last_error_field(h->executor), field, trn_last_error(h->executor));
  }
  if (!caches_unchanged(h)) fail("%s: the caches changed", what);
}

static void expect_empty_step(host *h) {
  static offer empty;
  memset(&empty, 0, sizeof empty);
  empty.batch = (trn_forward_batch){.struct_size = sizeof empty.batch, .decode_query_len = 1, .lens_are_exact = 1};
  empty.batch.buffer_set = h->step % h->info.num_buffer_sets;
  name_fields(h, &empty);
  bind_offer(h, &empty);
  trn_forward_output output = {.struct_size = sizeof output};
  check(h, trn_executor_execute(h->executor, &empty.batch, &output), "execute with T = 0");
  if (output.num_logits != 0) fail("T = 0 gave %d rows", output.num_logits);
  if (!caches_unchanged(h)) fail("T = 0 changed the caches");
  trn_forward_batch again = empty.batch;
  if (trn_executor_execute(h->executor, &again, &output) != TRN_REFUSED) fail("a set was reused before its fence");
  if (strcmp(trn_last_error_field(h->executor), "buffer_set") != 0) fail("reuse of a set names buffer_set");
  check(h, trn_executor_wait(h->executor, output.fence), "wait");
  if (trn_executor_wait(h->executor, output.fence + 1) != TRN_REFUSED) fail("a fence from the future was accepted");
}

/* Whose batch ends before num_prefixes, or has_token_types: what lies behind it is not read. */
static void expect_older_host(host *h, const offer *good) {
  static offer older;
  copy_offer(h, &older, good);
  older.batch.struct_size = offsetof(trn_forward_batch, num_prefixes);
  older.batch.num_prefixes = 77;
  check(h, trn_executor_validate(h->executor, &older.batch), "an older host's batch");
  older.batch.struct_size = sizeof older.batch;
  if (trn_executor_validate(h->executor, &older.batch) != TRN_REFUSED) fail("77 prefixes were not seen");
  older.batch.num_prefixes = good->batch.num_prefixes;
  older.batch.struct_size = offsetof(trn_forward_batch, has_token_types);
  older.batch.has_token_types = 77;
  check(h, trn_executor_validate(h->executor, &older.batch), "a host's batch from before token types");
  older.batch.struct_size = sizeof older.batch;
  if (trn_executor_validate(h->executor, &older.batch) != TRN_REFUSED) fail("77 for has_token_types was not seen");
}

void try_faults(host *h, const offer *good) {
  static offer bad;
  take_snapshot(h);
  const int count = (int)(sizeof faults / sizeof *faults);
  int tried = 0;
  for (int i = 0; i < count; ++i) {
    /* Needs two rows. */
    if (faults[i].apply == shared_write && good->batch.num_reqs < 2) continue;
    copy_offer(h, &bad, good);
    faults[i].apply(h, &bad);
    expect_refused(h, &bad, faults[i].what, faults[i].field);
    ++tried;
  }
  expect_older_host(h, good);
  try_level_faults(h, good);
  try_type_faults(h, good);
  expect_empty_step(h);
  printf("faults %d refused %d of %d\n", h->step, tried, count);
}

static void *from_thread(void *argument) {
  host *h = argument;
  trn_model_info info = {.struct_size = sizeof info};
  if (trn_executor_model_info(h->executor, &info) != TRN_REFUSED) return "another thread was let in";
  if (strstr(trn_last_error(h->executor), "thread") == NULL) return "the error does not say thread";
  return NULL;
}

void try_lifetime(host *h) {
  pthread_t thread;
  void *complaint = NULL;
  if (pthread_create(&thread, NULL, from_thread, h) != 0) fail("pthread_create");
  pthread_join(thread, &complaint);
  if (complaint != NULL) fail("%s", (char *)complaint);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    trn_model_info info = {.struct_size = sizeof info};
    const bool refused = trn_executor_model_info(h->executor, &info) == TRN_REFUSED;
    trn_executor_close(h->executor);
    _exit(refused && strstr(trn_last_error(h->executor), "fork") != NULL ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("use after fork was let in");
  if (trn_executor_allocate_kv_cache(h->executor, h->num_blocks, h->info.num_groups) != TRN_REFUSED) {
    fail("caches were bound twice");
  }
  trn_model_info info = {.struct_size = 4};
  if (trn_executor_model_info(h->executor, &info) != TRN_REFUSED) fail("an older struct was filled");
  info.struct_size = sizeof info;
  check(h, trn_executor_model_info(h->executor, &info), "model_info");
  printf("lifetime ok\n");
}

static void expect_no_executor(trn_create_options options, const char *word) {
  char error[512] = "";
  trn_executor *executor = NULL;
  const trn_status status = trn_executor_create(&options, &executor, error, sizeof error);
  if (status != TRN_REFUSED || executor != NULL) fail("create without a right %s: status %d", word, (int)status);
  if (strstr(error, word) == NULL) fail("the error does not name %s: %s", word, error);
  if (strchr(error, '\n') != NULL) fail("the error is not one line: %s", error);
  printf("create refused: %s\n", error);
}

/* What ABI version 5 did not have is not read, whatever lies there. */
static void expect_executor_of_older_host(trn_create_options options) {
  options.abi_version = 5;
  options.struct_size = offsetof(trn_create_options, num_threads);
  options.num_threads = -7;
  options.weights = options.activations = "none";
  char error[512] = "";
  trn_executor *executor = NULL;
  if (trn_executor_create(&options, &executor, error, sizeof error) != TRN_OK) fail("an older host: %s", error);
  trn_executor_close(executor);
  options.struct_size -= 8;
  expect_no_executor(options, "struct_size");
}

void try_creation(const host *h) {
  const trn_create_options good = {
      .struct_size = sizeof good,
      .abi_version = TRN_ABI_VERSION,
      .contract_version = TRN_CONTRACT_VERSION,
      .model = h->options.model,
      .hardware = h->options.hardware,
      .dtype = h->options.dtype,
      .tp_size = 1,
      .limits = {MAX_TOKENS, MAX_SEQS, MAX_LEN, MAX_ROWS, BLOCK},
  };
  trn_create_options bad = good;
  bad.abi_version = 99;
  expect_no_executor(bad, "abi_version");
  bad = good;
  bad.contract_version = 99;
  expect_no_executor(bad, "contract_version");
  bad = good;
  bad.struct_size = 16;
  expect_no_executor(bad, "struct_size");
  bad = good;
  bad.model = NULL;
  expect_no_executor(bad, "model");
  bad = good;
  bad.limits.max_num_seqs = 0;
  expect_no_executor(bad, "max_num_seqs");
  bad = good;
  bad.limits.max_num_seqs = MAX_TOKENS + 1;
  expect_no_executor(bad, "max_num_seqs");
  bad = good;
  bad.draft_model = "a draft";
  expect_no_executor(bad, "draft_model");
  bad = good;
  bad.tp_rank = 1;
  expect_no_executor(bad, "tp_rank");
  bad = good;
  bad.num_threads = -1;
  expect_no_executor(bad, "num_threads: -1");
  bad.num_threads = TRN_MAX_THREADS + 1;
  expect_no_executor(bad, "num_threads: 1025");
  bad = good;
  bad.weights = "native";
  expect_no_executor(bad, "weights");
  bad = good;
  bad.activations = "int4";
  expect_no_executor(bad, "activations");
  bad = good;
  bad.struct_size = offsetof(trn_create_options, num_threads);
  expect_no_executor(bad, "struct_size");
  expect_executor_of_older_host(good);
  if (strcmp(h->options.hardware, "null") == 0) {
    bad = good;
    bad.model = "null:vocabulary=7";
    expect_no_executor(bad, "vocabulary");
    bad = good;
    bad.model = "null:vocab=x";
    expect_no_executor(bad, "vocab");
  }
}
