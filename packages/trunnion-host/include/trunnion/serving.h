/* The reference serving host in plain C: submit token ids, read tokens or embeddings as events, from any thread.
 *
 * One host owns one executor and one loop thread; the loop thread creates the executor and makes every call on it. Each
 * step is one `trn_executor_execute`. Functions that return a status write one line to `error` (which may be NULL) when
 * they return anything but TRN_HOST_OK or TRN_HOST_TIMEOUT.
 *
 * Every struct begins with `struct_size`; set it to `sizeof`. Structs may grow at their end.
 */
#ifndef TRUNNION_SERVING_H
#define TRUNNION_SERVING_H

#include "trunnion/contract.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRN_HOST_MAX_LOGPROBS 20
#define TRN_HOST_MAX_DRAFTS 8
#define TRN_HOST_ERROR_SIZE 256

typedef struct trn_host trn_host;

typedef enum trn_host_status {
  TRN_HOST_OK = 0,
  TRN_HOST_TIMEOUT = 1,
  TRN_HOST_INVALID = 2,         /* an argument, named in the error line */
  TRN_HOST_UNKNOWN_REQUEST = 3, /* never submitted, or its finished event has been read */
  TRN_HOST_CLOSED = 4,          /* after shutdown, with no event left */
  TRN_HOST_DEAD = 5             /* the executor failed for good; the line says why */
} trn_host_status;

/* What the layers of a step wait for and tell, or NULL. Called on the host's own thread before each execute with the batch
 * and the buffers it lies in; what it returns lives until the next call, or until the host is shut down. */
typedef const trn_kv_events *(*trn_kv_events_of)(void *context, const trn_forward_batch *batch,
                                                 const trn_input_buffers *inputs);

typedef struct trn_host_options {
  uint32_t struct_size;
  int32_t queue_size;            /* unread tokens per request before it is no longer scheduled; at least 1 */
  int32_t prefix_caching;        /* 1 = on; turned off by itself when a group is recurrent, see the stats */
  int32_t exit_on_fatal;         /* on FATAL or a watchdog timeout: 1 = print one line and _exit(70), 0 = be dead */
  double watchdog_s;             /* longest time of one execute; 0 = no watchdog */
  const int32_t *num_blocks;     /* per cache group, block 0 included; or NULL */
  int32_t num_groups;            /* entries of num_blocks */
  int32_t kv_blocks;             /* blocks of every attention group, block 0 included; 0 = see kv_bytes */
  int64_t kv_bytes;              /* bytes for all caches; 0 = enough for max_num_seqs requests of max_model_len */
  trn_create_options executor;   /* tp_rank 0; with tp_size above 1 the others are workers, see worker.h */
  const int32_t *worker_sockets; /* connected to ranks 1, 2, ... tp_size - 1; taken over, also by a call that fails */
  int32_t num_workers;           /* entries of worker_sockets: tp_size - 1 */
  double worker_timeout_s;       /* longest wait for another rank while starting; 0 = no limit */
  int32_t overlap;               /* 1 = plan the next step while one runs, in the other buffer set */
  const char *trace_file;        /* where to write a trace of all steps, for Perfetto or chrome://tracing; or NULL */
  trn_kv_events_of kv_events_of; /* or NULL; with tp_size 1 only */
  void *kv_events_context;       /* its first argument */
  int32_t num_drafts;            /* tokens that the draft (executor.draft_model, or the model's head) proposes per step of
                                  * a request; 0 = no drafts */
  /* Tell the executor which requests of a step share leading blocks, where reading those once saves at least so many
   * tokens: shared tokens x (requests - 1), over the step. 0 = never. Such a step runs in no full graph. Where it cannot be,
   * the JSON of the stats says why. */
  int32_t prefix_levels;
} trn_host_options;

/* Blocks until the model is loaded, the caches are allocated and warm_up has returned. */
TRN_API trn_host_status trn_host_create(const trn_host_options *options, trn_host **out, char *error,
                                        size_t error_size);

