// Caches of (token, position) pairs and rolling hashes, and the output rows made of them.
#include "null_model.h"

#include <algorithm>

#include "null_hash.h"

namespace trunnion::executor {
namespace {

CacheGroup attention_group(const char* suffix, const NullOptions& options, const trn_limits& limits, bool window) {
  CacheGroup group;
  group.kind = window ? TRN_CACHE_WINDOW : TRN_CACHE_FULL;
  group.block_size = limits.block_size;
  std::int64_t longest = limits.max_model_len;
  if (window) {
    group.window = static_cast<std::int32_t>(options.window);
    longest = std::min(longest, options.window - 1 + limits.max_num_tokens + limits.block_size);
  }
  group.max_blocks_per_seq = static_cast<std::int32_t>((longest + limits.block_size - 1) / limits.block_size);
  CacheTensor kv;
  kv.name = "kv";
  kv.shape = {limits.block_size, 2};
  kv.dtype = {kDLInt, 32, 1};
  kv.bytes_per_block = std::int64_t{limits.block_size} * 2 * 4;
  group.tensors.push_back(kv);
  for (std::int64_t i = 0; i < options.layers; ++i) group.layers.push_back("layers." + std::to_string(i) + suffix);
  return group;
}

CacheGroup recurrent_group(const NullOptions& options, const trn_limits& limits) {
  CacheGroup group;
  group.kind = TRN_CACHE_RECURRENT;
  group.max_blocks_per_seq = limits.max_decode_query_len;
  CacheTensor state;
  state.name = "state";
  state.shape = {1};
  state.dtype = {kDLInt, 64, 1};
  state.bytes_per_block = 8;
  group.tensors.push_back(state);
  for (std::int64_t i = 0; i < options.layers; ++i) group.layers.push_back("layers." + std::to_string(i) + ".recurrent");
  return group;
}

}  // namespace

NullModel::NullModel(const NullOptions& options, const trn_limits& limits, bool keeps_hidden)
    : reads_csr_(options.csr != 0), keeps_hidden_(keeps_hidden), images_(limits.max_encoder_rows) {
  description_.vocab_size = static_cast<std::int32_t>(options.vocab);
  description_.output_kind = options.pooled > 0 ? TRN_OUTPUT_POOLED : TRN_OUTPUT_LOGITS;
  description_.output_width = static_cast<std::int32_t>(options.pooled > 0 ? options.pooled : options.vocab);
  description_.required_fields = reads_csr_ ? std::uint32_t{TRN_FIELD_KV_CSR} : 0u;
  description_.accepts_prefix_levels = options.levels != 0;
  description_.needs_whole_prompts = options.whole != 0;
  description_.num_position_axes = static_cast<std::int32_t>(options.axes);
  description_.num_token_types = static_cast<std::int32_t>(options.types);
  if (options.images != 0) {
    description_.encoder_patch_dim = kNullPatchDim;
    if (limits.max_encoder_rows > 0) description_.required_fields |= TRN_FIELD_ENCODER_INDICES;
  }
  description_.groups.push_back(attention_group(".full", options, limits, false));
  if (options.window > 0) description_.groups.push_back(attention_group(".window", options, limits, true));
  if (options.recurrent == 0) return;
  description_.groups.push_back(recurrent_group(options, limits));
  if (limits.max_decode_query_len > 1) description_.required_fields |= TRN_FIELD_NUM_ACCEPTED;
}

void NullModel::allocate(const std::vector<std::int32_t>& num_blocks) {
  std::vector<std::vector<void*>> data;
  for (std::size_t g = 0; g < description_.groups.size(); ++g) {
    const CacheGroup& group = description_.groups[g];
    const auto words = static_cast<std::size_t>(group.tensors[0].bytes_per_block * num_blocks[g] / 8);
    std::vector<void*> layers;
    for (std::size_t layer = 0; layer < group.layers.size(); ++layer) {
      owned_.push_back(std::make_unique<std::int64_t[]>(words));
      // All ones: no token has id -1 or position -1.
      std::fill_n(owned_.back().get(), words, std::int64_t{-1});
      layers.push_back(owned_.back().get());
    }
    data.push_back(std::move(layers));
  }
  bind(std::move(data));
}

std::int32_t NullModel::token(const BufferSet& set, const Counts& counts, std::int64_t index) const {
  const std::int32_t* rows = set.inputs.encoder_indices;
  const std::int32_t id = rows == nullptr || rows[index] < 0 ? set.inputs.input_ids[index] : images_.token(rows[index]);
  const std::int32_t type = counts.has_token_types == 0 ? 0 : set.inputs.token_type_ids[index];
  return type == 0 ? id : static_cast<std::int32_t>(mix(static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(type)) >> 33);
}

std::int32_t NullModel::position(const BufferSet& set, std::int64_t index) const {
  const std::int32_t axes = description_.num_position_axes;
  if (axes == 1) return set.inputs.positions[index];
  std::uint64_t hash = kNullSeed;
  for (std::int32_t i = 0; i < axes; ++i) {
    hash = mix(hash, static_cast<std::uint32_t>(set.inputs.positions[index * axes + i]));
  }
  return static_cast<std::int32_t>(hash >> 32);
}

void NullModel::write_kv(std::size_t group, void* cache, const BufferSet& set, const Counts& counts) {
  const std::int32_t* slots = set.groups[group].slot_mapping;
  auto* pairs = static_cast<std::int32_t*>(cache);
  for (std::int64_t t = 0; t < counts.num_tokens; ++t) {
    if (slots[t] < 0) continue;
    pairs[std::int64_t{slots[t]} * 2] = token(set, counts, t);
    pairs[std::int64_t{slots[t]} * 2 + 1] = position(set, t);
  }
}

std::uint64_t NullModel::attend(std::size_t index, const BufferSet& set, std::int64_t request,
                                std::int32_t position) const {
  const CacheGroup& group = description_.groups[index];
  const trn_group_buffers& lent = set.groups[index];
  const std::int32_t start = lent.kv_start[request];
  const std::int32_t* row = reads_csr_ ? lent.kv_indices + lent.kv_indptr[request]
                                       : lent.block_table + request * group.max_blocks_per_seq;
  const std::int32_t first = group.window > 0 ? std::max(0, position - group.window + 1) : 0;
  std::uint64_t hash = mix(kNullSeed, index);
  for (const void* cache : caches_[index]) {
    const auto* pairs = static_cast<const std::int32_t*>(cache);
    for (std::int32_t j = first; j <= position; ++j) {
      const std::int32_t column = (j - start) / group.block_size;
      const std::int64_t slot = std::int64_t{row[column]} * group.block_size + (j - start) % group.block_size;
      hash = mix(hash, static_cast<std::uint32_t>(pairs[slot * 2]));
      hash = mix(hash, static_cast<std::uint32_t>(pairs[slot * 2 + 1]));
    }
  }
  return hash;
}

void NullModel::roll_state(std::size_t index, void* cache, const BufferSet& set, const Counts& counts,
                           std::vector<std::uint64_t>& hashes) {
  const trn_group_buffers& lent = set.groups[index];
  auto* states = static_cast<std::uint64_t*>(cache);
  for (std::int64_t b = 0; b < counts.num_reqs; ++b) {
    const std::int32_t* columns = lent.state_indices + b * description_.groups[index].max_blocks_per_seq;
    const std::int32_t start = lent.num_accepted == nullptr ? 1 : lent.num_accepted[b];
    std::uint64_t state = lent.has_initial_state[b] ? states[columns[start - 1]] : kNullSeed;
    const std::int32_t begin = set.inputs.query_start_loc[b];
    for (std::int32_t t = begin; t < set.inputs.query_start_loc[b + 1]; ++t) {
      state = mix(state, static_cast<std::uint32_t>(token(set, counts, t)));
      state = mix(state, static_cast<std::uint32_t>(position(set, t)));
      hashes[static_cast<std::size_t>(t)] = mix(hashes[static_cast<std::size_t>(t)], state);
      if (b < counts.num_decodes) states[columns[t - begin]] = state;
    }
    if (b >= counts.num_decodes) states[columns[0]] = state;
  }
}

void NullModel::fill_row(float* row, std::int32_t width, std::uint64_t hash) {
  for (std::int32_t id = 0; id < width; ++id) {
    // 24 bits fit a float exactly.
    const std::uint64_t bits = mix(hash, static_cast<std::uint64_t>(id)) >> 40;
    row[id] = static_cast<float>(bits) / 1048576.0f - 8.0f;
  }
}

std::int64_t NullModel::request_of(std::int32_t row, const BufferSet& set, const Counts& counts) {
  const std::int32_t* bounds = set.inputs.query_start_loc;
  return std::upper_bound(bounds, bounds + counts.num_reqs + 1, row) - bounds - 1;
}

std::vector<std::uint64_t> NullModel::update_caches(const BufferSet& set, const Counts& counts, KvSlot* events) {
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(counts.num_tokens), kNullSeed);
  for (std::size_t g = 0; g < description_.groups.size(); ++g) {
    for (void* cache : caches_[g]) {
      if (events != nullptr && events->wait() != SlotResult::kOk) {
        throw StatusError(TRN_FAILED, "kv_events", "kv_events: a kv_ready was signalled with an error or did not come in time");
      }
      if (description_.groups[g].recurrent()) {
        roll_state(g, cache, set, counts, hashes);
      } else {
        write_kv(g, cache, set, counts);
      }
      if (events != nullptr) (events++)->signal();
    }
  }
  return hashes;
}

