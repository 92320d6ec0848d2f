#include "fake_executor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <sstream>
#include <thread>

namespace {

constexpr int32_t kRuined = -7;

struct Breach : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
void expect(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << parts);
  throw Breach(text.str());
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  hash ^= hash >> 29;
  hash *= 0xBF58476D1CE4E5B9;
  return hash ^ (hash >> 32);
}

std::mutex breach_mutex;
std::string first_breach;
int32_t widest_step = 0, most_rows = 0;
std::vector<std::vector<fake::Level>> all_levels;

void note(const std::string& text) {
  const std::lock_guard lock(breach_mutex);
  if (first_breach.empty()) first_breach = text;
}

struct GroupState {
  fake::Group spec;
  int32_t width = 0;
  int32_t num_blocks = 0;
  std::vector<int32_t> tokens;   // per slot
  std::vector<uint64_t> places;  // per slot: where positions say the token lies
  std::vector<uint64_t> states;  // recurrent
  std::vector<int32_t> slot_mapping, block_table, kv_start, kv_indptr, kv_indices, kv_last_page_len, state_indices,
      has_initial_state, num_accepted;
  trn_cache_tensor_spec tensor{};
  const char* layer = "layers.0";
  int64_t shape[1] = {1};
};

}  // namespace

struct trn_executor {
  int32_t width() const { return config.pooled_width > 0 ? config.pooled_width : config.vocab_size; }

  fake::Config config;
  trn_limits limits{};
  // Of a draft its target, else null.
  const trn_executor* target = nullptr;
  // Per row of the last step: the tokens that it has seen, its own the last. Empty for placeholders.
  std::vector<std::vector<int32_t>> hidden;
  std::thread::id thread = std::this_thread::get_id();
  std::vector<GroupState> groups;
  struct Lent {
    std::vector<std::vector<int32_t>> memory;
    std::vector<trn_group_buffers> groups;
  };
  Lent sets[2];
  std::vector<int32_t> input_ids, positions, query_start_loc, seq_lens, logits_indices, encoder_indices,
      hidden_indices, prefix_indptr, prefix_lens, token_type_ids;
  bool has_token_types = false;
  std::vector<int32_t> rows;  // the encoder pool
  std::vector<float> logits;
  trn_executor_stats stats{};
  uint64_t step = 0;
  std::string error;

  explicit trn_executor(const trn_create_options& options)
      : config(fake::config()), limits(options.limits), target(options.share_with) {
    if (target != nullptr) {
      config.groups = {{}};
      config.required_fields |= TRN_FIELD_HIDDEN_INDICES;
      config.fault = config.draft_fault;
    }
    limits.max_decode_query_len = std::max(1, limits.max_decode_query_len);
    const auto recurrent = [](const fake::Group& group) { return group.kind == TRN_CACHE_RECURRENT; };
    if (limits.max_decode_query_len > 1 && std::any_of(config.groups.begin(), config.groups.end(), recurrent)) {
      config.required_fields |= TRN_FIELD_NUM_ACCEPTED;
    }
    const auto [tokens, seqs] = std::pair<size_t, size_t>(limits.max_num_tokens, limits.max_num_seqs);
    const int32_t bs = limits.block_size;
    input_ids.resize(tokens);
    positions.resize(tokens * size_t(config.num_position_axes));
    encoder_indices.resize(tokens);
    rows.resize(size_t(limits.max_encoder_rows), kRuined);
    hidden_indices.resize(tokens);
    query_start_loc.resize(seqs + 1);
    seq_lens.resize(seqs);
    prefix_indptr.resize(seqs + 1);
    prefix_lens.resize(seqs);
    token_type_ids.resize(tokens);
    logits_indices.resize(limits.max_logits_rows);
    logits.resize(size_t(limits.max_logits_rows) * size_t(width()));
    for (const fake::Group& spec : config.groups) {
      GroupState& group = groups.emplace_back();
      group.spec = spec;
      const int32_t widest = spec.window == 0 ? limits.max_model_len : spec.window + bs + limits.max_num_tokens;
      const int32_t longest = std::min(limits.max_model_len, widest);
      group.width = spec.max_blocks_per_seq > 0 ? spec.max_blocks_per_seq : (longest + bs - 1) / bs;
      if (spec.kind == TRN_CACHE_RECURRENT) group.width = limits.max_decode_query_len;
      for (auto* per_seq : {&group.kv_start, &group.kv_last_page_len, &group.has_initial_state, &group.num_accepted}) {
        per_seq->resize(seqs);
      }
      group.state_indices.resize(seqs * size_t(limits.max_decode_query_len));
      group.slot_mapping.resize(tokens);
      group.kv_indptr.resize(seqs + 1);
      group.block_table.resize(seqs * group.width);
      group.kv_indices.resize(seqs * group.width);
    }
    for (Lent& set : sets) {
      for (const auto* field : fields()) set.memory.emplace_back(field->size(), kRuined);
      lend(set);
    }
  }

