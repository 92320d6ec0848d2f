#include "distributed/batch_codec.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>

namespace trunnion::distributed {
namespace {

// A field that is added to a batch must be sent, too.
static_assert(sizeof(trn_group_buffers) == 9 * sizeof(void*));
static_assert(offsetof(trn_input_buffers, groups) == offsetof(trn_input_buffers, input_ids) + 7 * sizeof(void*));
static_assert(offsetof(trn_forward_batch, input_ids) == 12 * sizeof(int32_t));
static_assert(sizeof(trn_input_buffers) == offsetof(trn_input_buffers, token_type_ids) + sizeof(void*));
static_assert(sizeof(trn_forward_batch) == offsetof(trn_forward_batch, token_type_ids) + sizeof(void*));

// The order on the wire.
constexpr std::array kCounts = {
    &trn_forward_batch::buffer_set,    &trn_forward_batch::num_tokens,       &trn_forward_batch::num_reqs,
    &trn_forward_batch::num_logits,    &trn_forward_batch::num_decodes,      &trn_forward_batch::decode_query_len,
    &trn_forward_batch::max_query_len, &trn_forward_batch::max_seq_len,      &trn_forward_batch::lens_are_exact,
    &trn_forward_batch::hidden_source, &trn_forward_batch::num_prefixes,
    &trn_forward_batch::has_token_types,
};

// Blocks of one row of a table: block 0 is never a request's, so the first 0 is the row's end.
size_t row_length(const int32_t* row, int32_t width) { return static_cast<size_t>(std::find(row, row + width, 0) - row); }

void check_count(int32_t value, int32_t limit, const char* name) {
  if (value < 0 || value > limit) {
    throw ProtocolError(std::string(name) + " " + std::to_string(value) + " is outside 0 ... " + std::to_string(limit));
  }
}

}  // namespace

void BatchCodec::encode(const trn_forward_batch& batch, const trn_input_buffers& from, Bytes& payload) const {
  if (batch.kv_events != nullptr) {
    throw Refused("kv_events: the events of rank 0's process mean nothing to the other ranks; give each its own",
                  "kv_events");
  }
  PayloadWriter writer(payload);
  for (const auto count : kCounts) writer.put(batch.*count);
  const auto num_tokens = static_cast<size_t>(batch.num_tokens);
  const auto num_reqs = static_cast<size_t>(batch.num_reqs);
  writer.put_array(from.input_ids, num_tokens);
  writer.put_array(from.positions, num_tokens * facts_.num_position_axes);
  writer.put_array(from.query_start_loc, num_reqs + 1);
  writer.put_array(from.seq_lens, num_reqs);
  writer.put_array(from.logits_indices, static_cast<size_t>(batch.num_logits));
  if (facts_.has_hidden_indices) writer.put_array(from.hidden_indices, num_tokens);
  if (facts_.has_encoder_indices) writer.put_array(from.encoder_indices, num_tokens);
  if (const auto num_prefixes = static_cast<size_t>(batch.num_prefixes); num_prefixes > 0) {
    writer.put_array(from.prefix_indptr, num_prefixes + 1);
    writer.put_array(from.prefix_lens, num_prefixes);
  }
  if (batch.has_token_types != 0) writer.put_array(from.token_type_ids, num_tokens);
  for (size_t g = 0; g < facts_.groups.size(); ++g) {
    const trn_group_buffers& group = from.groups[g];
    if (facts_.groups[g].recurrent) {
      writer.put_array(group.state_indices, num_reqs * static_cast<size_t>(facts_.groups[g].max_blocks_per_seq));
      writer.put_array(group.has_initial_state, num_reqs);
      if (facts_.has_num_accepted) writer.put_array(group.num_accepted, num_reqs);
      continue;
    }
    const int32_t width = facts_.groups[g].max_blocks_per_seq;
    writer.put_array(group.slot_mapping, num_tokens);
    writer.put_array(group.kv_start, num_reqs);
    for (size_t b = 0; b < num_reqs; ++b) {
      const int32_t* row = group.block_table + b * static_cast<size_t>(width);
      writer.put_list(std::span(row, row_length(row, width)));
    }
    if (!facts_.has_csr) continue;
    writer.put_array(group.kv_indptr, num_reqs + 1);
    writer.put_array(group.kv_last_page_len, num_reqs);
    writer.put_list(std::span(group.kv_indices, static_cast<size_t>(group.kv_indptr[num_reqs])));
  }
  encode_images(batch, writer);
}

void BatchCodec::encode_images(const trn_forward_batch& batch, PayloadWriter& writer) const {
  writer.put(batch.num_encoder_items);
  for (int32_t i = 0; i < batch.num_encoder_items; ++i) {
    const trn_encoder_item& item = batch.encoder_items[i];
    writer.put_array(item.grid, std::size(item.grid));
    writer.put(item.first_row);
    writer.put(item.num_rows);
    writer.put(static_cast<int32_t>(item.pixels->shape[0]));
    writer.put_array(static_cast<const float*>(item.pixels->data),
                     static_cast<size_t>(item.pixels->shape[0]) * static_cast<size_t>(facts_.encoder_patch_dim));
  }
}

void BatchCodec::decode_images(PayloadReader& reader, DecodedImages& images, trn_forward_batch& batch) const {
  batch.num_encoder_items = reader.take_count(facts_.limits.max_num_seqs, "images");
  images.items.assign(static_cast<size_t>(batch.num_encoder_items), {});
  images.views.assign(images.items.size(), {});
  for (size_t i = 0; i < images.items.size(); ++i) {
    trn_encoder_item& item = images.items[i];
    DecodedImages::View& view = images.views[i];
    reader.take(item.grid, std::size(item.grid));
    item.first_row = reader.take<int32_t>();
    item.num_rows = reader.take<int32_t>();
    view.shape[0] = reader.take_count(std::numeric_limits<int32_t>::max(), "patches");
    view.shape[1] = facts_.encoder_patch_dim;
    view.pixels.data = const_cast<float*>(reader.view_floats(static_cast<size_t>(view.shape[0] * view.shape[1])));
    view.pixels.device = {kDLCPU, 0};
    view.pixels.ndim = 2;
    view.pixels.dtype = {kDLFloat, 32, 1};
    view.pixels.shape = view.shape;
    item.pixels = &view.pixels;
  }
  batch.encoder_items = images.items.data();
}

trn_forward_batch BatchCodec::decode(std::span<const std::byte> payload,
                                     std::span<const trn_input_buffers> sets, DecodedImages& images) const {
  PayloadReader reader(payload);
  trn_forward_batch batch = Executor::batch();
  for (const auto count : kCounts) batch.*count = reader.take<int32_t>();
  check_count(batch.buffer_set, static_cast<int32_t>(sets.size()) - 1, "buffer_set");
  check_count(batch.num_tokens, facts_.limits.max_num_tokens, "num_tokens");
  check_count(batch.num_reqs, facts_.limits.max_num_seqs, "num_reqs");
  check_count(batch.num_logits, facts_.limits.max_logits_rows, "num_logits");
  check_count(batch.num_prefixes, facts_.accepts_prefix_levels ? batch.num_reqs : 0, "num_prefixes");
  check_count(batch.has_token_types, facts_.num_token_types > 0 ? 1 : 0, "has_token_types");
  const trn_input_buffers& to = sets[static_cast<size_t>(batch.buffer_set)];
  const auto num_tokens = static_cast<size_t>(batch.num_tokens);
  const auto num_reqs = static_cast<size_t>(batch.num_reqs);
  reader.take(to.input_ids, num_tokens);
  reader.take(to.positions, num_tokens * facts_.num_position_axes);
  reader.take(to.query_start_loc, num_reqs + 1);
  reader.take(to.seq_lens, num_reqs);
  reader.take(to.logits_indices, static_cast<size_t>(batch.num_logits));
  if (facts_.has_hidden_indices) reader.take(to.hidden_indices, num_tokens);
  if (facts_.has_encoder_indices) reader.take(to.encoder_indices, num_tokens);
  if (const auto num_prefixes = static_cast<size_t>(batch.num_prefixes); num_prefixes > 0) {
    reader.take(to.prefix_indptr, num_prefixes + 1);
    reader.take(to.prefix_lens, num_prefixes);
  }
  if (batch.has_token_types != 0) reader.take(to.token_type_ids, num_tokens);
  for (size_t g = 0; g < facts_.groups.size(); ++g) decode_group(reader, facts_.groups[g], to.groups[g], batch);
  decode_images(reader, images, batch);
  reader.expect_end();
  return batch;
}

void BatchCodec::decode_group(PayloadReader& reader, const GroupFacts& group, const trn_group_buffers& to,
                              const trn_forward_batch& batch) const {
  const auto num_reqs = static_cast<size_t>(batch.num_reqs);
  if (group.recurrent) {
    reader.take(to.state_indices, num_reqs * static_cast<size_t>(group.max_blocks_per_seq));
    reader.take(to.has_initial_state, num_reqs);
    if (facts_.has_num_accepted) reader.take(to.num_accepted, num_reqs);
    return;
  }
  const int32_t width = group.max_blocks_per_seq;
  reader.take(to.slot_mapping, static_cast<size_t>(batch.num_tokens));
  reader.take(to.kv_start, num_reqs);
  for (size_t b = 0; b < num_reqs; ++b) {
    int32_t* row = to.block_table + b * static_cast<size_t>(width);
    const int32_t length = reader.take_count(width, "a row of the block table");
    reader.take(row, static_cast<size_t>(length));
    std::fill(row + length, row + width, 0);
  }
  if (!facts_.has_csr) return;
  reader.take(to.kv_indptr, num_reqs + 1);
  reader.take(to.kv_last_page_len, num_reqs);
  const int32_t num_indices = reader.take_count(int64_t{facts_.limits.max_num_seqs} * width, "kv_indices");
  reader.take(to.kv_indices, static_cast<size_t>(num_indices));
}

}  // namespace trunnion::distributed
