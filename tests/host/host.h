/* A small serving host in plain C that knows trunnion only by contract.h, and can do everything wrong on purpose. */
#ifndef HOST_H
#define HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "trunnion/contract.h"

enum {
  MAX_GROUPS = 4,
  MAX_TOKENS = 24, /* per step */
  MAX_SEQS = 4,
  MAX_LEN = 96,
  MAX_ROWS = 8,
  BLOCK = 4,
  MAX_COLUMNS = MAX_LEN / BLOCK,
  NUM_BLOCKS = 64,
  NUM_STATES = 8,
  NUM_REQUESTS = 3,
  COMMON = 8, /* leading tokens of all prompts with --levels */
  NEW_TOKENS = 24,
  MAX_CACHE_TENSORS = 128
};

typedef struct options {
  const char *model, *hardware, *dtype, *mode;
  int count;    /* mutants of a fuzz */
  int chunk;    /* token budget per step */
  unsigned watchdog;
  uint64_t seed; /* of block ids, request order and mutants */
  bool own;      /* offer the host's own tensors, not the lent buffers */
  bool allocate; /* let the executor allocate the caches */
  bool levels;   /* prompts begin alike, their blocks are shared, and batches say so */
  bool device;   /* device staging: the next step's ids are sampled where the rows lie */
} options;

typedef struct request {
  int32_t tokens[MAX_LEN];
  int num_prompt, num_tokens, num_computed;
  int32_t blocks[MAX_GROUPS][MAX_COLUMNS]; /* by position / BLOCK; 0 = none */
  int32_t state;
  int sampled_row, sampled_step; /* where and when the newest token was sampled */
  bool done;
} request;

/* Arrays at full capacity, so that no mutated count can lead outside of them. */
typedef struct group_arrays {
  int32_t slot_mapping[MAX_TOKENS], block_table[MAX_SEQS * MAX_COLUMNS], kv_start[MAX_SEQS];
  int32_t kv_indptr[MAX_SEQS + 1], kv_indices[MAX_SEQS * MAX_COLUMNS], kv_last_page_len[MAX_SEQS];
  int32_t state_indices[MAX_SEQS], has_initial_state[MAX_SEQS], num_accepted[MAX_SEQS];
} group_arrays;

typedef struct batch_arrays {
  int32_t input_ids[MAX_TOKENS], positions[MAX_TOKENS], query_start_loc[MAX_SEQS + 1], seq_lens[MAX_SEQS];
  int32_t logits_indices[MAX_ROWS];
  int32_t prefix_indptr[MAX_SEQS + 1], prefix_lens[MAX_SEQS], token_type_ids[MAX_TOKENS];
  group_arrays groups[MAX_GROUPS];
} batch_arrays;

enum { BATCH_FIELDS = 8, GROUP_FIELDS = 9, MAX_FIELDS = BATCH_FIELDS + GROUP_FIELDS * MAX_GROUPS };

/* One tensor as it is offered: a DLTensor with its own shape and strides. */
typedef struct offered {
  char name[48];
  int group; /* or -1 */
  DLTensor tensor;
  int64_t shape[2], strides[2];
  int32_t *data; /* in batch_arrays */
  int capacity;
} offered;

/* A batch with everything it points to; `bind_offer` makes the pointers. */
typedef struct offer {
  batch_arrays arrays;
  offered fields[MAX_FIELDS];
  int num_fields;
  trn_forward_batch batch;
  trn_group_batch groups[MAX_GROUPS];
} offer;

typedef struct host {
  options options;
  trn_executor *executor;
  trn_model_info info;
  trn_cache_group_spec groups[MAX_GROUPS];
  int32_t num_blocks[MAX_GROUPS];
  int32_t free_blocks[MAX_GROUPS][NUM_BLOCKS];
  int num_free[MAX_GROUPS];
  request requests[NUM_REQUESTS];
  int in_batch[MAX_SEQS]; /* request of each row */
  int query_lens[MAX_SEQS];
  int32_t *sampled_ids; /* of the executor; on its device, which must be the host's memory here */
  uint8_t *cache, *snapshot;
  size_t cache_bytes;
  uint64_t random, mutants; /* of requests and blocks; of mutants, so that a fuzz leaves the steps as they were */
  int step;
} host;

/* host.c */
uint64_t next_random(uint64_t *state);
int below(uint64_t *state, int bound);
void fail(const char *format, ...);
void check(host *h, trn_status status, const char *what);

/* caches.c */
void provide_caches(host *h);
void take_snapshot(host *h);
bool caches_unchanged(const host *h);
void restore_caches(host *h);

/* schedule.c: which requests run, and the arrays of their step. */
void start_requests(host *h);
bool build_step(host *h, offer *o);
void finish_step(host *h, const trn_forward_output *output);
void forget_step(host *h);

/* levels.c */
void share_blocks(host *h);
void say_levels(host *h, offer *o);

/* offer.c */
void name_fields(const host *h, offer *o);
void bind_offer(const host *h, offer *o);
void copy_offer(const host *h, offer *to, const offer *from);
offered *find_field(offer *o, const char *name);
void fill_lent(host *h, const offer *o, int32_t buffer_set);
trn_status execute(host *h, offer *o, trn_forward_output *output);

/* oracle.c: whether the contract allows a batch, said naively and without the library's code. */
bool oracle_allows(const host *h, const offer *o);

/* mutate.c */
void mutate(host *h, offer *o);
void fuzz(host *h, const offer *good, int count);

/* type_faults.c */
void try_type_faults(host *h, const offer *good);

/* level_faults.c */
void try_level_faults(host *h, const offer *good);

/* faults.c */
void expect_refused(host *h, offer *o, const char *what, const char *field);
void try_faults(host *h, const offer *good);
void try_lifetime(host *h);
void try_creation(const host *h);

int host_main(int argc, char **argv);
#endif