  // Everything a host fills, in one order. Steps are computed from here; hosts write to the copies in `sets`.
  std::vector<std::vector<int32_t>*> fields() {
    std::vector<std::vector<int32_t>*> all{&input_ids, &positions, &query_start_loc, &seq_lens, &logits_indices,
                                           &encoder_indices, &hidden_indices};
    for (GroupState& group : groups) {
      all.insert(all.end(), {&group.slot_mapping, &group.block_table, &group.kv_start, &group.kv_indptr,
                             &group.kv_indices, &group.kv_last_page_len, &group.state_indices,
                             &group.has_initial_state, &group.num_accepted});
    }
    all.insert(all.end(), {&prefix_indptr, &prefix_lens, &token_type_ids});
    return all;
  }

  void lend(Lent& set) {
    const auto at = [&](size_t index) { return set.memory[index].data(); };
    for (size_t g = 0; g < groups.size(); ++g) {
      const size_t first = 7 + 9 * g;
      trn_group_buffers lent{};
      if (groups[g].spec.kind == TRN_CACHE_RECURRENT) {
        lent.state_indices = at(first + 6);
        lent.has_initial_state = at(first + 7);
        if ((config.required_fields & TRN_FIELD_NUM_ACCEPTED) != 0) lent.num_accepted = at(first + 8);
      } else {
        lent.slot_mapping = at(first);
        lent.block_table = at(first + 1);
        lent.kv_start = at(first + 2);
        if ((config.required_fields & TRN_FIELD_KV_CSR) != 0) {
          lent.kv_indptr = at(first + 3);
          lent.kv_indices = at(first + 4);
          lent.kv_last_page_len = at(first + 5);
        }
      }
      set.groups.push_back(lent);
    }
  }

  // The step's inputs as they stand in a set.
  void take_inputs(const Lent& set) {
    const auto own = fields();
    for (size_t i = 0; i < own.size(); ++i) *own[i] = set.memory[i];
  }
  bool still_holds(const Lent& set) {
    const auto own = fields();
    for (size_t i = 0; i < own.size(); ++i) {
      if (*own[i] != set.memory[i]) return false;
    }
    return true;
  }

  bool takes_images() const { return config.patch_dim > 0 && limits.max_encoder_rows > 0; }
  // The index of the token in its request.
  int32_t place(int32_t request, int32_t token) const {
    return seq_lens[request] - (query_start_loc[request + 1] - token);
  }
  uint64_t position_hash(int32_t token) const;
  int32_t token_of(int32_t token) const {
    const bool image = takes_images() && encoder_indices[token] >= 0;
    const int32_t id = image ? rows[encoder_indices[token]] : input_ids[token];
    return has_token_types ? id + 5003 * token_type_ids[token] : id;
  }
  void encode(const trn_forward_batch& batch, bool ruin);
  void check_positions(int32_t request) const;
  void check_images(const trn_forward_batch& batch) const;
  void check_counts(const trn_forward_batch& batch) const;
  void check_attention(const trn_forward_batch& batch, const GroupState& group) const;
  void check_csr(const trn_forward_batch& batch, const GroupState& group) const;
  void check_recurrent(const trn_forward_batch& batch, const GroupState& group) const;
  // Rows of a request that are no placeholders.
  int32_t num_real(int32_t request) const;
  void check_levels(const trn_forward_batch& batch) const;
  void check_types(const trn_forward_batch& batch) const;
  void check_drafts(const trn_forward_batch& batch) const;
  void check_hidden(const trn_forward_batch& batch) const;
  void keep_hidden(const trn_forward_batch& batch);
  uint64_t hash_of(const std::vector<int32_t>& history) const;
  void compute(const trn_forward_batch& batch, bool ruin);
  void guess(const trn_forward_batch& batch);
  uint64_t context(const GroupState& group, int32_t request, int32_t position) const;
};

