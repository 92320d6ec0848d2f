// Every rule of docs/contract.md about the values of a batch.
#include "validate.h"

#include <algorithm>

#include "prefix_levels.h"
#include "status.h"

namespace trunnion::executor {
namespace {

std::int64_t num_live_blocks(const BatchView& batch, const GroupView& view, const CacheGroup& group,
                             std::int64_t request) {
  const std::int64_t tokens = std::int64_t{batch.seq_lens[request]} - view.kv_start[request];
  return (tokens + group.block_size - 1) / group.block_size;
}

[[noreturn]] void refuse_twice(std::size_t group, std::int64_t request, std::int32_t block) {
  refuse(group_field(group, "block_table"), "request ", request, " holds block ", block, " twice");
}

}  // namespace

Validator::Validator(const Description& description, const trn_limits& limits, bool samples)
    : description_(description),
      limits_(limits),
      least_id_(samples ? -limits.max_logits_rows : 0),
      marks_(description.groups.size()) {}

void Validator::set_num_blocks(const std::vector<std::int32_t>& num_blocks) {
  num_blocks_ = num_blocks;
  for (std::size_t g = 0; g < marks_.size(); ++g) {
    marks_[g].in_row.assign(static_cast<std::size_t>(num_blocks[g]), Mark{});
    marks_[g].written.assign(static_cast<std::size_t>(num_blocks[g]), Mark{});
    const auto rows = static_cast<std::size_t>(limits_.max_num_seqs);
    marks_[g].known.assign(rows * static_cast<std::size_t>(description_.groups[g].max_blocks_per_seq), 0);
    marks_[g].num_known.assign(rows, 0);
  }
}

void Validator::check(const BatchView& batch) {
  ++step_;
  check_requests(batch);
  check_tokens(batch);
  check_encoder_indices(batch);
  check_token_types(batch);
  check_logits_indices(batch);
  for (std::size_t g = 0; g < description_.groups.size(); ++g) {
    if (description_.groups[g].recurrent()) {
      check_recurrent(batch, g);
    } else {
      check_attention(batch, g);
    }
  }
  check_prefix_levels(batch, description_, limits_);
}

void Validator::check_requests(const BatchView& batch) const {
  const Counts& counts = batch.counts;
  const std::int32_t* bounds = batch.query_start_loc;
  if (bounds[0] != 0) refuse("query_start_loc", "starts with ", bounds[0], ", expected 0");
  // First the bounds alone: whatever follows uses them as indices.
  for (std::int64_t b = 0; b < counts.num_reqs; ++b) {
    if (bounds[b + 1] <= bounds[b] || bounds[b + 1] > counts.num_tokens) {
      refuse("query_start_loc", "entry ", b + 1, " is ", bounds[b + 1], ", expected ", std::int64_t{bounds[b]} + 1,
             " ... ", counts.num_tokens, ": every request has a token");
    }
  }
  if (bounds[counts.num_reqs] != counts.num_tokens) {
    refuse("query_start_loc", "ends with ", bounds[counts.num_reqs], ", expected num_tokens ", counts.num_tokens);
  }
  std::int64_t max_query_len = 0;
  std::int64_t max_seq_len = 0;
  for (std::int64_t b = 0; b < counts.num_reqs; ++b) {
    const std::int32_t tokens = query_len(batch, b);
    if (b < counts.num_decodes && tokens != counts.decode_query_len) {
      refuse("query_start_loc", "request ", b, " of num_decodes ", counts.num_decodes, " has ", tokens,
             " tokens, expected decode_query_len ", counts.decode_query_len);
    }
    if (batch.seq_lens[b] < tokens || batch.seq_lens[b] > limits_.max_model_len) {
      refuse("seq_lens", "request ", b, " has ", batch.seq_lens[b], ", expected ", tokens, " (its tokens of this step) ... ",
             limits_.max_model_len, " (max_model_len)");
    }
    if (description_.needs_whole_prompts && batch.seq_lens[b] != tokens) {
      refuse("seq_lens", "request ", b, " has ", batch.seq_lens[b], ", expected ", tokens,
             " (its tokens of this step): this model needs whole prompts");
    }
    max_query_len = std::max<std::int64_t>(max_query_len, tokens);
    max_seq_len = std::max<std::int64_t>(max_seq_len, batch.seq_lens[b]);
  }
  if (counts.max_query_len != max_query_len) {
    refuse("max_query_len", counts.max_query_len, " is not the longest query of the step, ", max_query_len);
  }
  if (counts.max_seq_len != max_seq_len) {
    refuse("max_seq_len", counts.max_seq_len, " is not the longest of seq_lens, ", max_seq_len);
  }
}

void Validator::check_tokens(const BatchView& batch) const {
  for (std::int64_t t = 0; t < batch.counts.num_tokens; ++t) {
    if (batch.input_ids[t] < least_id_ || batch.input_ids[t] >= description_.vocab_size) {
      refuse("input_ids", "token ", t, " is ", batch.input_ids[t], ", expected ", least_id_, " ... ",
             description_.vocab_size - 1);
    }
  }
  if (description_.num_position_axes > 1) return check_spans(batch);
  for (std::int64_t b = 0; b < batch.counts.num_reqs; ++b) {
    const std::int32_t begin = batch.query_start_loc[b];
    // Lengths that are upper bounds say only that positions cannot lie further on.
    std::int32_t expected = num_computed(batch, b);
    if (!batch.counts.lens_are_exact) {
      if (batch.positions[begin] < 0 || batch.positions[begin] > expected) {
        refuse("positions", "token ", begin, " is ", batch.positions[begin], ", expected 0 ... ", expected);
      }
      expected = batch.positions[begin];
    }
    for (std::int32_t t = begin; t < batch.query_start_loc[b + 1]; ++t, ++expected) {
      if (batch.positions[t] != expected) {
        refuse("positions", "token ", t, " of request ", b, " is ", batch.positions[t], ", expected ", expected,
               " by seq_lens and query_start_loc");
      }
    }
  }
}

/// An image advances the axes unevenly, so that no more can be said than how far positions reach.
void Validator::check_spans(const BatchView& batch) const {
  const std::int64_t axes = description_.num_position_axes;
  for (std::int64_t i = 0; i < batch.counts.num_tokens * axes; ++i) {
    if (batch.positions[i] >= 0 && batch.positions[i] < limits_.max_model_len) continue;
    refuse("positions", "token ", i / axes, " has ", batch.positions[i], " on axis ", i % axes, ", expected 0 ... ",
           limits_.max_model_len - 1);
  }
}

void Validator::check_encoder_indices(const BatchView& batch) const {
  if (batch.encoder_indices == nullptr) return;
  for (std::int64_t t = 0; t < batch.counts.num_tokens; ++t) {
    if (batch.encoder_indices[t] >= -1 && batch.encoder_indices[t] < limits_.max_encoder_rows) continue;
    refuse("encoder_indices", "token ", t, " is ", batch.encoder_indices[t], ", expected -1 (text) ... ",
           limits_.max_encoder_rows - 1);
  }
}

void Validator::check_token_types(const BatchView& batch) const {
  if (batch.counts.has_token_types == 0) return;
  for (std::int64_t b = 0; b < batch.counts.num_reqs; ++b) {
    for (std::int32_t t = batch.query_start_loc[b]; t < batch.query_start_loc[b + 1]; ++t) {
      if (batch.token_type_ids[t] >= 0 && batch.token_type_ids[t] < description_.num_token_types) continue;
      refuse("token_type_ids", "token ", t, " of request ", b, " is ", batch.token_type_ids[t], ", expected 0 ... ",
             description_.num_token_types - 1, " (num_token_types ", description_.num_token_types, ")");
    }
  }
}

void Validator::check_logits_indices(const BatchView& batch) const {
  for (std::int64_t n = 0; n < batch.counts.num_logits; ++n) {
    if (batch.logits_indices[n] < 0 || batch.logits_indices[n] >= batch.counts.num_tokens) {
      refuse("logits_indices", "row ", n, " is ", batch.logits_indices[n], ", expected 0 ... below num_tokens ",
             batch.counts.num_tokens);
    }
  }
}

void Validator::check_attention(const BatchView& batch, std::size_t index) {
  const CacheGroup& group = description_.groups[index];
  const GroupView& view = batch.groups[index];
  for (std::int64_t b = 0; b < batch.counts.num_reqs; ++b) {
    const std::int32_t start = view.kv_start[b];
    const std::int32_t visible =
        group.window > 0 ? std::max(0, first_place(batch, b) - group.window + 1) : 0;
    if (start < 0 || start > visible || start % group.block_size != 0) {
      refuse(group_field(index, "kv_start"), "request ", b, " has ", start, ", expected a multiple of ", group.block_size,
             " in 0 ... ", visible, " (the first token its step sees)");
    }
    const std::int64_t live = check_row(batch, index, b);
    const std::int32_t* row = view.block_table + b * group.max_blocks_per_seq;
    // Summed without a branch first: a search for the stray entry only when there is one.
    std::uint32_t any = 0;
    for (std::int64_t j = live; j < group.max_blocks_per_seq; ++j) any |= static_cast<std::uint32_t>(row[j]);
    if (any != 0) {
      const auto* stray = std::find_if(row + live, row + group.max_blocks_per_seq, [](auto id) { return id != 0; });
      refuse(group_field(index, "block_table"), "request ", b, " column ", stray - row, " is ", *stray,
             ", expected 0 past its ", live, " blocks");
    }
    check_slots(batch, index, b);
  }
  if (view.kv_indptr != nullptr) check_csr(batch, index);
}

std::int64_t Validator::check_row(const BatchView& batch, std::size_t index, std::int64_t request) {
  const CacheGroup& group = description_.groups[index];
  const std::int64_t live = num_live_blocks(batch, batch.groups[index], group, request);
  if (live > group.max_blocks_per_seq) {
    refuse(group_field(index, "kv_start"), "request ", request, " keeps ", live, " blocks, the table has ",
           group.max_blocks_per_seq, " columns: drop blocks before the window");
  }
  GroupMarks& marks = marks_[index];
  const std::int32_t* row = batch.groups[index].block_table + request * group.max_blocks_per_seq;
  std::int32_t* known = marks.known.data() + request * group.max_blocks_per_seq;
  std::int64_t& num_known = marks.num_known[static_cast<std::size_t>(request)];
  const std::int64_t num_same = std::min(live, num_known);
  // A row that refuses is not known, nor is what it replaced.
  num_known = 0;
  if (num_same > 0 && std::equal(row, row + num_same, known)) {
    // The row of a request that runs on: most steps add nothing to it, the others a block or two.
    for (std::int64_t j = num_same; j < live; ++j) {
      check_block(index, request, j, row[j]);
      if (std::find(row, row + j, row[j]) != row + j) refuse_twice(index, request, row[j]);
    }
    std::copy(row + num_same, row + live, known + num_same);
  } else {
    for (std::int64_t j = 0; j < live; ++j) {
      check_block(index, request, j, row[j]);
      Mark& mark = marks.in_row[static_cast<std::size_t>(row[j])];
      if (mark.step == step_ && mark.request == request) refuse_twice(index, request, row[j]);
      mark = {step_, request};
    }
    std::copy(row, row + live, known);
  }
  num_known = live;
  return live;
}

void Validator::check_block(std::size_t index, std::int64_t request, std::int64_t column, std::int32_t block) const {
  if (block >= 1 && block < num_blocks_[index]) return;
  refuse(group_field(index, "block_table"), "request ", request, " column ", column, " is ", block, ", expected 1 ... ",
         num_blocks_[index] - 1);
}

void Validator::check_slots(const BatchView& batch, std::size_t index, std::int64_t request) {
  const CacheGroup& group = description_.groups[index];
  const GroupView& view = batch.groups[index];
  const std::int32_t* row = view.block_table + request * group.max_blocks_per_seq;
  const std::int32_t begin = batch.query_start_loc[request];
  const std::int32_t first = first_place(batch, request) - view.kv_start[request];
  for (std::int32_t t = begin; t < batch.query_start_loc[request + 1]; ++t) {
    const std::int32_t slot = view.slot_mapping[t];
    if (slot == -1) continue;
    const std::int32_t offset = first + t - begin;
    const std::int32_t block = row[offset / group.block_size];
    const std::int64_t expected = std::int64_t{block} * group.block_size + offset % group.block_size;
    if (slot != expected) {
      refuse(group_field(index, "slot_mapping"), "token ", t, " of request ", request, " has slot ", slot, ", expected ",
             expected, " by block_table and positions, or -1");
    }
    Mark& mark = marks_[index].written[static_cast<std::size_t>(block)];
    if (mark.step == step_ && mark.request != request) {
      refuse(group_field(index, "slot_mapping"), "requests ", mark.request, " and ", request, " both write to block ",
             block);
    }
    mark = {step_, request};
  }
}

void Validator::check_csr(const BatchView& batch, std::size_t index) const {
  const CacheGroup& group = description_.groups[index];
  const GroupView& view = batch.groups[index];
  std::int64_t end = 0;
  for (std::int64_t b = 0; b <= batch.counts.num_reqs; ++b) {
    if (view.kv_indptr[b] != end) {
      refuse(group_field(index, "kv_indptr"), "entry ", b, " is ", view.kv_indptr[b], ", expected ", end);
    }
    if (b == batch.counts.num_reqs) break;
    const std::int64_t live = num_live_blocks(batch, view, group, b);
    if (end + live > view.kv_indices_size) {
      refuse(group_field(index, "kv_indices"), "has ", view.kv_indices_size, " rows, the step needs ", end + live,
             " or more");
    }
    const std::int32_t* row = view.block_table + b * group.max_blocks_per_seq;
    if (!std::equal(row, row + live, view.kv_indices + end)) {
      const std::int64_t j = std::mismatch(row, row + live, view.kv_indices + end).first - row;
      refuse(group_field(index, "kv_indices"), "entry ", end + j, " is ", view.kv_indices[end + j], ", expected ", row[j],
             " as in block_table");
    }
    end += live;
    const std::int64_t last = batch.seq_lens[b] - view.kv_start[b] - (live - 1) * group.block_size;
    if (view.kv_last_page_len[b] != last) {
      refuse(group_field(index, "kv_last_page_len"), "request ", b, " has ", view.kv_last_page_len[b], ", expected ", last);
    }
  }
}

void Validator::check_recurrent(const BatchView& batch, std::size_t index) {
  const GroupView& view = batch.groups[index];
  for (std::int64_t b = 0; b < batch.counts.num_reqs; ++b) {
    check_states(view, index, b);
    const std::int32_t initial = first_place(batch, b) > 0 ? 1 : 0;
    if (view.has_initial_state[b] != initial) {
      refuse(group_field(index, "has_initial_state"), "request ", b, " has ", view.has_initial_state[b], ", expected ",
             initial, " by the position of its first token");
    }
    if (view.num_accepted == nullptr || initial == 0) continue;
    if (view.num_accepted[b] < 1 || view.num_accepted[b] > limits_.max_decode_query_len) {
      refuse(group_field(index, "num_accepted"), "request ", b, " has ", view.num_accepted[b], ", expected 1 ... ",
             limits_.max_decode_query_len, " (max_decode_query_len)");
    }
  }
}

void Validator::check_states(const GroupView& view, std::size_t index, std::int64_t request) {
  const std::int64_t width = description_.groups[index].max_blocks_per_seq;
  for (std::int64_t i = 0; i < width; ++i) {
    const std::int32_t state = view.state_indices[request * width + i];
    if (state < 1 || state >= num_blocks_[index]) {
      refuse(group_field(index, "state_indices"), "request ", request, " column ", i, " is ", state, ", expected 1 ... ",
             num_blocks_[index] - 1);
    }
    Mark& mark = marks_[index].written[static_cast<std::size_t>(state)];
    if (mark.step == step_) {
      refuse(group_field(index, "state_indices"), "requests ", mark.request, " and ", request, " share state ", state);
    }
    mark = {step_, request};
  }
}

}  // namespace trunnion::executor
