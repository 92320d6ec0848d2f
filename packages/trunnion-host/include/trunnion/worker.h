/* A rank above 0 of a model cut over several processes: one process, one executor, one interpreter.
 *
 * Rank 0 is the serving host (serving.h). The embedder starts the worker processes, connects each to the host by a stream
 * socket (a socketpair, or an accepted connection), gives the host its ends in `worker_sockets`, and each worker its own.
 * Rank 0 sends every batch to all workers before it executes it itself, so that their collectives meet.
 */
#ifndef TRUNNION_WORKER_H
#define TRUNNION_WORKER_H

#include "trunnion/contract.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_worker_options {
  uint32_t struct_size;
  int32_t socket;              /* connected to rank 0; taken over, and closed when the call returns */
  trn_create_options executor; /* as rank 0's, but for tp_rank and device_index; num_threads is each rank's own */
} trn_worker_options;

/* Create the executor, do what rank 0 says, close. On the calling thread, which Python may be started on; it returns when
 * rank 0 closes. On anything but TRN_OK `error` (may be NULL) holds one line, which rank 0 has been sent too: exit the
 * process then. When rank 0 goes away without a word, the process ends at once by _exit(70). */
TRN_API trn_status trn_worker_run(const trn_worker_options *options, char *error, size_t error_size);

#ifdef __cplusplus
}
#endif
#endif