void trn_executor::check_counts(const trn_forward_batch& batch) const {
  expect(batch.num_tokens >= 1 && batch.num_tokens <= limits.max_num_tokens, "num_tokens ", batch.num_tokens);
  expect(batch.num_reqs >= 1 && batch.num_reqs <= limits.max_num_seqs, "num_reqs ", batch.num_reqs);
  expect(batch.num_logits <= limits.max_logits_rows, "num_logits ", batch.num_logits);
  expect(batch.lens_are_exact == 1, "lens_are_exact");
  expect(batch.decode_query_len >= 1 && batch.decode_query_len <= limits.max_decode_query_len, "decode_query_len ",
         batch.decode_query_len);
  expect(query_start_loc[0] == 0 && query_start_loc[batch.num_reqs] == batch.num_tokens, "query_start_loc");
  int32_t longest_query = 0, longest_seq = 0;
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    const int32_t begin = query_start_loc[b], end = query_start_loc[b + 1];
    expect(end > begin, "request ", b, " has no tokens");
    expect(b >= batch.num_decodes || end - begin == batch.decode_query_len, "decode ", b, " has ", end - begin, " tokens");
    expect(!config.needs_whole_prompts || seq_lens[b] == end - begin, "request ", b, " came in pieces");
    longest_query = std::max(longest_query, end - begin);
    longest_seq = std::max(longest_seq, seq_lens[b]);
    check_positions(b);
    for (int32_t t = begin; t < end; ++t) {
      expect(input_ids[t] >= 0 && input_ids[t] < config.vocab_size, "input_ids[", t, "]");
    }
  }
  expect(longest_query == batch.max_query_len && longest_seq == batch.max_seq_len, "max_query_len or max_seq_len");
  expect(longest_seq <= limits.max_model_len, "a request is longer than max_model_len");
  for (int32_t n = 0; n < batch.num_logits; ++n) {
    expect(n == 0 || logits_indices[n] > logits_indices[n - 1], "logits_indices order");
    const auto ends = query_start_loc.begin() + batch.num_reqs + 1;
    const auto end = std::upper_bound(query_start_loc.begin(), ends, logits_indices[n]);
    const auto b = static_cast<int32_t>(end - query_start_loc.begin()) - 1;
    const bool last = logits_indices[n] == query_start_loc[b] + num_real(b) - 1;
    const bool verified = target == nullptr && b < batch.num_decodes && logits_indices[n] < query_start_loc[b] + num_real(b);
    expect(last || verified, "logits_indices[", n, "] is neither the last row nor a draft's");
  }
}

int32_t trn_executor::num_real(int32_t request) const {
  for (const GroupState& group : groups) {
    if (group.spec.kind == TRN_CACHE_RECURRENT) continue;
    int32_t end = query_start_loc[request + 1];
    while (end > query_start_loc[request] && group.slot_mapping[end - 1] == -1) --end;
    return end - query_start_loc[request];
  }
  return query_start_loc[request + 1] - query_start_loc[request];
}

// A step is told of ranges that save something, and each of them is right.
void trn_executor::check_levels(const trn_forward_batch& batch) const {
  const int32_t count = batch.num_prefixes;
  expect(count == 0 || config.accepts_prefix_levels, "num_prefixes ", count);
  if (count == 0) return;
  expect(prefix_indptr[0] == 0 && prefix_indptr[count] == batch.num_reqs, "prefix_indptr");
  std::vector<fake::Level> told;
  for (int32_t p = 0; p < count; ++p) {
    const int32_t begin = prefix_indptr[p], end = prefix_indptr[p + 1];
    told.push_back({end - begin, prefix_lens[p]});
    expect(end > begin && prefix_lens[p] >= 0 && prefix_lens[p] % limits.block_size == 0, "prefix ", p);
    for (int32_t b = begin; b < end; ++b) {
      expect(prefix_lens[p] <= place(b, query_start_loc[b]), "prefix_lens[", p, "] beyond what ", b, " had cached");
      for (const GroupState& group : groups) {
        if (group.spec.kind != TRN_CACHE_FULL && group.spec.kind != TRN_CACHE_MLA) continue;
        for (int32_t j = 0; j < prefix_lens[p] / limits.block_size; ++j) {
          expect(group.block_table[size_t(b) * group.width + j] == group.block_table[size_t(begin) * group.width + j],
                 "prefix_lens[", p, "] in other blocks of ", b);
        }
      }
    }
  }
  const std::lock_guard lock(breach_mutex);
  all_levels.push_back(std::move(told));
}

// A step brings types where a request has some, and then of every token.
void trn_executor::check_types(const trn_forward_batch& batch) const {
  expect(batch.has_token_types == 0 || config.num_token_types > 0, "token types for a model that takes none");
  if (batch.has_token_types == 0) return;
  for (int32_t t = 0; t < batch.num_tokens; ++t) {
    expect(token_type_ids[t] >= 0 && token_type_ids[t] < config.num_token_types, "token_type_ids[", t, "] is ",
           token_type_ids[t]);
  }
}

