// What stands behind contract.h: an executor without Python for tests, or the bridge to the Python one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv_events.h"
#include "status.h"
#include "trunnion/contract.h"

namespace trunnion::executor {

struct CacheTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  DLDataType dtype{};
  std::int64_t bytes_per_block = 0;
};

struct CacheGroup {
  trn_cache_kind kind = TRN_CACHE_FULL;
  std::vector<std::string> layers;
  std::vector<CacheTensor> tensors;
  std::int32_t block_size = 0;
  std::int32_t max_blocks_per_seq = 1;  // of a recurrent group: states
  std::int32_t window = 0;

  bool recurrent() const noexcept { return kind == TRN_CACHE_RECURRENT; }
};

/// Facts that do not change between create and close.
struct Description {
  std::int32_t vocab_size = 0;
  trn_output_kind output_kind = TRN_OUTPUT_LOGITS;
  std::int32_t output_width = 0;
  std::int32_t num_position_axes = 1;
  std::int32_t encoder_patch_dim = 0;  // 0 = takes no images
  std::uint32_t required_fields = 0;
  bool accepts_upper_bound_lens = false;
  bool accepts_prefix_levels = false;
  bool needs_whole_prompts = false;
  std::int32_t num_token_types = 0;  // 0 = takes none
  /// Outputs are complete when `execute` returns, `wait` has nothing to do.
  bool synchronous = true;
  /// Where caches lie.
  DLDeviceType cache_device = kDLCPU;
  std::vector<CacheGroup> groups;
  trn_memory_profile profile{};

  bool has(std::uint32_t field) const noexcept { return (required_fields & field) != 0; }
};

/// Lent memory of one buffer set. Everything outlives the calls that use it.
struct BufferSet {
  trn_input_buffers inputs{};
  std::vector<trn_group_buffers> groups;
};

struct Counts {
  std::int64_t num_tokens, num_reqs, num_logits, num_decodes, decode_query_len, max_query_len, max_seq_len,
      lens_are_exact, hidden_source, has_kv_events, num_prefixes, has_token_types;
};

struct GilStats {
  std::uint64_t entries = 0;
  std::uint64_t step_entries = 0;
  double step_wait_seconds = 0;
  std::int64_t last_begin_ns = 0, last_end_ns = 0;  // of the last step's wait
};

/// What a Python runner counts, written by host_entry.StepCounters after each step; times in nanoseconds.
struct RunnerCounters {
  static constexpr std::int64_t kMaxReasons = 16;
  std::int64_t replays, eager_steps, padded_tokens, plan_calls, plan_ns, python_ns, last_python_begin_ns,
      last_python_end_ns, last_plan_begin_ns, last_plan_end_ns, num_eager_reasons, kv_event_steps, prefix_level_steps,
      token_type_steps;
  std::int64_t eager[kMaxReasons];  // steps, by reason
};

/// Errors are StatusError. Arguments have been validated by the caller.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Description& description() const = 0;
  virtual const BufferSet& buffer_set(std::int32_t index) = 0;
  virtual void allocate_kv_cache(const std::vector<std::int32_t>& num_blocks) = 0;
  virtual void bind_kv_cache(const trn_cache_tensor* tensors, std::int32_t num_tensors) = 0;
  /// JSON.
  virtual std::string warm_up() = 0;
  /// Run the step whose inputs stand in the lent buffers of set `index`, after encoding `images`.
  virtual void execute(std::int32_t index, const Counts& counts, std::span<const trn_encoder_item> images) = 0;
  virtual void wait(std::uint64_t fence) = 0;
  /// Its slots are where the backend's layers look for the events of a step that has some.
  virtual KvEvents& kv_events() = 0;
  virtual GilStats gil_stats() const { return {}; }
  virtual const RunnerCounters& runner_counters() const {
    static constexpr RunnerCounters kNone{};
    return kNone;
  }
  /// The text of reason `index`, below num_eager_reasons.
  virtual const std::string& eager_reason(std::int32_t) { throw StatusError(TRN_FAILED, "", "has no reasons"); }
};

inline constexpr std::int32_t kNumBufferSets = KvEvents::kNumSets;

/// The names of all cache layers, in the order in which KV events number them.
std::vector<std::string> cache_layers(const Description& description);

/// `model` is "null:key=value,...", see null_backend.cc. `target` is what a draft shares with, or nullptr.
std::unique_ptr<Backend> make_null_backend(const trn_create_options& options, Backend* target);
/// The Python executor; refused in a library built without it.
std::unique_ptr<Backend> make_python_backend(const trn_create_options& options, Backend* target);
std::uint64_t python_backend_feature();

}  // namespace trunnion::executor