void NullModel::forward(const BufferSet& set, const Counts& counts, KvSlot* events) {
  const std::vector<std::uint64_t> hashes = update_caches(set, counts, events);
  float* rows = description_.output_kind == TRN_OUTPUT_POOLED ? set.inputs.pooled : set.inputs.logits;
  for (std::int64_t n = 0; n < counts.num_logits; ++n) {
    const std::int32_t token = set.inputs.logits_indices[n];
    const std::int64_t request = request_of(token, set, counts);
    const std::int32_t* bounds = set.inputs.query_start_loc;
    // Its index in the request, which positions on several axes do not say.
    const std::int32_t place = description_.num_position_axes == 1
                                   ? set.inputs.positions[token]
                                   : set.inputs.seq_lens[request] - (bounds[request + 1] - token);
    std::uint64_t hash = hashes[static_cast<std::size_t>(token)];
    for (std::size_t g = 0; g < description_.groups.size(); ++g) {
      if (!description_.groups[g].recurrent()) hash = mix(hash, attend(g, set, request, place));
    }
    fill_row(rows + n * description_.output_width, description_.output_width, hash);
  }
  if (!keeps_hidden_) return;
  hidden_.clear();
  for (std::int32_t t = 0; t < counts.num_tokens; ++t) {
    hidden_.push_back(cached(set, request_of(t, set, counts), set.inputs.positions[t]));
  }
}

