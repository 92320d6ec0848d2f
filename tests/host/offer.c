/* A step's arrays as the contract wants them: lent buffers filled, or the host's own memory as DLTensors. */
#include <stddef.h>
#include <string.h>

#include "host.h"

typedef struct field_rule {
  const char *name;
  size_t offset;   /* of the array in batch_arrays or group_arrays */
  size_t pointer;  /* of the DLTensor pointer in trn_forward_batch or trn_group_batch */
  size_t lent;     /* of the pointer in trn_input_buffers or trn_group_buffers */
  int capacity;
  char rows; /* t tokens, y tokens if they have types, r requests, b requests + 1, n logits rows, p prefixes, q prefixes + 1, m table, c CSR */
} field_rule;

#define BATCH_RULE(field, capacity, rows) \
  {#field, offsetof(batch_arrays, field), offsetof(trn_forward_batch, field), offsetof(trn_input_buffers, field), \
   capacity, rows}
#define GROUP_RULE(field, capacity, rows) \
  {#field, offsetof(group_arrays, field), offsetof(trn_group_batch, field), offsetof(trn_group_buffers, field), \
   capacity, rows}

static const field_rule batch_rules[BATCH_FIELDS] = {
    BATCH_RULE(input_ids, MAX_TOKENS, 't'),       BATCH_RULE(positions, MAX_TOKENS, 't'),
    BATCH_RULE(query_start_loc, MAX_SEQS + 1, 'b'), BATCH_RULE(seq_lens, MAX_SEQS, 'r'),
    BATCH_RULE(logits_indices, MAX_ROWS, 'n'),    BATCH_RULE(prefix_indptr, MAX_SEQS + 1, 'q'),
    BATCH_RULE(prefix_lens, MAX_SEQS, 'p'),       BATCH_RULE(token_type_ids, MAX_TOKENS, 'y'),
};

static const field_rule group_rules[GROUP_FIELDS] = {
    GROUP_RULE(slot_mapping, MAX_TOKENS, 't'),
    GROUP_RULE(block_table, MAX_SEQS *MAX_COLUMNS, 'm'),
    GROUP_RULE(kv_start, MAX_SEQS, 'r'),
    GROUP_RULE(kv_indptr, MAX_SEQS + 1, 'b'),
    GROUP_RULE(kv_indices, MAX_SEQS *MAX_COLUMNS, 'c'),
    GROUP_RULE(kv_last_page_len, MAX_SEQS, 'r'),
    GROUP_RULE(state_indices, MAX_SEQS, 'm'),
    GROUP_RULE(has_initial_state, MAX_SEQS, 'r'),
    GROUP_RULE(num_accepted, MAX_SEQS, 'r'),
};

static int rows_of(const offer *o, char rows, int group) {
  switch (rows) {
    case 't': return o->batch.num_tokens;
    case 'y': return o->batch.has_token_types ? o->batch.num_tokens : 0;
    case 'b': return o->batch.num_reqs + 1;
    case 'n': return o->batch.num_logits;
    case 'p': return o->batch.num_prefixes;
    case 'q': return o->batch.num_prefixes + 1;
    case 'c': return o->arrays.groups[group].kv_indptr[o->batch.num_reqs];
    default: return o->batch.num_reqs;
  }
}

static bool group_has(const host *h, int group, const char *name) {
  const bool recurrent = h->groups[group].kind == TRN_CACHE_RECURRENT;
  const bool csr = strcmp(name, "kv_indptr") == 0 || strcmp(name, "kv_indices") == 0 || strcmp(name, "kv_last_page_len") == 0;
  if (csr) return !recurrent && (h->info.required_fields & TRN_FIELD_KV_CSR);
  if (strcmp(name, "num_accepted") == 0) return recurrent && (h->info.required_fields & TRN_FIELD_NUM_ACCEPTED);
  const bool state = strcmp(name, "state_indices") == 0 || strcmp(name, "has_initial_state") == 0;
  return state == recurrent;
}

