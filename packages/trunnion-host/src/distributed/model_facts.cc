#include "distributed/model_facts.h"

namespace trunnion::distributed {

ModelFacts read_facts(Executor& executor, const trn_limits& limits) {
  const trn_model_info info = executor.model_info();
  ModelFacts facts;
  facts.limits = limits;
  facts.num_buffer_sets = info.num_buffer_sets;
  facts.has_csr = (info.required_fields & TRN_FIELD_KV_CSR) != 0;
  facts.has_num_accepted = (info.required_fields & TRN_FIELD_NUM_ACCEPTED) != 0;
  facts.has_hidden_indices = (info.required_fields & TRN_FIELD_HIDDEN_INDICES) != 0;
  facts.has_encoder_indices = (info.required_fields & TRN_FIELD_ENCODER_INDICES) != 0;
  facts.accepts_prefix_levels = info.accepts_prefix_levels != 0;
  facts.num_token_types = info.num_token_types;
  facts.num_position_axes = static_cast<size_t>(info.num_position_axes);
  facts.encoder_patch_dim = info.encoder_patch_dim;
  facts.fingerprint = {limits.max_num_tokens,       limits.max_num_seqs,     limits.max_model_len,
                       limits.max_logits_rows,      limits.block_size,       limits.max_decode_query_len,
                       limits.max_encoder_rows,     info.vocab_size,         info.num_groups,
                       info.num_buffer_sets,        info.output_kind,        info.output_width,
                       info.num_position_axes,      info.encoder_patch_dim,  static_cast<int32_t>(info.required_fields),
                       info.accepts_prefix_levels,  info.needs_whole_prompts, info.num_token_types};
  for (const trn_cache_group_spec& spec : executor.kv_cache_spec()) {
    facts.groups.push_back({spec.kind == TRN_CACHE_RECURRENT, spec.max_blocks_per_seq});
    facts.fingerprint.insert(facts.fingerprint.end(), {spec.kind, spec.num_layers, spec.block_size,
                                                       spec.max_blocks_per_seq, spec.window, spec.num_tensors});
  }
  return facts;
}

}  // namespace trunnion::distributed
