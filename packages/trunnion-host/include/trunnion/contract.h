/* The contract between a C++ serving host and Python model execution: plain C and DLPack, versioned, checked.
 *
 * One executor per process, and one more for a draft model that shares with it. All calls on an executor come from the
 * thread that created it (`trn_last_error` too); use after fork is refused. The host fills lent buffers and calls `trn_executor_execute` exactly once per step.
 *
 * Every struct that the host fills begins with `struct_size`; set it to `sizeof` so that a library can tell an older
 * host. The same facts stand in `trunnion/contract.py` and `docs/contract.md`.
 */
#ifndef TRUNNION_CONTRACT_H
#define TRUNNION_CONTRACT_H

#include <stddef.h>
#include <stdint.h>

#include "trunnion/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRN_ABI_VERSION 6u      /* layout of this header; a host of version 5 is served, its options end before num_threads */
#define TRN_CONTRACT_VERSION 3u /* meaning of its fields, trunnion.contract.CONTRACT_VERSION */

#if defined(__GNUC__)
#define TRN_API __attribute__((visibility("default")))
#else
#define TRN_API
#endif

typedef struct trn_executor trn_executor;

typedef enum trn_status {
  TRN_OK = 0,
  TRN_REFUSED = 1, /* the argument breaks the contract: nothing was enqueued, caches are intact, the next call works */
  TRN_FAILED = 2,  /* this batch's slots and states are undefined: recompute, unpublish its prefix blocks */
  TRN_FATAL = 3    /* the rank cannot go on: exit the process */
} trn_status;

/* Feature bits: what this library can do beyond version 1. */
enum { TRN_FEATURE_NULL_EXECUTOR = 1u << 0, TRN_FEATURE_PYTHON_EXECUTOR = 1u << 1 };

TRN_API uint32_t trn_abi_version(void);
TRN_API uint64_t trn_features(void);

typedef enum trn_cache_kind {
  TRN_CACHE_FULL = 0,
  TRN_CACHE_WINDOW = 1,
  TRN_CACHE_MLA = 2,
  TRN_CACHE_RECURRENT = 3
} trn_cache_kind;

/* What an executor's output rows are, trunnion.contract.OutputKind. */
typedef enum trn_output_kind { TRN_OUTPUT_LOGITS = 0, TRN_OUTPUT_POOLED = 1 } trn_output_kind;

/* Metadata fields beyond the required ones, trunnion.contract.Field. */
enum {
  TRN_FIELD_KV_CSR = 1u << 0,
  TRN_FIELD_NUM_ACCEPTED = 1u << 1,
  TRN_FIELD_HIDDEN_INDICES = 1u << 2, /* of a draft */
  TRN_FIELD_ENCODER_INDICES = 1u << 3 /* of a model that takes images */
};

/* What an executor is to the others of its process, trunnion.contract.Role. */
typedef enum trn_role { TRN_ROLE_TARGET = 0, TRN_ROLE_DRAFT = 1 } trn_role;

/* Where a host, with or without a device runtime, meets the executor, trunnion.contract.Staging. */
typedef enum trn_staging {
  TRN_STAGING_HOST = 0,  /* inputs and output rows lie in host memory */
  TRN_STAGING_DEVICE = 1 /* output rows lie on the device, and so do the ids that are sampled of them there */
} trn_staging;

typedef struct trn_limits {
  int32_t max_num_tokens; /* tokens per step */
  int32_t max_num_seqs;   /* requests per step */
  int32_t max_model_len;  /* tokens per request */
  int32_t max_logits_rows; /* output rows per step: of logits, or of pooled embeddings */
  int32_t block_size;
  int32_t max_decode_query_len; /* tokens per request of a uniform decode: 1 + k to verify k drafts; 0 means 1 */
  int32_t max_encoder_rows;     /* rows of the encoder pool; 0 = no images */
} trn_limits;

#define TRN_MAX_THREADS 1024 /* of num_threads */

