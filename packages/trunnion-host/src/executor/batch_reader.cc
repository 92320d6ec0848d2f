// Counts and tensors of a batch, checked without looking at the tensors' values.
#include "batch_reader.h"

#include <algorithm>
#include <cstddef>

#include "status.h"

namespace trunnion::executor {
namespace {

constexpr std::size_t kNoGroup = static_cast<std::size_t>(-1);

enum class Rows { kTokens, kPositions, kReqs, kReqsPlusOne, kLogits, kPrefixes, kPrefixesPlusOne, kTable, kCsr };

}  // namespace

struct BatchField {
  const char* name;
  const DLTensor* trn_forward_batch::*tensor;
  std::int32_t* trn_input_buffers::*lent;
  const std::int32_t* BatchView::*view;
  Rows rows;
};

namespace {

struct GroupField {
  const char* name;
  const DLTensor* trn_group_batch::*tensor;
  std::int32_t* trn_group_buffers::*lent;
  const std::int32_t* GroupView::*view;
  Rows rows;
};

#define TRN_BATCH_FIELD(name, rows) \
  {#name, &trn_forward_batch::name, &trn_input_buffers::name, &BatchView::name, Rows::rows}
#define TRN_GROUP_FIELD(name, rows) \
  {#name, &trn_group_batch::name, &trn_group_buffers::name, &GroupView::name, Rows::rows}

constexpr BatchField kBatchFields[] = {
    TRN_BATCH_FIELD(input_ids, kTokens),
    TRN_BATCH_FIELD(positions, kPositions),
    TRN_BATCH_FIELD(query_start_loc, kReqsPlusOne),
    TRN_BATCH_FIELD(seq_lens, kReqs),
    TRN_BATCH_FIELD(logits_indices, kLogits),
    TRN_BATCH_FIELD(hidden_indices, kTokens),
    TRN_BATCH_FIELD(encoder_indices, kTokens),
};

constexpr BatchField kPrefixFields[] = {
    TRN_BATCH_FIELD(prefix_indptr, kPrefixesPlusOne),
    TRN_BATCH_FIELD(prefix_lens, kPrefixes),
};

constexpr BatchField kTokenTypeField = TRN_BATCH_FIELD(token_type_ids, kTokens);

constexpr GroupField kGroupFields[] = {
    TRN_GROUP_FIELD(slot_mapping, kTokens),
    TRN_GROUP_FIELD(block_table, kTable),
    TRN_GROUP_FIELD(kv_start, kReqs),
    TRN_GROUP_FIELD(kv_indptr, kReqsPlusOne),
    TRN_GROUP_FIELD(kv_indices, kCsr),
    TRN_GROUP_FIELD(kv_last_page_len, kReqs),
    TRN_GROUP_FIELD(state_indices, kTable),
    TRN_GROUP_FIELD(has_initial_state, kReqs),
    TRN_GROUP_FIELD(num_accepted, kReqs),
};

#undef TRN_BATCH_FIELD
#undef TRN_GROUP_FIELD

std::int64_t rows_of(Rows rows, const Counts& counts) {
  switch (rows) {
    case Rows::kTokens:
    case Rows::kPositions:
      return counts.num_tokens;
    case Rows::kReqsPlusOne:
      return counts.num_reqs + 1;
    case Rows::kLogits:
      return counts.num_logits;
    case Rows::kPrefixes:
      return counts.num_prefixes;
    case Rows::kPrefixesPlusOne:
      return counts.num_prefixes + 1;
    case Rows::kCsr:
      return 0;
    case Rows::kReqs:
    case Rows::kTable:
      break;
  }
  return counts.num_reqs;
}

/// `name()` is the field's name; called only to refuse.
template <typename Name>
const std::int32_t* checked_data(const DLTensor& tensor, std::int64_t rows, std::int64_t width, const Name& name) {
  if (tensor.device.device_type != kDLCPU) {
    refuse(name(), "lies on DLPack device type ", tensor.device.device_type, ", expected ", kDLCPU, " (host memory)");
  }
  if (tensor.dtype.code != kDLInt || tensor.dtype.bits != 32 || tensor.dtype.lanes != 1) {
    refuse(name(), "has DLPack dtype (code ", int{tensor.dtype.code}, ", bits ", int{tensor.dtype.bits}, ", lanes ",
           tensor.dtype.lanes, "), expected int32 (0, 32, 1)");
  }
  const std::int32_t ndim = width > 0 ? 2 : 1;
  if (tensor.ndim != ndim) refuse(name(), "has ", tensor.ndim, " dimensions, expected ", ndim);
  if (tensor.shape == nullptr) refuse(name(), "has no shape");
  if (tensor.shape[0] < rows) refuse(name(), "has ", tensor.shape[0], " rows, the step needs ", rows);
  if (width > 0 && tensor.shape[1] != width) refuse(name(), "has ", tensor.shape[1], " columns, expected ", width);
  if (tensor.strides != nullptr) {
    const bool rows_apart = tensor.shape[0] > 1 && tensor.strides[0] != (width > 0 ? width : 1);
    if (rows_apart || (width > 1 && tensor.strides[1] != 1)) refuse(name(), "is not contiguous");
  }
  if (tensor.data == nullptr) {
    if (rows > 0) refuse(name(), "has no data");
    return nullptr;
  }
  const char* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(std::int32_t) != 0) refuse(name(), "is not aligned to 4 bytes");
  return reinterpret_cast<const std::int32_t*>(data);
}

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) refuse(name, value, " is outside ", low, " ... ", high);
}

}  // namespace