// Placeholders are in verifications only, a verification is in the step only where there is something to verify.
void trn_executor::check_drafts(const trn_forward_batch& batch) const {
  int32_t most = 0;
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    const int32_t rows = query_start_loc[b + 1] - query_start_loc[b];
    const bool uniform = b < batch.num_decodes && batch.decode_query_len > 1;
    expect(num_real(b) >= 1 && (uniform || num_real(b) == rows), "request ", b, " has ", num_real(b), " real rows");
    if (b < batch.num_decodes) most = std::max(most, num_real(b));
    if (target != nullptr || b >= batch.num_decodes) continue;
    const auto first = std::lower_bound(logits_indices.begin(), logits_indices.begin() + batch.num_logits,
                                        query_start_loc[b]);
    const auto last = std::lower_bound(first, logits_indices.begin() + batch.num_logits, query_start_loc[b + 1]);
    expect(last - first == num_real(b), "decode ", b, " has ", last - first, " logits rows");
  }
  expect(target != nullptr || batch.decode_query_len == 1 || most > 1, "a verification without drafts");
}

// A row at position p carries token p + 1 and the hidden state of token p; the draft's cache holds all before it.
void trn_executor::check_hidden(const trn_forward_batch& batch) const {
  const auto& source = batch.hidden_source == 0 ? target->hidden : hidden;
  const GroupState& group = groups[0];
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    const int32_t begin = query_start_loc[b], end = query_start_loc[b + 1];
    for (int32_t t = begin; t < end; ++t) {
      expect(hidden_indices[t] >= 0 && hidden_indices[t] < std::ssize(source), "hidden_indices[", t, "]");
    }
    const int32_t last = begin + num_real(b) - 1;
    for (int32_t t = begin; t <= last; ++t) {
      const auto& seen = source[size_t(hidden_indices[t])];
      expect(std::ssize(seen) == positions[t] + 1, "hidden_indices[", t, "] has seen ", seen.size(), " tokens, position ",
             positions[t]);
      expect(t == begin || input_ids[t - 1] == seen.back(), "row ", t - 1, " does not carry the token after its own");
    }
    const auto& seen = source[size_t(hidden_indices[last])];
    for (int32_t j = 0; j < positions[begin]; ++j) {
      const int32_t block = group.block_table[size_t(b) * group.width + j / limits.block_size];
      const int32_t held = group.tokens[size_t(block) * limits.block_size + j % limits.block_size];
      expect(held == seen[size_t(j) + 1], "the draft's cache of request ", b, " holds ", held, " at ", j);
    }
  }
}

void trn_executor::check_positions(int32_t request) const {
  const int32_t axes = config.num_position_axes;
  for (int32_t t = query_start_loc[request]; t < query_start_loc[request + 1]; ++t) {
    for (int32_t axis = 0; axis < axes; ++axis) {
      const int32_t position = positions[t * axes + axis];
      // An image advances the axes unevenly, and never faster than one a token.
      const bool right = axes == 1 ? position == place(request, t) : position >= 0 && position <= place(request, t);
      expect(right, "position of token ", t, " on axis ", axis, " is ", position);
    }
  }
}

void trn_executor::check_images(const trn_forward_batch& batch) const {
  expect(batch.num_encoder_items == 0 || takes_images(), "images for a model that takes none");
  std::set<int32_t> written;
  for (int32_t i = 0; i < batch.num_encoder_items; ++i) {
    const trn_encoder_item& item = batch.encoder_items[i];
    const int64_t patches = int64_t{item.grid[0]} * item.grid[1] * item.grid[2];
    expect(item.pixels->shape[0] == patches && item.pixels->shape[1] == config.patch_dim, "shape of image ", i);
    expect(patches == 4 * item.num_rows, "image ", i, " has ", item.num_rows, " rows for ", patches, " patches");
    for (int32_t row = item.first_row; row < item.first_row + item.num_rows; ++row) {
      expect(row >= 0 && row < limits.max_encoder_rows, "row ", row, " is not in the pool");
      expect(written.insert(row).second, "row ", row, " is written twice");
    }
  }
  for (int32_t t = 0; takes_images() && t < batch.num_tokens; ++t) {
    const int32_t row = encoder_indices[t];
    expect(row >= -1 && row < limits.max_encoder_rows, "encoder_indices[", t, "] is ", row);
    expect(row < 0 || written.count(row) > 0 || rows[row] != kRuined, "row ", row, " was never encoded");
  }
}

void trn_executor::encode(const trn_forward_batch& batch, bool ruin) {
  for (int32_t i = 0; i < batch.num_encoder_items; ++i) {
    const trn_encoder_item& item = batch.encoder_items[i];
    uint64_t hash = 17;
    for (const int32_t side : item.grid) hash = mix(hash, uint64_t(side));
    const auto* pixels = static_cast<const float*>(item.pixels->data);
    for (int64_t j = 0; j < item.pixels->shape[0] * item.pixels->shape[1]; ++j) hash = mix(hash, uint64_t(pixels[j]));
    for (int32_t row = 0; row < item.num_rows; ++row) {
      rows[item.first_row + row] = ruin ? kRuined : int32_t(mix(hash, uint64_t(row)) & 0xFFFFF) + 1000;
    }
  }
}