typedef struct trn_create_options {
  uint32_t struct_size;
  uint32_t abi_version;      /* TRN_ABI_VERSION */
  uint32_t contract_version; /* TRN_CONTRACT_VERSION */
  uint32_t reserved;
  const char *model;    /* a folder with config.json and safetensors, or a .gguf file */
  const char *hardware; /* "null" (no Python, for tests), "cpu", "cuda", "ascend", ... */
  const char *dtype;    /* "auto", "float32", "bfloat16", "float16" */
  int32_t device_index;
  int32_t tp_rank;
  int32_t tp_size;
  int32_t show_progress;      /* progress bar on stderr while weights load */
  const char *tp_init_method; /* torch.distributed URL, or NULL for one rank */
  trn_limits limits;
  int32_t role;             /* trn_role: a draft is draft_model, or the head that `model` carries for its decoder */
  int32_t keep_hidden;      /* 1 = keep the hidden states of each step for a draft; a draft keeps its own anyway */
  int32_t staging;          /* trn_staging */
  int32_t reserved2;
  trn_executor *share_with; /* of a draft: its target, same thread, with keep_hidden, closed after it; else NULL */
  const char *kv_cache_dtype; /* what keys and values are cached in: NULL or "auto" (the model's dtype), "fp8_e4m3" */
  const char *draft_model; /* folder of a draft with a checkpoint of its own, the same for it and for its target; or NULL */
  const char *port; /* folder of a model family that is not installed, asked beside those that are; or NULL */
  /* A host of ABI version 5 ends here; what follows is 0 then. */
  int32_t num_threads; /* of the host that this rank computes with, at most TRN_MAX_THREADS; 0 = what the hardware chooses */
  int32_t reserved3;
  const char *weights; /* how quantised weights are kept: NULL or "auto", "native" (a .gguf file's blocks as they lie) */
  const char *activations; /* what rows meet integer weights in: NULL or "auto" (as published), "int8" (rounded to it) */
} trn_create_options;

/* Load the model, bind groups. On anything but TRN_OK `*out` is NULL and `error` (may be NULL) holds one line. */
TRN_API trn_status trn_executor_create(const trn_create_options *options, trn_executor **out, char *error,
                                       size_t error_size);

/* One line about the last call that did not return TRN_OK; valid until the next call. Never NULL. */
TRN_API const char *trn_last_error(const trn_executor *executor);
/* Name of the batch field that was refused ("input_ids", "groups[1].block_table", ...), or "". Never NULL. */
TRN_API const char *trn_last_error_field(const trn_executor *executor);

typedef struct trn_model_info {
  uint32_t struct_size;
  uint32_t required_fields; /* TRN_FIELD_*: the host builds exactly these besides the required ones */
  int32_t vocab_size;       /* ids are 0 ... vocab_size - 1, logits have vocab_size columns */
  int32_t num_groups;
  int32_t accepts_upper_bound_lens; /* 1 if host lengths may be upper bounds */
  int32_t num_buffer_sets;
  int32_t output_kind;  /* trn_output_kind: which of `logits` and `pooled` there is */
  int32_t output_width; /* its columns */
  int32_t num_position_axes; /* columns of `positions`: 1, or 3 where images span time, height and width */
  int32_t encoder_patch_dim; /* columns of an image's patches; 0 = the model takes no images */
  int32_t accepts_prefix_levels; /* 1 if a batch may say which requests share leading blocks (num_prefixes) */
  int32_t needs_whole_prompts; /* 1 if tokens see those after them: all tokens of a request come in one step */
  int32_t num_token_types; /* token_type_ids are 0 ... num_token_types - 1; 0 = the model takes none */
} trn_model_info;
/* A struct of an older host, which ends with num_buffer_sets, is filled as far as it goes; a model that pools refuses
 * it, and one that needs whole prompts any that ends before it could say so. The same holds for `pooled`, the last field of
 * trn_input_buffers and trn_forward_output. One that ends before num_token_types is served as before: all tokens of type 0. */
TRN_API trn_status trn_executor_model_info(trn_executor *executor, trn_model_info *info);

typedef struct trn_cache_tensor_spec {
  const char *name;
  const int64_t *shape; /* per block; the tensor is [num_blocks, shape...], contiguous */
  int32_t ndim;
  DLDataType dtype;
  int64_t bytes_per_block;
} trn_cache_tensor_spec;

