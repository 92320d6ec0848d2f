/* Entry: serves three prompts greedily, prints their tokens and a hash of every step's logits, with faults in between. */
#include "host.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int below(uint64_t *state, int bound) { return (int)(next_random(state) % (uint64_t)bound); }

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fflush(stdout);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

void check(host *h, trn_status status, const char *what) {
  if (status != TRN_OK) fail("%s: status %d: %s", what, (int)status, trn_last_error(h->executor));
}

static void parse(options *o, int argc, char **argv) {
  *o = (options){.model = "null", .hardware = "null", .dtype = "auto", .mode = "run", .chunk = MAX_TOKENS, .seed = 1};
  for (int i = 1; i < argc; ++i) {
    const char *name = argv[i];
    if (strcmp(name, "--own") == 0) {
      o->own = true;
      continue;
    }
    if (strcmp(name, "--device-staging") == 0) {
      o->device = true;
      continue;
    }
    if (strcmp(name, "--levels") == 0) {
      o->levels = true;
      continue;
    }
    if (strcmp(name, "--allocate") == 0) {
      o->allocate = true;
      continue;
    }
    if (i + 1 == argc) fail("option %s needs a value", name);
    const char *value = argv[++i];
    if (strcmp(name, "--model") == 0) o->model = value;
    else if (strcmp(name, "--hardware") == 0) o->hardware = value;
    else if (strcmp(name, "--dtype") == 0) o->dtype = value;
    else if (strcmp(name, "--mode") == 0) o->mode = value;
    else if (strcmp(name, "--count") == 0) o->count = atoi(value);
    else if (strcmp(name, "--chunk") == 0) o->chunk = atoi(value);
    else if (strcmp(name, "--watchdog") == 0) o->watchdog = (unsigned)atoi(value);
    else if (strcmp(name, "--seed") == 0) o->seed = strtoull(value, NULL, 10);
    else fail("unknown option %s", name);
  }
}

static trn_create_options create_options(const options *o) {
  return (trn_create_options){
      .struct_size = sizeof(trn_create_options),
      .abi_version = TRN_ABI_VERSION,
      .contract_version = TRN_CONTRACT_VERSION,
      .model = o->model,
      .hardware = o->hardware,
      .dtype = o->dtype,
      .tp_size = 1,
      .limits = {MAX_TOKENS, MAX_SEQS, MAX_LEN, MAX_ROWS, BLOCK},
      .staging = o->device ? TRN_STAGING_DEVICE : TRN_STAGING_HOST,
  };
}

static void start(host *h) {
  char error[512];
  const trn_create_options create = create_options(&h->options);
  const trn_status status = trn_executor_create(&create, &h->executor, error, sizeof error);
  if (status != TRN_OK) {
    fprintf(stderr, "create: status %d: %s\n", (int)status, error);
    exit(2);
  }
  h->info.struct_size = sizeof h->info;
  check(h, trn_executor_model_info(h->executor, &h->info), "model_info");
  if (h->info.num_groups > MAX_GROUPS) fail("more cache groups than this host can keep");
  for (int g = 0; g < h->info.num_groups; ++g) {
    h->groups[g].struct_size = sizeof h->groups[g];
    check(h, trn_executor_cache_group(h->executor, g, &h->groups[g]), "cache_group");
    h->num_blocks[g] = h->groups[g].kind == TRN_CACHE_RECURRENT ? NUM_STATES : NUM_BLOCKS;
  }
  provide_caches(h);
  check(h, trn_executor_warm_up(h->executor, NULL), "warm_up");
  trn_input_buffers buffers = {.struct_size = sizeof buffers};
  check(h, trn_executor_input_buffers(h->executor, 0, &buffers), "input_buffers");
  h->sampled_ids = buffers.sampled_ids;
  if ((h->sampled_ids != NULL) != h->options.device) fail("sampled_ids belong to device staging");
}

static void print_logits(const host *h, const trn_forward_output *output) {
  const unsigned char *bytes = (const unsigned char *)output->logits;
  const size_t size = (size_t)output->num_logits * (size_t)h->info.vocab_size * sizeof(float);
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  printf("logits %d %016llx\n", h->step, (unsigned long long)hash);
}