static void add_field(const host *h, offer *o, const field_rule *rule, int group) {
  offered *field = &o->fields[o->num_fields++];
  *field = (offered){.group = group, .capacity = rule->capacity};
  if (group < 0) {
    snprintf(field->name, sizeof field->name, "%s", rule->name);
  } else {
    snprintf(field->name, sizeof field->name, "groups[%d].%s", group, rule->name);
  }
  const bool table = rule->rows == 'm';
  const int64_t width = table ? h->groups[group].max_blocks_per_seq : 1;
  field->tensor = (DLTensor){.device = {kDLCPU, 0}, .ndim = table ? 2 : 1, .dtype = {kDLInt, 32, 1}};
  field->shape[0] = rows_of(o, rule->rows, group);
  field->shape[1] = width;
  field->strides[0] = table ? width : 1;
  field->strides[1] = 1;
}

void name_fields(const host *h, offer *o) {
  o->num_fields = 0;
  for (int i = 0; i < BATCH_FIELDS; ++i) {
    const bool level = batch_rules[i].rows == 'p' || batch_rules[i].rows == 'q';
    if (level && !h->info.accepts_prefix_levels) continue;
    if (batch_rules[i].rows == 'y' && h->info.num_token_types == 0) continue;
    add_field(h, o, &batch_rules[i], -1);
  }
  for (int g = 0; g < h->info.num_groups; ++g) {
    for (int i = 0; i < GROUP_FIELDS; ++i) {
      if (group_has(h, g, group_rules[i].name)) add_field(h, o, &group_rules[i], g);
    }
  }
}

static const field_rule *rule_of(const offered *field) {
  const field_rule *rules = field->group < 0 ? batch_rules : group_rules;
  const char *name = field->group < 0 ? field->name : strchr(field->name, '.') + 1;
  while (strcmp(rules->name, name) != 0) ++rules;
  return rules;
}

void bind_offer(const host *h, offer *o) {
  memset(o->groups, 0, sizeof o->groups);
  for (int i = 0; i < o->num_fields; ++i) {
    offered *field = &o->fields[i];
    const field_rule *rule = rule_of(field);
    char *arrays = field->group < 0 ? (char *)&o->arrays : (char *)&o->arrays.groups[field->group];
    char *owner = field->group < 0 ? (char *)&o->batch : (char *)&o->groups[field->group];
    field->data = (int32_t *)(void *)(arrays + rule->offset);
    field->tensor.data = field->data;
    field->tensor.shape = field->shape;
    field->tensor.strides = field->strides;
    const DLTensor *tensor = &field->tensor;
    memcpy(owner + rule->pointer, &tensor, sizeof tensor);
  }
  o->batch.groups = o->groups;
  o->batch.num_groups = h->info.num_groups;
}

void copy_offer(const host *h, offer *to, const offer *from) {
  *to = *from;
  bind_offer(h, to);
}

offered *find_field(offer *o, const char *name) {
  for (int i = 0; i < o->num_fields; ++i) {
    if (strcmp(o->fields[i].name, name) == 0) return &o->fields[i];
  }
  return NULL;
}

void fill_lent(host *h, const offer *o, int32_t buffer_set) {
  trn_input_buffers buffers = {.struct_size = sizeof buffers};
  check(h, trn_executor_input_buffers(h->executor, buffer_set, &buffers), "input_buffers");
  for (int i = 0; i < o->num_fields; ++i) {
    const offered *field = &o->fields[i];
    const char *owner = field->group < 0 ? (const char *)&buffers : (const char *)&buffers.groups[field->group];
    int32_t *lent;
    memcpy(&lent, owner + rule_of(field)->lent, sizeof lent);
    if (lent == NULL) fail("%s is not lent", field->name);
    memcpy(lent, field->data, (size_t)(field->shape[0] * field->shape[1]) * sizeof(int32_t));
  }
}

trn_status execute(host *h, offer *o, trn_forward_output *output) {
  if (h->options.own) return trn_executor_execute(h->executor, &o->batch, output);
  fill_lent(h, o, o->batch.buffer_set);
  trn_forward_batch batch = o->batch;
  batch.input_ids = batch.positions = batch.query_start_loc = batch.seq_lens = batch.logits_indices = NULL;
  batch.prefix_indptr = batch.prefix_lens = batch.token_type_ids = NULL;
  batch.groups = NULL;
  batch.num_groups = 0;
  return trn_executor_execute(h->executor, &batch, output);
}