uint64_t trn_executor::position_hash(int32_t token) const {
  const int32_t axes = config.num_position_axes;
  uint64_t hash = 0;
  for (int32_t axis = 0; axis < axes; ++axis) hash = mix(hash, uint64_t(positions[token * axes + axis]) + 5);
  return hash;
}

void trn_executor::check_attention(const trn_forward_batch& batch, const GroupState& group) const {
  const int32_t bs = limits.block_size;
  std::set<int32_t> written_blocks;
  std::map<int32_t, int32_t> readers;
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    const int32_t start = group.kv_start[b];
    const int32_t* row = &group.block_table[size_t(b) * group.width];
    const int32_t used = (seq_lens[b] - start + bs - 1) / bs;
    const int32_t first_query = place(b, query_start_loc[b]);
    const int32_t visible = group.spec.window == 0 ? 0 : std::max(0, first_query - group.spec.window + 1);
    expect(start % bs == 0 && start >= 0 && start <= visible, "kv_start ", start, " where ", visible, " is visible");
    expect(visible - start < bs, "a whole block before the window is held: kv_start ", start, ", visible ", visible);
    for (int32_t j = 0; j < group.width; ++j) {
      const bool right = j < used ? row[j] > 0 && row[j] < group.num_blocks : row[j] == 0;
      expect(right, "block_table[", b, "][", j, "] is ", row[j]);
      if (j < used) ++readers[row[j]];
    }
    for (int32_t t = query_start_loc[b]; t < query_start_loc[b + 1]; ++t) {
      if (t >= query_start_loc[b] + num_real(b)) {
        expect(group.slot_mapping[t] == -1, "a placeholder has a slot: slot_mapping[", t, "]");
        continue;
      }
      const int32_t offset = place(b, t) - start;
      expect(group.slot_mapping[t] == row[offset / bs] * bs + offset % bs, "slot_mapping[", t, "]");
      written_blocks.insert(row[offset / bs]);
    }
  }
  for (const int32_t block : written_blocks) expect(readers[block] == 1, "block ", block, " is written and shared");
}

void trn_executor::check_csr(const trn_forward_batch& batch, const GroupState& group) const {
  const int32_t bs = limits.block_size;
  expect(group.kv_indptr[0] == 0, "kv_indptr[0]");
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    const int32_t cached = seq_lens[b] - group.kv_start[b];
    expect(group.kv_indptr[b + 1] - group.kv_indptr[b] == (cached + bs - 1) / bs, "kv_indptr[", b + 1, "]");
    expect(group.kv_last_page_len[b] == (cached - 1) % bs + 1, "kv_last_page_len[", b, "]");
    for (int32_t j = group.kv_indptr[b]; j < group.kv_indptr[b + 1]; ++j) {
      expect(group.kv_indices[j] == group.block_table[size_t(b) * group.width + j - group.kv_indptr[b]], "kv_indices");
    }
  }
}

void trn_executor::check_recurrent(const trn_forward_batch& batch, const GroupState& group) const {
  std::set<int32_t> states;
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    for (int32_t i = 0; i < group.width; ++i) {
      const int32_t state = group.state_indices[size_t(b) * group.width + i];
      expect(state > 0 && state < group.num_blocks && states.insert(state).second, "state_indices[", b, "] ", state);
    }
    expect(group.has_initial_state[b] == (place(b, query_start_loc[b]) > 0), "has_initial_state[", b, "]");
    const bool named = (config.required_fields & TRN_FIELD_NUM_ACCEPTED) != 0 && group.has_initial_state[b] != 0;
    expect(!named || (group.num_accepted[b] >= 1 && group.num_accepted[b] <= group.width), "num_accepted[", b, "]");
  }
}

uint64_t trn_executor::context(const GroupState& group, int32_t request, int32_t position) const {
  const int32_t bs = limits.block_size;
  const int32_t first = group.spec.window == 0 ? 0 : std::max(0, position - group.spec.window + 1);
  uint64_t hash = 1;
  for (int32_t j = first; j <= position; ++j) {
    const int32_t offset = j - group.kv_start[request];
    const int32_t block = group.block_table[size_t(request) * group.width + offset / bs];
    const size_t slot = size_t(block) * bs + offset % bs;
    hash = mix(mix(hash, uint64_t(group.tokens[slot]) << 20 ^ uint64_t(j)), group.places[slot]);
  }
  return hash;
}