/* 0, or the exit code that a status asks for. */
static int serve_step(host *h, offer *o) {
  trn_forward_output output = {.struct_size = sizeof output};
  trn_status status = execute(h, o, &output);
  if (status == TRN_REFUSED) {
    printf("refused %d %s\n", h->step, trn_last_error_field(h->executor));
    status = execute(h, o, &output);
  }
  if (status == TRN_FAILED) {
    printf("failed %d %s\n", h->step, trn_last_error(h->executor));
    forget_step(h);
    return 0;
  }
  if (status == TRN_FATAL) {
    printf("fatal %d %s\n", h->step, trn_last_error(h->executor));
    return 3;
  }
  check(h, status, "execute");
  check(h, trn_executor_wait(h->executor, output.fence), "wait");
  print_logits(h, &output);
  finish_step(h, &output);
  return 0;
}

static void print_end(host *h) {
  trn_executor_stats stats = {.struct_size = sizeof stats};
  check(h, trn_executor_get_stats(h->executor, &stats), "get_stats");
  for (int r = 0; r < NUM_REQUESTS; ++r) {
    printf("tokens %d", r);
    for (int i = 0; i < h->requests[r].num_tokens; ++i) printf(" %d", h->requests[r].tokens[i]);
    printf("\n");
  }
  printf("stats executes=%llu refused=%llu failed=%llu gil_entries=%llu step_gil_entries=%llu copied_tensors=%llu",
         (unsigned long long)stats.executes, (unsigned long long)stats.refused, (unsigned long long)stats.failed,
         (unsigned long long)stats.gil_entries, (unsigned long long)stats.step_gil_entries,
         (unsigned long long)stats.copied_tensors);
  printf(" replays=%llu eager_steps=%llu padded_tokens=%llu plan_calls=%llu plan_ns=%.0f python_ns=%.0f",
         (unsigned long long)stats.replays, (unsigned long long)stats.eager_steps,
         (unsigned long long)stats.padded_tokens, (unsigned long long)stats.plan_calls, stats.plan_seconds * 1e9,
         stats.python_seconds * 1e9);
  printf(" prefix_level_steps=%llu token_type_steps=%llu", (unsigned long long)stats.prefix_level_steps,
         (unsigned long long)stats.token_type_steps);
  printf(" last_step_in_order=%d\n", stats.last_gil_begin_ns <= stats.last_gil_end_ns &&
                                          stats.last_gil_end_ns <= stats.last_python_begin_ns &&
                                          stats.last_python_begin_ns <= stats.last_plan_begin_ns &&
                                          stats.last_plan_begin_ns <= stats.last_plan_end_ns &&
                                          stats.last_plan_end_ns <= stats.last_python_end_ns);
  for (int i = 0; i < (int)stats.num_eager_reasons; ++i) {
    const char *reason = NULL;
    uint64_t steps = 0;
    check(h, trn_executor_eager_reason(h->executor, i, &reason, &steps), "eager_reason");
    printf("eager %llu %s\n", (unsigned long long)steps, reason);
  }
}

static int serve(host *h) {
  static offer step;
  start_requests(h);
  const bool fuzzing = strcmp(h->options.mode, "fuzz") == 0;
  const bool faults = strcmp(h->options.mode, "faults") == 0;
  /* Enough steps for the count to be reached however short the prompts are. */
  const int per_step = fuzzing ? (h->options.count + NEW_TOKENS - 1) / NEW_TOKENS : 0;
  int remaining = h->options.count;
  while (build_step(h, &step)) {
    if (fuzzing && remaining > 0) {
      const int count = remaining < per_step ? remaining : per_step;
      fuzz(h, &step, count);
      remaining -= count;
    }
    if (faults) try_faults(h, &step);
    const int code = serve_step(h, &step);
    if (code != 0) return code;
    ++h->step;
  }
  if (fuzzing && remaining > 0) fail("%d mutants were not tried", remaining);
  print_end(h);
  return 0;
}

int host_main(int argc, char **argv) {
  static host h;
  memset(&h, 0, sizeof h);
  parse(&h.options, argc, argv);
  h.random = h.mutants = h.options.seed;
  /* A rank that does not return is killed. */
  if (h.options.watchdog > 0) alarm(h.options.watchdog);
  if (strcmp(h.options.mode, "create") == 0) {
    try_creation(&h);
    return 0;
  }
  start(&h);
  int code = 0;
  if (strcmp(h.options.mode, "lifetime") == 0) {
    try_lifetime(&h);
  } else {
    code = serve(&h);
  }
  trn_executor_close(h.executor);
  free(h.cache);
  free(h.snapshot);
  printf("closed\n");
  fflush(stdout);
  return code;
}

#ifndef HOST_AS_LIBRARY
int main(int argc, char **argv) { return host_main(argc, argv); }
#endif