typedef struct trn_cache_group_spec {
  uint32_t struct_size;
  int32_t kind; /* trn_cache_kind */
  int32_t num_layers;
  int32_t block_size;         /* 0 for recurrent groups, which count states where others count blocks */
  int32_t max_blocks_per_seq; /* width of the block table; of a recurrent group max_decode_query_len */
  int32_t window;             /* tokens a query sees, itself included; 0 = all */
  int32_t num_tensors;        /* per layer */
  const char *const *layers;
  const trn_cache_tensor_spec *tensors;
  int64_t bytes_per_block; /* over all layers */
} trn_cache_group_spec;
/* Pointers inside stay valid until close. */
TRN_API trn_status trn_executor_cache_group(trn_executor *executor, int32_t group, trn_cache_group_spec *spec);

typedef struct trn_memory_profile {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t weights, activations, graphs, workspaces; /* upper bounds in bytes */
} trn_memory_profile;
TRN_API trn_status trn_executor_memory_profile(trn_executor *executor, trn_memory_profile *profile);

/* Let the executor allocate and bind the caches: num_blocks[group], block (or state) 0 included and reserved. Once. */
TRN_API trn_status trn_executor_allocate_kv_cache(trn_executor *executor, const int32_t *num_blocks,
                                                  int32_t num_groups);

/* Bind caches the host has allocated, once, before warm_up. They stay the host's and outlive the executor. */
typedef struct trn_cache_tensor {
  int32_t group;
  int32_t layer;    /* within the group */
  const char *name; /* of the tensor spec */
  DLTensor tensor;
} trn_cache_tensor;
TRN_API trn_status trn_executor_bind_kv_cache(trn_executor *executor, const trn_cache_tensor *tensors,
                                              int32_t num_tensors);

/* JIT, autotune and capture happen here and nowhere else. `report` (may be NULL) is JSON, valid until the next call. */
TRN_API trn_status trn_executor_warm_up(trn_executor *executor, const char **report);

/* Lent staging of one buffer set, valid from create to close. int32, row-major, sized by the limits. Pointers of fields
 * that a group does not have are NULL. */
typedef struct trn_group_buffers {
  int32_t *slot_mapping;     /* [max_num_tokens] -1 = do not write */
  int32_t *block_table;      /* [max_num_seqs, max_blocks_per_seq] */
  int32_t *kv_start;         /* [max_num_seqs] leading tokens dropped by a window */
  int32_t *kv_indptr;        /* [max_num_seqs + 1], if TRN_FIELD_KV_CSR */
  int32_t *kv_indices;       /* [max_num_seqs * max_blocks_per_seq] */
  int32_t *kv_last_page_len; /* [max_num_seqs] */
  int32_t *state_indices;    /* [max_num_seqs, max_decode_query_len] recurrent; column i: after token i of a decode */
  int32_t *has_initial_state; /* [max_num_seqs], recurrent */
  int32_t *num_accepted;     /* [max_num_seqs] start in this column, counted from 1; if TRN_FIELD_NUM_ACCEPTED */
} trn_group_buffers;

typedef struct trn_input_buffers {
  uint32_t struct_size;
  int32_t num_groups;
  int32_t *input_ids;       /* [max_num_tokens] -1 - r: row r of sampled_ids, with device staging */
  int32_t *positions;       /* [max_num_tokens, num_position_axes] */
  int32_t *query_start_loc; /* [max_num_seqs + 1] */
  int32_t *seq_lens;        /* [max_num_seqs] tokens cached after this step */
  int32_t *logits_indices;  /* [max_logits_rows] */
  int32_t *hidden_indices;  /* [max_num_tokens] if TRN_FIELD_HIDDEN_INDICES: rows of the source's last step */
  int32_t *encoder_indices; /* [max_num_tokens] if TRN_FIELD_ENCODER_INDICES: rows of the encoder pool, -1 = text */
  const trn_group_buffers *groups;
  float *logits; /* output rows [max_logits_rows, vocab_size]; the host may overwrite them. NULL if the model pools */
  float *pooled; /* output rows [max_logits_rows, output_width], or NULL: an embedding for each of logits_indices */
  /* With device staging [max_logits_rows] on the device, the same for all sets: what the host samples of a step's logits
   * before the next step runs, on the executor's stream. Else NULL. The rows above lie on the device then, too. */
  int32_t *sampled_ids;
  /* Prefix levels, NULL where the executor does not accept them: range p holds requests prefix_indptr[p] and on. */
  int32_t *prefix_indptr; /* [max_num_seqs + 1] */
  int32_t *prefix_lens;   /* [max_num_seqs] leading tokens of each request of the range that lie in the same blocks */
  int32_t *token_type_ids; /* [max_num_tokens], NULL where num_token_types is 0; read if has_token_types */
} trn_input_buffers;
TRN_API trn_status trn_executor_input_buffers(trn_executor *executor, int32_t buffer_set, trn_input_buffers *buffers);