void trn_executor::compute(const trn_forward_batch& batch, bool ruin) {
  encode(batch, ruin);
  std::vector<uint64_t> hashes(batch.num_tokens, 3);
  for (GroupState& group : groups) {
    const bool recurrent = group.spec.kind == TRN_CACHE_RECURRENT;
    for (int32_t b = 0; b < batch.num_reqs; ++b) {
      const int32_t* columns = recurrent ? &group.state_indices[size_t(b) * group.width] : nullptr;
      const int32_t start = (config.required_fields & TRN_FIELD_NUM_ACCEPTED) != 0 ? group.num_accepted[b] : 1;
      uint64_t state = recurrent && group.has_initial_state[b] ? group.states[columns[start - 1]] : 11;
      for (int32_t t = query_start_loc[b]; t < query_start_loc[b + 1]; ++t) {
        if (recurrent) {
          state = mix(mix(state, uint64_t(token_of(t))), position_hash(t));
          hashes[t] = mix(hashes[t], state);
          if (b < batch.num_decodes) group.states[columns[t - query_start_loc[b]]] = ruin ? uint64_t(kRuined) : state;
        } else if (group.slot_mapping[t] >= 0) {
          group.tokens[group.slot_mapping[t]] = ruin ? kRuined : token_of(t);
          group.places[group.slot_mapping[t]] = position_hash(t);
        }
      }
      if (recurrent && b >= batch.num_decodes) group.states[columns[0]] = ruin ? uint64_t(kRuined) : state;
    }
  }
  if (ruin) return;
  keep_hidden(batch);
  if (target != nullptr) return guess(batch);
  for (int32_t n = 0; n < batch.num_logits; ++n) {
    const int32_t token = logits_indices[n];
    const auto bound = std::upper_bound(query_start_loc.begin(), query_start_loc.begin() + batch.num_reqs, token);
    const auto request = static_cast<int32_t>(bound - query_start_loc.begin()) - 1;
    uint64_t hash = hashes[token];
    for (const GroupState& group : groups) {
      if (group.spec.kind != TRN_CACHE_RECURRENT) hash = mix(hash, context(group, request, place(request, token)));
    }
    // Without a cache a row sees its request's tokens of the step, and no others.
    for (int32_t t = query_start_loc[request]; groups.empty() && t < query_start_loc[request + 1]; ++t) {
      hash = mix(hash, uint64_t(input_ids[t]));
    }
    for (int32_t id = 0; id < width(); ++id) {
      float& value = logits[size_t(n) * width() + id];
      value = input_ids[token] == config.nan_token ? NAN : float(mix(hash, uint64_t(id)) >> 40) / 2097152.0f - 4.0f;
    }
  }
}

void trn_executor::keep_hidden(const trn_forward_batch& batch) {
  const auto source = target != nullptr && batch.hidden_source == 0 ? target->hidden : hidden;
  hidden.assign(size_t(batch.num_tokens), {});
  for (int32_t b = 0; b < batch.num_reqs; ++b) {
    for (int32_t t = query_start_loc[b]; t < query_start_loc[b] + num_real(b); ++t) {
      if (target != nullptr) {
        hidden[t] = source[size_t(hidden_indices[t])];
        hidden[t].push_back(input_ids[t]);
        continue;
      }
      if (groups.empty() || groups[0].spec.kind != TRN_CACHE_FULL) continue;
      const GroupState& group = groups[0];
      for (int32_t j = 0; j <= positions[t]; ++j) {
        const int32_t block = group.block_table[size_t(b) * group.width + j / limits.block_size];
        hidden[t].push_back(group.tokens[size_t(block) * limits.block_size + j % limits.block_size]);
      }
    }
  }
}

// What compute() makes of a row that has seen these tokens.
uint64_t trn_executor::hash_of(const std::vector<int32_t>& history) const {
  const auto last = static_cast<int32_t>(history.size()) - 1;
  // position_hash() of a text's token.
  const auto place_hash = [](int32_t position) { return mix(0, uint64_t(position) + 5); };
  uint64_t hash = 3;
  for (const GroupState& group : groups) {
    if (group.spec.kind != TRN_CACHE_RECURRENT) continue;
    uint64_t state = 11;
    for (int32_t j = 0; j <= last; ++j) state = mix(mix(state, uint64_t(history[size_t(j)])), place_hash(j));
    hash = mix(hash, state);
  }
  for (const GroupState& group : groups) {
    if (group.spec.kind == TRN_CACHE_RECURRENT) continue;
    uint64_t seen = 1;
    for (int32_t j = group.spec.window == 0 ? 0 : std::max(0, last - group.spec.window + 1); j <= last; ++j) {
      seen = mix(mix(seen, uint64_t(history[size_t(j)]) << 20 ^ uint64_t(j)), place_hash(j));
    }
    hash = mix(hash, seen);
  }
  return hash;
}

void trn_executor::guess(const trn_forward_batch& batch) {
  for (int32_t n = 0; n < batch.num_logits; ++n) {
    const uint64_t hash = target->hash_of(hidden[size_t(logits_indices[n])]);
    int32_t best = 0;
    for (int32_t id = 1; id < width(); ++id) {
      if (mix(hash, uint64_t(id)) >> 40 > mix(hash, uint64_t(best)) >> 40) best = id;
    }
    if (static_cast<int32_t>(mix(hash, 1000) % 100) >= config.agreement) best = (best + 1) % width();
    for (int32_t id = 0; id < width(); ++id) logits[size_t(n) * width() + id] = id == best ? 1.0f : 0.0f;
  }
}