std::vector<std::string> cache_layers(const Description& description) {
  std::vector<std::string> layers;
  for (const CacheGroup& group : description.groups) {
    layers.insert(layers.end(), group.layers.begin(), group.layers.end());
  }
  return layers;
}

std::string group_field(std::size_t group, const char* name) { return concat("groups[", group, "].", name); }

BatchReader::BatchReader(const Description& description, const trn_limits& limits)
    : description_(description), limits_(limits) {
  view_.groups.resize(description.groups.size());
  copies_.reserve(std::size(kBatchFields) + std::size(kPrefixFields) + 1 +
                  std::size(kGroupFields) * description.groups.size());
}

void BatchReader::read_counts(const trn_forward_batch& batch) {
  check_range("num_tokens", batch.num_tokens, 0, limits_.max_num_tokens);
  check_range("num_reqs", batch.num_reqs, 0, limits_.max_num_seqs);
  check_range("num_logits", batch.num_logits, 0, limits_.max_logits_rows);
  check_range("num_decodes", batch.num_decodes, 0, batch.num_reqs);
  check_range("decode_query_len", batch.decode_query_len, 1, limits_.max_decode_query_len);
  check_range("max_query_len", batch.max_query_len, 0, batch.num_tokens);
  check_range("max_seq_len", batch.max_seq_len, 0, limits_.max_model_len);
  check_range("lens_are_exact", batch.lens_are_exact, description_.accepts_upper_bound_lens ? 0 : 1, 1);
  check_range("hidden_source", batch.hidden_source, 0, description_.has(TRN_FIELD_HIDDEN_INDICES) ? 1 : 0);
  const bool says_prefixes = batch.struct_size >= offsetof(trn_forward_batch, has_token_types);
  const std::int32_t num_prefixes = says_prefixes ? batch.num_prefixes : 0;
  if (num_prefixes != 0 && !description_.accepts_prefix_levels) {
    refuse("num_prefixes", num_prefixes, ", expected 0: this executor does not accept prefix levels");
  }
  check_range("num_prefixes", num_prefixes, 0, batch.num_reqs);
  const std::int32_t has_token_types = batch.struct_size >= sizeof batch ? batch.has_token_types : 0;
  if (has_token_types != 0 && description_.num_token_types == 0) {
    refuse("has_token_types", has_token_types, ", expected 0: this model does not take token types");
  }
  check_range("has_token_types", has_token_types, 0, 1);
  view_.counts = {batch.num_tokens,       batch.num_reqs,      batch.num_logits,  batch.num_decodes,
                  batch.decode_query_len, batch.max_query_len, batch.max_seq_len, batch.lens_are_exact,
                  batch.hidden_source,    batch.kv_events != nullptr, num_prefixes,
                  has_token_types};
}