typedef struct trn_host_sampling {
  uint32_t struct_size;
  int32_t top_k;        /* 0 = all */
  double temperature;   /* 0 = greedy */
  double top_p;         /* (0, 1], over what top_k left */
  double min_p;         /* [0, 1], relative to the most likely token */
  uint64_t seed;        /* of the request's random numbers f(seed, position), if has_seed */
  int32_t has_seed;     /* 0 = a random seed, reported in the finished event */
  int32_t max_tokens;   /* output tokens; 0 = as many as max_model_len and the block pool allow */
  int32_t min_tokens;   /* no stop or eos id is sampled before */
  int32_t ignore_eos;   /* 1 = eos_ids do not stop */
  int32_t num_logprobs; /* -1 = none, 0 = of the sampled token, n = and of the n most likely; of the raw logits */
} trn_host_sampling;

/* What a model makes decides which kind it serves; the other one is refused. See trn_host_model_info. */
enum { TRN_REQUEST_GENERATE = 0, TRN_REQUEST_EMBED = 1 };

/* An image of a prompt. Its placeholder tokens take, one by one, the rows that the model makes of it. */
typedef struct trn_host_image {
  uint32_t struct_size;
  int32_t grid[3];             /* patches in time, height and width */
  const float *pixels;         /* [num_patches, patch_dim], copied by trn_host_submit */
  int64_t num_patches;         /* the product of grid */
  int32_t patch_dim;           /* the model's encoder_patch_dim */
  int32_t first_token;         /* index of its first placeholder in token_ids */
  int32_t num_tokens;          /* placeholders, one after another; what the model makes of the grid */
} trn_host_image;

typedef struct trn_host_request {
  uint32_t struct_size;
  int32_t num_tokens;
  const int32_t *token_ids;
  const int32_t *stop_ids; /* end the request with reason stop */
  const int32_t *eos_ids;  /* the same, unless ignore_eos */
  int32_t num_stop_ids, num_eos_ids;
  trn_host_sampling sampling;
  int32_t kind; /* TRN_REQUEST_*; an embed request reads no sampling, no stop_ids and no eos_ids */
  int32_t num_images;
  const trn_host_image *images; /* in the order of their tokens, which do not overlap */
  /* Of a model with several position axes: [num_tokens, num_position_axes], copied. NULL in a prompt without images:
   * a token lies at its index on every axis. */
  const int32_t *positions;
  int32_t position_delta; /* a generated token lies at its index + this on every axis; 0 or below */
  /* [num_tokens] type of each token, copied, of a model with num_token_types; NULL = all of type 0. A generated token has
   * the last one's. The struct of an older caller ends before it. */
  const int32_t *token_type_ids;
} trn_host_request;

/* Ids count from 1. A request that can never run (empty, too long, more blocks than the pool has) is refused here. */
TRN_API trn_host_status trn_host_submit(trn_host *host, const trn_host_request *request, uint64_t *request_id,
                                        char *error, size_t error_size);

enum { TRN_EVENT_TOKEN = 1, TRN_EVENT_FINISHED = 2 };
enum {
  TRN_FINISH_NONE = 0,
  TRN_FINISH_STOP = 1, /* or the embedding is there */
  TRN_FINISH_LENGTH = 2,
  TRN_FINISH_CANCELLED = 3,
  TRN_FINISH_ERROR = 4
};

typedef struct trn_host_event {
  uint32_t struct_size;
  int32_t type; /* TRN_EVENT_* */
  uint64_t request_id;
  /* TRN_EVENT_TOKEN */
  int32_t token_id;
  float logprob;    /* if asked for, else 0 */
  int32_t num_top;  /* entries below, most likely first */
  int32_t top_ids[TRN_HOST_MAX_LOGPROBS];
  float top_logprobs[TRN_HOST_MAX_LOGPROBS];
  /* TRN_EVENT_FINISHED: the last event of a request */
  int32_t finish_reason;     /* TRN_FINISH_* */
  int32_t stop_id;           /* the id that ended it (no token event is sent for it), or -1 */
  int32_t num_prompt_tokens;
  int32_t num_cached_tokens; /* of the prompt, found in the prefix cache at its first admission */
  int32_t num_output_tokens; /* token events sent */
  int32_t num_preemptions;
  uint64_t seed;
  char error[TRN_HOST_ERROR_SIZE];
  /* TRN_EVENT_FINISHED of an embed request: the caller sets memory and its size, output_width floats are written */
  float *embedding;
  int32_t embedding_capacity;
  int32_t embedding_size; /* written: output_width, or 0 if there is no embedding */
} trn_host_event;

/* The next event of one request, or of any (request_id 0). timeout_ms < 0 waits for ever. An event whose embedding does
 * not fit is not taken: TRN_HOST_INVALID. */