namespace fake {

Config& config() {
  static Config current;
  return current;
}

std::string breach() {
  const std::lock_guard lock(breach_mutex);
  return first_breach;
}

int32_t most_logits() {
  const std::lock_guard lock(breach_mutex);
  return most_rows;
}

int32_t most_requests() {
  const std::lock_guard lock(breach_mutex);
  return widest_step;
}

std::vector<std::vector<Level>> told_levels() {
  const std::lock_guard lock(breach_mutex);
  return all_levels;
}

}  // namespace fake

uint32_t trn_abi_version(void) { return TRN_ABI_VERSION; }
uint64_t trn_features(void) { return TRN_FEATURE_NULL_EXECUTOR; }

trn_status trn_executor_create(const trn_create_options* options, trn_executor** out, char* error, size_t size) {
  *out = nullptr;
  if (options->share_with == nullptr) {
    const std::lock_guard lock(breach_mutex);
    first_breach.clear();
    widest_step = most_rows = 0;
    all_levels.clear();
  } else if (fake::config().agreement < 0) {
    std::snprintf(error, size, "role draft: the fake has none");
    return TRN_REFUSED;
  }
  if (!fake::config().create_error.empty()) {
    std::snprintf(error, size, "%s", fake::config().create_error.c_str());
    return TRN_REFUSED;
  }
  *out = new trn_executor(*options);
  return TRN_OK;
}

const char* trn_last_error(const trn_executor* executor) { return executor->error.c_str(); }
const char* trn_last_error_field(const trn_executor*) { return "input_ids"; }

trn_status trn_executor_model_info(trn_executor* executor, trn_model_info* info) {
  info->required_fields = executor->config.required_fields;
  if (executor->takes_images()) info->required_fields |= TRN_FIELD_ENCODER_INDICES;
  info->vocab_size = executor->config.vocab_size;
  info->num_groups = static_cast<int32_t>(executor->groups.size());
  info->accepts_upper_bound_lens = 0;
  info->num_buffer_sets = 2;
  info->output_kind = executor->config.pooled_width > 0 ? TRN_OUTPUT_POOLED : TRN_OUTPUT_LOGITS;
  info->output_width = executor->width();
  info->num_position_axes = executor->config.num_position_axes;
  info->encoder_patch_dim = executor->config.patch_dim;
  info->accepts_prefix_levels = executor->config.accepts_prefix_levels;
  info->needs_whole_prompts = executor->config.needs_whole_prompts;
  info->num_token_types = executor->config.num_token_types;
  return TRN_OK;
}

trn_status trn_executor_cache_group(trn_executor* executor, int32_t index, trn_cache_group_spec* spec) {
  GroupState& group = executor->groups[index];
  const bool recurrent = group.spec.kind == TRN_CACHE_RECURRENT;
  spec->kind = group.spec.kind;
  spec->num_layers = 1;
  spec->block_size = recurrent ? 0 : executor->limits.block_size;
  spec->max_blocks_per_seq = group.width;
  spec->window = group.spec.window;
  spec->num_tensors = 1;
  group.tensor = {"kv", group.shape, 1, {kDLInt, 32, 1}, 4};
  spec->layers = &group.layer;
  spec->tensors = &group.tensor;
  spec->bytes_per_block = recurrent ? 8 : 4 * executor->limits.block_size;
  return TRN_OK;
}

trn_status trn_executor_memory_profile(trn_executor*, trn_memory_profile*) { return TRN_OK; }

trn_status trn_executor_allocate_kv_cache(trn_executor* executor, const int32_t* num_blocks, int32_t num_groups) {
  for (int32_t g = 0; g < num_groups; ++g) {
    GroupState& group = executor->groups[g];
    group.num_blocks = num_blocks[g];
    group.tokens.assign(size_t(num_blocks[g]) * executor->limits.block_size, kRuined);
    group.places.assign(group.tokens.size(), uint64_t(kRuined));
    group.states.assign(num_blocks[g], uint64_t(kRuined));
  }
  return TRN_OK;
}

trn_status trn_executor_bind_kv_cache(trn_executor*, const trn_cache_tensor*, int32_t) { return TRN_OK; }

trn_status trn_executor_warm_up(trn_executor*, const char** report) {
  if (report != nullptr) *report = "{\"captured\": []}";
  return TRN_OK;
}