/* A batch. A tensor pointer that is NULL means "I have filled the lent buffer". A DLTensor whose data is the lent buffer
 * is taken as it is; any other (int32, contiguous, on the host) is copied into it. */
typedef struct trn_group_batch {
  const DLTensor *slot_mapping, *block_table, *kv_start;
  const DLTensor *kv_indptr, *kv_indices, *kv_last_page_len;
  const DLTensor *state_indices, *has_initial_state, *num_accepted;
} trn_group_batch;

/* An image to encode in this step, before its rows are used in this or a later one. */
typedef struct trn_encoder_item {
  const DLTensor *pixels; /* [num_patches, encoder_patch_dim] float32, contiguous, in host memory; read during execute */
  int32_t grid[3];        /* patches in time, height and width; their product is num_patches */
  int32_t first_row;      /* where its rows go in the encoder pool; a row is kept until it is written again */
  int32_t num_rows;       /* placeholder tokens of the image; what the model makes of the grid */
} trn_encoder_item;

/* An event between threads of one process: pending until it is signalled, once, as done or as an error. All functions
 * may be called from any thread; they are the reference for hosts without a device runtime. */
typedef struct trn_event trn_event;
typedef enum trn_event_state { TRN_EVENT_PENDING = 0, TRN_EVENT_DONE = 1, TRN_EVENT_ERROR = 2 } trn_event_state;

/* Pending; NULL if memory is out. */
TRN_API trn_event *trn_event_create(void);
/* Nobody waits for it and no step has it any more. NULL is allowed. */
TRN_API void trn_event_destroy(trn_event *event);
/* Pending again. TRN_REFUSED while a step is to signal it. */
TRN_API trn_status trn_event_reset(trn_event *event);
/* Done for TRN_OK, else an error. TRN_REFUSED if it is signalled already, or while a step is to signal it. */
TRN_API trn_status trn_event_signal(trn_event *event, trn_status status);
/* The state after at most `timeout_ns`, TRN_EVENT_PENDING if time is up; below 0 there is no limit. */
TRN_API trn_event_state trn_event_wait(trn_event *event, int64_t timeout_ns);
TRN_API trn_event_state trn_event_query(const trn_event *event);

#define TRN_KV_READY_TIMEOUT_NS 60000000000 /* a minute */

/* Events per cache layer of one step, for caches of several levels and for prefill and decode in different places. Layers
 * are numbered over all cache groups, in the order of the groups and of their layers. Each entry, and each of the two
 * arrays, may be NULL.
 *
 * A layer does not touch its cache before its kv_ready is done. One that is signalled with an error, or that does not
 * come in time, fails the step. kv_written is signalled once the layer's cache writes of this step are done: what lies in
 * the cache may then be read, and changed after the step. A kv_written is pending when it is handed over and stands in one
 * step only; execute signals it exactly once, with an error if the call does not return TRN_OK or the step fails later. The
 * arrays may go when execute returns, the events when they are signalled and the step's fence has been waited for.
 *
 * Such a step never runs in a graph that holds its layers. On a device the waits and signals are operations of its
 * stream, and execute returns as ever; on the host the executor's thread waits. With several ranks each rank gets events
 * of its own process, all ranks of a step or none. */
typedef struct trn_kv_events {
  uint32_t struct_size;
  int32_t num_layers;           /* of all cache groups */
  trn_event *const *kv_ready;   /* [num_layers], or NULL: no layer waits */
  trn_event *const *kv_written; /* [num_layers], or NULL: nobody is told */
  int64_t ready_timeout_ns;     /* per kv_ready; 0 = TRN_KV_READY_TIMEOUT_NS */
} trn_kv_events;