const BatchView& BatchReader::read(const trn_forward_batch& batch, const BufferSet& set) {
  copies_.clear();
  read_counts(batch);
  for (const BatchField& field : kBatchFields) read_field(field, batch, set);
  if (view_.counts.num_prefixes > 0) {
    for (const BatchField& field : kPrefixFields) read_field(field, batch, set);
  }
  if (view_.counts.has_token_types != 0) read_field(kTokenTypeField, batch, set);
  read_groups(batch, set);
  return view_;
}

void BatchReader::read_field(const BatchField& field, const trn_forward_batch& batch, const BufferSet& set) {
  std::int32_t* lent = set.inputs.*field.lent;
  view_.*field.view = lent;
  const DLTensor* tensor = batch.*field.tensor;
  if (tensor == nullptr) return;
  if (lent == nullptr) refuse(field.name, "this model does not take the field");
  const std::int64_t axes = description_.num_position_axes;
  const std::int64_t width = field.rows == Rows::kPositions && axes > 1 ? axes : 0;
  const std::int64_t rows = rows_of(field.rows, view_.counts);
  const std::int32_t* data = checked_data(*tensor, rows, width, [&] { return std::string(field.name); });
  if (data == lent || rows == 0) return;
  view_.*field.view = data;
  copies_.push_back({lent, data, rows * std::max<std::int64_t>(1, width), kNoGroup});
}

void BatchReader::read_groups(const trn_forward_batch& batch, const BufferSet& set) {
  const auto num_groups = static_cast<std::int32_t>(description_.groups.size());
  if (batch.groups != nullptr && batch.num_groups != num_groups) {
    refuse("num_groups", batch.num_groups, " is not the model's ", num_groups, " cache groups");
  }
  for (std::size_t g = 0; g < description_.groups.size(); ++g) {
    const CacheGroup& group = description_.groups[g];
    for (const GroupField& field : kGroupFields) {
      std::int32_t* lent = set.groups[g].*field.lent;
      view_.groups[g].*field.view = lent;
      if (field.rows == Rows::kCsr) {
        view_.groups[g].kv_indices_size = std::int64_t{limits_.max_num_seqs} * group.max_blocks_per_seq;
      }
      const DLTensor* tensor = batch.groups == nullptr ? nullptr : batch.groups[g].*field.tensor;
      if (tensor == nullptr) continue;
      const auto name = [&] { return group_field(g, field.name); };
      if (lent == nullptr) refuse(name(), "this cache group does not take the field");
      const std::int64_t width = field.rows == Rows::kTable ? group.max_blocks_per_seq : 0;
      const std::int64_t rows = rows_of(field.rows, view_.counts);
      const std::int32_t* data = checked_data(*tensor, rows, width, name);
      const bool csr = field.rows == Rows::kCsr;
      if (csr) view_.groups[g].kv_indices_size = data == nullptr ? 0 : tensor->shape[0];
      if (data == lent || (rows == 0 && !csr)) continue;
      view_.groups[g].*field.view = data;
      copies_.push_back({lent, data, rows * (width > 0 ? width : 1), csr ? g : kNoGroup});
    }
  }
}

std::size_t BatchReader::adopt() {
  // Gather, then scatter: a host may offer a tensor that lies in the lent buffer of another field.
  scratch_.clear();
  for (Copy& copy : copies_) {
    if (copy.csr_group != kNoGroup) copy.count = view_.groups[copy.csr_group].kv_indptr[view_.counts.num_reqs];
    scratch_.insert(scratch_.end(), copy.from, copy.from + copy.count);
  }
  const std::int32_t* from = scratch_.data();
  for (const Copy& copy : copies_) {
    std::copy_n(from, copy.count, copy.to);
    from += copy.count;
  }
  return copies_.size();
}

}  // namespace trunnion::executor