TRN_API trn_host_status trn_host_next_event(trn_host *host, uint64_t request_id, int64_t timeout_ms,
                                            trn_host_event *event);

/* The request ends with reason cancelled, its blocks are free by then. Cancelling twice, or too late, is harmless. */
TRN_API trn_host_status trn_host_cancel(trn_host *host, uint64_t request_id);

/* What the executor says of its model: vocabulary, output kind and width. */
TRN_API trn_host_status trn_host_model_info(trn_host *host, trn_model_info *info);

typedef struct trn_host_stats {
  uint32_t struct_size;
  int32_t prefix_caching;                           /* 1 = on */
  uint64_t steps, execute_calls;                    /* equal: one execute per step */
  uint64_t refused_steps, failed_steps;
  uint64_t prefill_tokens, decode_tokens;           /* computed and kept; a recomputed token counts again */
  uint64_t output_tokens;                           /* sampled and sent */
  double prefill_seconds, decode_seconds;           /* of whole steps; a mixed step's time is split by tokens */
  uint64_t prefix_hit_tokens, preemptions;
  int64_t blocks_total, blocks_used, blocks_cached; /* all groups, without block 0; cached = free but findable */
  int64_t blocks_peak;                              /* most blocks ever used */
  int64_t kv_bytes;
  int32_t running, waiting;
  uint64_t gil_entries, step_gil_entries;
  double gil_wait_seconds, execute_seconds;
  uint64_t replays, eager_steps;                    /* without and with Python of the model; why: in the JSON */
  uint64_t padded_tokens;                           /* rows computed beyond the steps' own */
  uint64_t plan_calls;
  uint64_t overlapped_steps;                        /* planned while the step before ran */
  uint64_t dropped_plans, dropped_rows;             /* planned ahead, for requests that ended or failed meanwhile */
  double plan_seconds, python_seconds;              /* python_seconds: in Python, plans included */
  uint64_t images_encoded;                          /* an image that is encoded again counts again */
  uint64_t encodes_skipped;                         /* images wholly found in the prefix cache, by admission */
  int32_t encoder_rows_total, encoder_rows_used, encoder_rows_peak;
  uint64_t kv_event_steps;                          /* whose layers waited for and told kv_events_of's events */
  uint64_t verify_steps;                            /* of `steps`, those with drafts */
  uint64_t draft_steps, failed_draft_steps;         /* executes of the draft; failed or refused */
  uint64_t drafted_tokens, accepted_tokens;         /* verified, and found right */
  uint64_t drafted_at[TRN_HOST_MAX_DRAFTS];         /* the same by place: first draft, second, ... */
  uint64_t accepted_at[TRN_HOST_MAX_DRAFTS];
  uint64_t draft_replays, draft_eager_steps;        /* as above, of the draft's executor */
  int32_t num_drafts;                               /* the option */
  uint64_t prefix_level_steps;                      /* whose requests' shared blocks the executor was told of */
  uint64_t token_type_steps;                        /* in which a request brought token types */
} trn_host_stats;
TRN_API trn_host_status trn_host_get_stats(trn_host *host, trn_host_stats *stats);

/* The same and the groups, as JSON. Returns the length without the final 0; writes what fits. */
TRN_API size_t trn_host_stats_json(trn_host *host, char *text, size_t size);
/* The report of warm_up, as JSON; the same rules. */
TRN_API size_t trn_host_warm_up_report(trn_host *host, char *text, size_t size);

/* What the executor of another rank counted, all steps so far included; rank is 1 ... tp_size - 1. */
TRN_API trn_host_status trn_host_get_worker_stats(trn_host *host, int32_t rank, trn_executor_stats *stats);

/* Forget every published block; requests that run keep theirs. Returns once it is done. */
TRN_API trn_host_status trn_host_reset_prefix_cache(trn_host *host);

/* Ends every request (cancelled), closes the executor, joins the loop. The handle stays valid: events can still be
 * read, then every call returns TRN_HOST_CLOSED. May be called twice and while other threads wait for events. */
TRN_API void trn_host_shutdown(trn_host *host);
/* Shutdown, then free. No other thread may use the handle any more. NULL is allowed. */
TRN_API void trn_host_close(trn_host *host);

#ifdef __cplusplus
}
#endif
#endif
