#include "distributed/model_facts.h"

namespace trunnion::distributed {

ModelFacts read_facts(Executor& executor, const trn_limits& limits) {
  const trn_model_info info = executor.model_info();
  ModelFacts facts;
  facts.limits = limits;
  facts.num_buffer_sets = info.num_buffer_sets;
  facts.has_csr = (info.required_fields & TRN_FIELD_KV_CSR) != 0;
  facts.has_num_accepted = (info.required_fields & TRN_FIELD_NUM_ACCEPTED) != 0;
  facts.fingerprint = {limits.max_num_tokens,  limits.max_num_seqs, limits.max_model_len,
                       limits.max_logits_rows, limits.block_size,   static_cast<int32_t>(info.required_fields),
                       info.vocab_size,        info.num_groups,     info.num_buffer_sets};
  for (const trn_cache_group_spec& spec : executor.kv_cache_spec()) {
    facts.groups.push_back({spec.kind == TRN_CACHE_RECURRENT, spec.max_blocks_per_seq});
    facts.fingerprint.insert(facts.fingerprint.end(), {spec.kind, spec.num_layers, spec.block_size,
                                                       spec.max_blocks_per_seq, spec.window, spec.num_tensors});
  }
  return facts;
}

}  // namespace trunnion::distributed
