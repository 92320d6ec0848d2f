#include "distributed/model_facts.h"

namespace trunnion::distributed {

ModelFacts::ModelFacts(Executor& executor, const trn_limits& all_limits) : limits(all_limits) {
  const trn_model_info info = executor.model_info();
  num_buffer_sets = info.num_buffer_sets;
  has_csr = (info.required_fields & TRN_FIELD_KV_CSR) != 0;
  has_num_accepted = (info.required_fields & TRN_FIELD_NUM_ACCEPTED) != 0;
  fingerprint = {limits.max_num_tokens,  limits.max_num_seqs, limits.max_model_len,
                 limits.max_logits_rows, limits.block_size,   static_cast<int32_t>(info.required_fields),
                 info.vocab_size,        info.num_groups,     info.num_buffer_sets};
  for (const trn_cache_group_spec& spec : executor.kv_cache_spec()) {
    groups.push_back({spec.kind == TRN_CACHE_RECURRENT, spec.max_blocks_per_seq});
    fingerprint.insert(fingerprint.end(), {spec.kind, spec.num_layers, spec.block_size, spec.max_blocks_per_seq,
                                           spec.window, spec.num_tensors});
  }
}

}  // namespace trunnion::distributed