typedef struct trn_forward_batch {
  uint32_t struct_size;
  int32_t buffer_set;
  int32_t num_tokens, num_reqs, num_logits;
  int32_t num_decodes;      /* the first num_decodes requests have decode_query_len tokens each */
  int32_t decode_query_len; /* 1 ... max_decode_query_len */
  int32_t max_query_len, max_seq_len;
  int32_t lens_are_exact; /* 1, or 0 when host lengths are upper bounds */
  int32_t hidden_source;  /* of a draft: whose last step hidden_indices mean; 0 = the target's, 1 = its own */
  int32_t num_encoder_items;
  const DLTensor *input_ids, *positions, *query_start_loc, *seq_lens, *logits_indices;
  const DLTensor *hidden_indices, *encoder_indices;
  const trn_group_batch *groups; /* NULL, or num_groups entries */
  int32_t num_groups;
  const trn_encoder_item *encoder_items; /* num_encoder_items entries */
  const trn_kv_events *kv_events;        /* or NULL, at no cost */
  int32_t num_prefixes; /* ranges of consecutive requests that share leading blocks; 0 = nothing said, at no cost */
  const DLTensor *prefix_indptr, *prefix_lens;
  int32_t has_token_types; /* 1 = the batch has token_type_ids; 0 = all tokens are of type 0, at no cost */
  const DLTensor *token_type_ids;
} trn_forward_batch;
/* The struct of an older host, which ends with kv_events, says nothing of prefixes; one that ends with prefix_lens says
 * nothing of token types. */

typedef struct trn_forward_output {
  uint32_t struct_size;
  int32_t num_logits;
  float *logits;  /* [num_logits, vocab_size] in the set's output rows, or NULL */
  uint64_t fence; /* the set may be refilled, and its outputs read, after trn_executor_wait(fence) */
  float *pooled;  /* [num_logits, output_width] in the set's output rows, or NULL */
} trn_forward_output;

/* One forward of one executor. Validation reads host memory only and happens before Python is entered. */
TRN_API trn_status trn_executor_execute(trn_executor *executor, const trn_forward_batch *batch,
                                        trn_forward_output *output);
TRN_API trn_status trn_executor_wait(trn_executor *executor, uint64_t fence);

/* Check a batch as execute does, and run nothing. With several ranks: validate, hand the batch to the others, execute. */
TRN_API trn_status trn_executor_validate(trn_executor *executor, const trn_forward_batch *batch);

typedef struct trn_executor_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t executes;         /* that returned TRN_OK */
  uint64_t refused, failed;  /* executes */
  uint64_t gil_entries;      /* all times this library took the GIL */
  uint64_t step_gil_entries; /* of these, by execute: equals the executes that reached Python */
  uint64_t copied_tensors;   /* batch tensors that were not the lent buffers */
  double execute_seconds;    /* inside execute, Python included */
  double gil_wait_seconds;   /* waiting for the GIL inside execute */
  /* What the executor's runner says; 0 where there is none. No call enters Python for it. */
  uint64_t replays;       /* executes that ran no Python of the model */
  uint64_t eager_steps;   /* executes that did; trn_executor_eager_reason says why */
  uint64_t padded_tokens; /* rows computed beyond the steps' own */
  uint64_t plan_calls;    /* attention groups planned: groups x executes */
  double plan_seconds;
  double python_seconds;      /* in Python, plans included, the wait for the GIL not */
  uint64_t num_eager_reasons; /* seen so far */
  /* Of the last execute, in nanoseconds of CLOCK_MONOTONIC; 0 = unknown. */
  int64_t last_gil_begin_ns, last_gil_end_ns;
  int64_t last_python_begin_ns, last_python_end_ns;
  int64_t last_plan_begin_ns, last_plan_end_ns;
  uint64_t kv_event_steps; /* executes with KV events, none of them in a full graph */
  uint64_t prefix_level_steps; /* executes in which requests share leading blocks, none of them in a full graph */
  uint64_t token_type_steps;   /* executes with token types */
} trn_executor_stats;
/* A struct of an older host, which ends with gil_wait_seconds or later, is filled as far as it goes. */
TRN_API trn_status trn_executor_get_stats(trn_executor *executor, trn_executor_stats *stats);

/* Why steps ran eager: reason `index` in order of appearance, and its steps so far. Enters Python for a reason that is
 * asked for the first time. The text stays valid until close. */
TRN_API trn_status trn_executor_eager_reason(trn_executor *executor, int32_t index, const char **reason,
                                             uint64_t *steps);

/* Drops Python references under the GIL, then the thread state. NULL is allowed. */
TRN_API void trn_executor_close(trn_executor *executor);

#ifdef __cplusplus
}
#endif
#endif