trn_status trn_executor_input_buffers(trn_executor* executor, int32_t index, trn_input_buffers* buffers) {
  trn_executor::Lent& set = executor->sets[index];
  buffers->num_groups = static_cast<int32_t>(executor->groups.size());
  buffers->input_ids = set.memory[0].data();
  buffers->positions = set.memory[1].data();
  buffers->query_start_loc = set.memory[2].data();
  buffers->seq_lens = set.memory[3].data();
  buffers->logits_indices = set.memory[4].data();
  if (executor->takes_images()) buffers->encoder_indices = set.memory[5].data();
  if (executor->target != nullptr) buffers->hidden_indices = set.memory[6].data();
  buffers->groups = set.groups.data();
  if (executor->config.accepts_prefix_levels) {
    buffers->prefix_indptr = set.memory[set.memory.size() - 3].data();
    buffers->prefix_lens = set.memory[set.memory.size() - 2].data();
  }
  if (executor->config.num_token_types > 0) buffers->token_type_ids = set.memory.back().data();
  (executor->config.pooled_width > 0 ? buffers->pooled : buffers->logits) = executor->logits.data();
  return TRN_OK;
}

trn_status trn_executor_execute(trn_executor* executor, const trn_forward_batch* batch, trn_forward_output* output) {
  try {
    expect(executor->thread == std::this_thread::get_id(), "execute on another thread than create");
    expect(batch->buffer_set == static_cast<int32_t>(executor->step % 2), "buffer_set ", batch->buffer_set);
    executor->take_inputs(executor->sets[batch->buffer_set]);
    executor->has_token_types = batch->has_token_types != 0;
    executor->check_counts(*batch);
    executor->check_images(*batch);
    executor->check_drafts(*batch);
    executor->check_levels(*batch);
    executor->check_types(*batch);
    if (executor->target != nullptr) executor->check_hidden(*batch);
    for (const GroupState& group : executor->groups) {
      if (group.spec.kind == TRN_CACHE_RECURRENT) {
        executor->check_recurrent(*batch, group);
        continue;
      }
      executor->check_attention(*batch, group);
      if ((executor->config.required_fields & TRN_FIELD_KV_CSR) != 0) executor->check_csr(*batch, group);
    }
  } catch (const Breach& error) {
    note(error.what());
  }
  {
    const std::lock_guard lock(breach_mutex);
    widest_step = std::max(widest_step, batch->num_reqs);
    if (executor->target == nullptr) most_rows = std::max(most_rows, batch->num_logits);
  }
  ++executor->step;
  const trn_status status = executor->config.fault ? executor->config.fault(executor->step, *batch) : TRN_OK;
  executor->error = "as the test asked at step " + std::to_string(executor->step);
  if (status != TRN_REFUSED) executor->compute(*batch, status != TRN_OK);
  executor->stats.executes += status == TRN_OK;
  executor->stats.kv_event_steps += status == TRN_OK && batch->kv_events != nullptr;
  executor->stats.prefix_level_steps += status == TRN_OK && batch->num_prefixes > 0;
  executor->stats.token_type_steps += status == TRN_OK && batch->has_token_types != 0;
  executor->stats.refused += status == TRN_REFUSED;
  executor->stats.failed += status == TRN_FAILED;
  if (!executor->still_holds(executor->sets[batch->buffer_set])) note("a set was written to while its step ran");
  output->num_logits = batch->num_logits;
  (executor->config.pooled_width > 0 ? output->pooled : output->logits) = executor->logits.data();
  output->fence = executor->step;
  return status;
}

trn_status trn_executor_wait(trn_executor*, uint64_t) { return TRN_OK; }

trn_status trn_executor_validate(trn_executor*, const trn_forward_batch*) { return TRN_OK; }

trn_status trn_executor_get_stats(trn_executor* executor, trn_executor_stats* stats) {
  if (executor->thread != std::this_thread::get_id()) note("get_stats on another thread than create");
  *stats = executor->stats;
  stats->eager_steps = executor->step / 3;
  stats->replays = executor->step - stats->eager_steps;
  stats->padded_tokens = 7;
  stats->plan_calls = executor->step;
  stats->plan_seconds = 0.5;
  stats->python_seconds = 1.5;
  stats->num_eager_reasons = std::min<uint64_t>(stats->eager_steps, 2);
  return TRN_OK;
}

// What a runner says: every third step is eager, for one of two reasons.
trn_status trn_executor_eager_reason(trn_executor* executor, int32_t index, const char** reason, uint64_t* steps) {
  const uint64_t eager = executor->step / 3;
  *reason = index == 0 ? "odd \"reason\"" : "even";
  *steps = index == 0 ? (eager + 1) / 2 : eager / 2;
  return TRN_OK;
}

void trn_executor_close(trn_executor* executor) {
  if (executor == nullptr) return;
  if (executor->thread != std::this_thread::get_id()) note("close on another thread than create");
  delete executor;
}
