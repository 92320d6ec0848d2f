/* The C host as a program with Python inside: `embedded PYTHON [options of host]`; the main thread is parked in C. */
#include <pthread.h>
#include <stdlib.h>

#include "host.h"
#include "trunnion/embed.h"

typedef struct job {
  int argc;
  char **argv;
  int code;
} job;

static void *serve(void *argument) {
  job *work = argument;
  work->code = host_main(work->argc, work->argv);
  return NULL;
}

int main(int argc, char **argv) {
  char error[1024];
  if (argc < 2) fail("usage: %s PYTHON [options of host]", argv[0]);
  if (trn_python_start(argv[1], error, sizeof error) != TRN_OK) fail("python: %s", error);
  if (trn_python_start(argv[1], error, sizeof error) != TRN_REFUSED) fail("Python was started twice");
  job work = {argc - 1, argv + 1, 0};
  pthread_t thread;
  if (pthread_create(&thread, NULL, serve, &work) != 0) fail("pthread_create");
  pthread_join(thread, NULL);
  trn_python_stop();
  return work.code;
}
