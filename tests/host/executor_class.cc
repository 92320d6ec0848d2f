// The C++17 class of executor.hpp on the null executor: one exception type per status, fields, moves and closing.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trunnion/executor.hpp"

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

trn_create_options options(const char* model) {
  trn_create_options options = trunnion::Executor::default_options();
  options.model = model;
  options.hardware = "null";
  options.limits = {8, 2, 32, 2, 4, 1, 0};
  return options;
}

/// One request of one token at position 0, in block 1 of every group.
trn_forward_batch fill(trunnion::Executor& executor) {
  const trn_input_buffers lent = executor.input_buffers(0);
  lent.input_ids[0] = 3;
  lent.positions[0] = 0;
  lent.query_start_loc[0] = 0;
  lent.query_start_loc[1] = 1;
  lent.seq_lens[0] = 1;
  lent.logits_indices[0] = 0;
  for (int g = 0; g < lent.num_groups; ++g) {
    lent.groups[g].slot_mapping[0] = 4;
    lent.groups[g].block_table[0] = 1;
    lent.groups[g].kv_start[0] = 0;
  }
  trn_forward_batch batch = trunnion::Executor::batch();
  batch.num_tokens = batch.num_reqs = batch.num_logits = batch.max_query_len = batch.max_seq_len = 1;
  return batch;
}

template <typename Exception>
std::string thrown(trunnion::Executor& executor, const trn_forward_batch& batch) {
  try {
    executor.execute(batch);
  } catch (const Exception& error) {
    return error.field() + "|" + error.what();
  }
  return "nothing";
}

}  // namespace

int main() {
  try {
    trunnion::Executor unknown(options("null:colour=1"));
    expect(false, "an unknown option is refused");
  } catch (const trunnion::Refused& error) {
    expect(std::string(error.what()).find("'colour'") != std::string::npos, "the error names the option");
  }
  trunnion::Executor first(options("null:fail_at=2,fatal_at=3"));
  trunnion::Executor executor(std::move(first));
  expect(first.handle() == nullptr, "a moved-from executor is empty");
  expect(executor.kv_cache_spec().size() == 2, "two cache groups");
  executor.allocate_kv_cache({8, 8});
  expect(executor.warm_up().front() == '{', "the report is JSON");
  trn_forward_batch batch = fill(executor);
  const trn_forward_output output = executor.execute(batch);
  executor.wait(output.fence);
  expect(output.num_logits == 1, "one row");
  batch.num_tokens = 9;
  expect(thrown<trunnion::Refused>(executor, batch).rfind("num_tokens|num_tokens: 9 ", 0) == 0, "Refused names the field");
  batch.num_tokens = 1;
  expect(thrown<trunnion::Failed>(executor, batch) == "|failed at step 2 as asked", "Failed");
  expect(thrown<trunnion::Fatal>(executor, batch) == "|fatal at step 3 as asked", "Fatal");
  expect(thrown<trunnion::Fatal>(executor, batch) == "|fatal at step 3 as asked", "Fatal for good");
  executor.close();
  executor.close();
  std::puts("ok");
  return 0;
}
