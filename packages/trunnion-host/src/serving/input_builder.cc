#include "serving/input_builder.h"

#include <algorithm>

namespace trunnion::serving {

trn_forward_batch InputBuilder::build(const std::vector<BatchEntry>& entries, int32_t buffer_set,
                                      const trn_input_buffers& buffers) const {
  trn_forward_batch batch{};
  batch.struct_size = sizeof batch;
  batch.buffer_set = buffer_set;
  batch.decode_query_len = 1;
  batch.lens_are_exact = 1;
  const auto brings_types = [](const BatchEntry& entry) { return entry.request->types.given(); };
  batch.has_token_types = takes_token_types_ && std::any_of(entries.begin(), entries.end(), brings_types);
  buffers.query_start_loc[0] = 0;
  for (const BatchEntry& entry : entries) fill_rows(entry, buffers, batch);
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].recurrent() ? fill_recurrent(g, entries, buffers.groups[g])
                           : fill_attention(g, entries, buffers.groups[g]);
  }
  return batch;
}

void InputBuilder::fill_rows(const BatchEntry& entry, const trn_input_buffers& buffers,
                             trn_forward_batch& batch) const {
  const bool wants_encoder = (required_fields_ & TRN_FIELD_ENCODER_INDICES) != 0;
  const bool wants_hidden = (required_fields_ & TRN_FIELD_HIDDEN_INDICES) != 0;
  const int32_t first_row = batch.num_tokens;
  for (int32_t i = 0; i < entry.num_tokens; ++i, ++batch.num_tokens) {
    const int32_t position = entry.begin + i;
    buffers.input_ids[batch.num_tokens] = i < entry.num_real ? entry.request->token_at(position + place_.shift) : 0;
    const RequestImages& images = entry.request->images;
    images.positions.write(position, buffers.positions + batch.num_tokens * num_position_axes_);
    if (wants_encoder) buffers.encoder_indices[batch.num_tokens] = images.encoder_row(position);
    if (batch.has_token_types) buffers.token_type_ids[batch.num_tokens] = entry.request->types.at(position);
    if (wants_hidden) buffers.hidden_indices[batch.num_tokens] = entry.source_row + i;
  }
  const int32_t seq_len = entry.begin + entry.num_tokens;
  buffers.seq_lens[batch.num_reqs++] = seq_len;
  buffers.query_start_loc[batch.num_reqs] = batch.num_tokens;
  for (int32_t n = entry.num_logits(); n > 0; --n) {
    buffers.logits_indices[batch.num_logits++] = first_row + entry.num_real - n;
  }
  if (entry.is_decode) {
    ++batch.num_decodes;
    batch.decode_query_len = entry.num_tokens;
  }
  batch.max_query_len = std::max(batch.max_query_len, entry.num_tokens);
  batch.max_seq_len = std::max(batch.max_seq_len, seq_len);
}

void InputBuilder::fill_attention(size_t group, const std::vector<BatchEntry>& entries,
                                  const trn_group_buffers& buffers) const {
  const int32_t block_size = groups_[group].block_size;
  const int32_t width = groups_[group].max_blocks_per_seq;
  const bool wants_csr = (required_fields_ & TRN_FIELD_KV_CSR) != 0;
  int32_t* slot = buffers.slot_mapping;
  int32_t* row = buffers.block_table;
  int32_t num_indices = 0;
  if (wants_csr) buffers.kv_indptr[0] = 0;
  for (size_t b = 0; b < entries.size(); ++b, row += width) {
    const GroupBlocks& held = entries[b].request->blocks.groups[place_.first_group + group];
    const int32_t kv_start = held.num_dropped * block_size;
    const int32_t seq_len = entries[b].begin + entries[b].num_tokens;
    for (int32_t i = 0; i < entries[b].num_tokens; ++i) {
      const int32_t offset = entries[b].begin + i - kv_start;
      *slot++ = i < entries[b].num_real ? held.blocks[offset / block_size] * block_size + offset % block_size : -1;
    }
    buffers.kv_start[b] = kv_start;
    // Blocks that are held ahead of the step are not in its table.
    const int32_t num_live = (seq_len - kv_start + block_size - 1) / block_size;
    std::fill(std::copy_n(held.blocks.begin(), num_live, row), row + width, 0);
    if (!wants_csr) continue;
    std::copy_n(held.blocks.begin(), num_live, buffers.kv_indices + num_indices);
    num_indices += num_live;
    buffers.kv_indptr[b + 1] = num_indices;
    buffers.kv_last_page_len[b] = (seq_len - kv_start - 1) % block_size + 1;
  }
}

void InputBuilder::fill_recurrent(size_t group, const std::vector<BatchEntry>& entries,
                                  const trn_group_buffers& buffers) const {
  const bool wants_accepted = (required_fields_ & TRN_FIELD_NUM_ACCEPTED) != 0;
  for (size_t b = 0; b < entries.size(); ++b) {
    const Request& request = *entries[b].request;
    const std::vector<int32_t>& states = request.blocks.groups[place_.first_group + group].blocks;
    std::copy(states.begin(), states.end(), buffers.state_indices + b * states.size());
    buffers.has_initial_state[b] = entries[b].begin > 0;
    if (wants_accepted) buffers.num_accepted[b] = request.num_accepted;
  }
}

}  // namespace trunnion::serving
