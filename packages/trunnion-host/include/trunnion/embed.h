/* Starting Python inside a C or C++ process, for programs that do not bring an interpreter of their own.
 *
 * A program calls `trn_python_start` once on its main thread, creates executors on another thread (or the same one), and
 * calls `trn_python_stop` on the main thread after the last executor is closed. It links libpython; the library does not.
 */
#ifndef TRUNNION_EMBED_H
#define TRUNNION_EMBED_H

#include "trunnion/contract.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Start the interpreter of the environment whose `python` is `program` (a path, kept by the callee as a copy). No signal
 * handlers are installed. The GIL is free when it returns. REFUSED with one line in `error` (may be NULL): Python runs
 * already, `program` is no file, its version is not libpython's, or it cannot import trunnion. */
TRN_API trn_status trn_python_start(const char *program, char *error, size_t error_size);

/* Finalise what `trn_python_start` started; a no-op otherwise. */
TRN_API void trn_python_stop(void);

#ifdef __cplusplus
}
#endif
#endif