std::vector<std::int32_t> NullModel::cached(const BufferSet& set, std::int64_t request, std::int32_t position) const {
  const CacheGroup& group = description_.groups[0];
  const auto* pairs = static_cast<const std::int32_t*>(caches_[0][0]);
  const std::int32_t* row = set.groups[0].block_table + request * group.max_blocks_per_seq;
  std::vector<std::int32_t> tokens;
  for (std::int32_t j = 0; j <= position; ++j) {
    tokens.push_back(pairs[(std::int64_t{row[j / group.block_size]} * group.block_size + j % group.block_size) * 2]);
  }
  return tokens;
}

std::uint64_t NullModel::hash_of(const std::vector<std::int32_t>& tokens) const {
  const auto last = static_cast<std::int32_t>(tokens.size()) - 1;
  const auto add = [&](std::uint64_t hash, std::int32_t position) {
    hash = mix(hash, static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(position)]));
    return mix(hash, static_cast<std::uint32_t>(position));
  };
  std::uint64_t all = kNullSeed;
  for (const CacheGroup& group : description_.groups) {
    if (!group.recurrent()) continue;
    std::uint64_t state = kNullSeed;
    for (std::int32_t j = 0; j <= last; ++j) state = add(state, j);
    for (std::size_t layer = 0; layer < group.layers.size(); ++layer) all = mix(all, state);
  }
  for (std::size_t g = 0; g < description_.groups.size(); ++g) {
    const CacheGroup& group = description_.groups[g];
    if (group.recurrent()) continue;
    std::uint64_t hash = mix(kNullSeed, g);
    for (std::size_t layer = 0; layer < group.layers.size(); ++layer) {
      for (std::int32_t j = group.window > 0 ? std::max(0, last - group.window + 1) : 0; j <= last; ++j) hash = add(hash, j);
    }
    all = mix(all, hash);
  }
  return all;
}

void NullModel::scribble(const BufferSet& set, const Counts& counts) {
  for (std::size_t g = 0; g < description_.groups.size(); ++g) {
    const trn_group_buffers& lent = set.groups[g];
    for (void* cache : caches_[g]) {
      if (description_.groups[g].recurrent()) {
        const std::int64_t states = counts.num_reqs * description_.groups[g].max_blocks_per_seq;
        for (std::int64_t i = 0; i < states; ++i) static_cast<std::int64_t*>(cache)[lent.state_indices[i]] = -2;
        continue;
      }
      for (std::int64_t t = 0; t < counts.num_tokens; ++t) {
        if (lent.slot_mapping[t] >= 0) static_cast<std::int32_t*>(cache)[std::int64_t{lent.slot_mapping[t]} * 2] = -2;
      }
    }
  }
}

}  // namespace trunnion::executor
