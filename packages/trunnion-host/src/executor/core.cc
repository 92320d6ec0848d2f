// Order of calls, checks and statistics of an executor.
#include "core.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "cache_binding.h"
#include "image_items.h"
#include "status.h"

namespace trunnion::executor {
namespace {

template <typename Struct>
void check_out(const Struct* out, const char* name, std::size_t least = sizeof(Struct)) {
  if (out == nullptr) refuse(name, "is NULL");
  if (out->struct_size < least) {
    refuse("struct_size", out->struct_size, " of ", name, " is below ", least, ": the host is older, or left it 0");
  }
}

/// A struct that an older host may end before `later`, or before `pooled` where the model pools; fill it with copy_out.
template <typename Struct>
void check_out(const Struct* out, const char* name, std::size_t later, std::size_t pooled,
               const Description& description) {
  check_out(out, name, description.output_kind == TRN_OUTPUT_POOLED ? pooled : later);
}

/// As far as the host's struct goes.
template <typename Struct>
void copy_out(Struct all, Struct* out) {
  all.struct_size = out->struct_size;
  std::memcpy(out, &all, std::min<std::size_t>(all.struct_size, sizeof all));
}

std::unique_ptr<Backend> make_backend(const trn_create_options& options, Backend* target) {
  const bool null = std::string(options.hardware) == "null";
  return null ? make_null_backend(options, target) : make_python_backend(options, target);
}

}  // namespace

Core::Core(const trn_create_options& options, Core* target)
    : thread_(std::this_thread::get_id()),
      process_(getpid()),
      limits_(options.limits),
      backend_(make_backend(options, target == nullptr ? nullptr : target->backend_.get())),
      description_(backend_->description()),
      reader_(description_, limits_),
      validator_(description_, limits_, options.staging == TRN_STAGING_DEVICE),
      target_(target) {
  for (const CacheGroup& group : description_.groups) {
    GroupStrings strings;
    for (const std::string& layer : group.layers) strings.layers.push_back(layer.c_str());
    for (const CacheTensor& tensor : group.tensors) {
      strings.tensors.push_back({tensor.name.c_str(), tensor.shape.data(), static_cast<std::int32_t>(tensor.shape.size()),
                                 tensor.dtype, tensor.bytes_per_block});
    }
    strings_.push_back(std::move(strings));
  }
}

const char* Core::usable_here() const noexcept {
  if (getpid() != process_) return "the executor was created before a fork; create it in the process that uses it";
  if (std::this_thread::get_id() != thread_) return "called from another thread than the one that created the executor";
  return nullptr;
}

void Core::model_info(trn_model_info* info) const {
  if (description_.needs_whole_prompts) check_out(info, "info", offsetof(trn_model_info, num_token_types));
  check_out(info, "info", offsetof(trn_model_info, output_kind), offsetof(trn_model_info, accepts_prefix_levels),
            description_);
  trn_model_info all{};
  all.required_fields = description_.required_fields;
  all.vocab_size = description_.vocab_size;
  all.num_groups = static_cast<std::int32_t>(description_.groups.size());
  all.accepts_upper_bound_lens = description_.accepts_upper_bound_lens ? 1 : 0;
  all.num_buffer_sets = kNumBufferSets;
  all.output_kind = description_.output_kind;
  all.output_width = description_.output_width;
  all.num_position_axes = description_.num_position_axes;
  all.encoder_patch_dim = description_.encoder_patch_dim;
  all.accepts_prefix_levels = description_.accepts_prefix_levels ? 1 : 0;
  all.needs_whole_prompts = description_.needs_whole_prompts ? 1 : 0;
  all.num_token_types = description_.num_token_types;
  copy_out(all, info);
}

void Core::cache_group(std::int32_t index, trn_cache_group_spec* spec) const {
  check_out(spec, "spec");
  const auto count = static_cast<std::int32_t>(description_.groups.size());
  if (index < 0 || index >= count) refuse("group", index, " is outside 0 ... ", count - 1);
  const CacheGroup& group = description_.groups[static_cast<std::size_t>(index)];
  const GroupStrings& strings = strings_[static_cast<std::size_t>(index)];
  spec->kind = group.kind;
  spec->num_layers = static_cast<std::int32_t>(group.layers.size());
  spec->block_size = group.block_size;
  spec->max_blocks_per_seq = group.max_blocks_per_seq;
  spec->window = group.window;
  spec->num_tensors = static_cast<std::int32_t>(group.tensors.size());
  spec->layers = strings.layers.data();
  spec->tensors = strings.tensors.data();
  spec->bytes_per_block = 0;
  for (const CacheTensor& tensor : group.tensors) spec->bytes_per_block += tensor.bytes_per_block * spec->num_layers;
}

void Core::memory_profile(trn_memory_profile* profile) const {
  check_out(profile, "profile");
  const std::uint32_t size = profile->struct_size;
  *profile = description_.profile;
  profile->struct_size = size;
}

void Core::set_num_blocks(const std::vector<std::int32_t>& num_blocks) {
  validator_.set_num_blocks(num_blocks);
  bound_ = true;
}

void Core::allocate_kv_cache(const std::int32_t* num_blocks, std::int32_t num_groups) {
  if (bound_) refuse("kv_cache", "is bound already; it is bound once");
  const std::vector<std::int32_t> counts = check_num_blocks(description_, num_blocks, num_groups);
  backend_->allocate_kv_cache(counts);
  set_num_blocks(counts);
}

void Core::bind_kv_cache(const trn_cache_tensor* tensors, std::int32_t num_tensors) {
  if (bound_) refuse("kv_cache", "is bound already; it is bound once");
  const std::vector<std::int32_t> counts = check_cache_tensors(description_, tensors, num_tensors);
  backend_->bind_kv_cache(tensors, num_tensors);
  set_num_blocks(counts);
}

const char* Core::warm_up() {
  if (!bound_) refuse("kv_cache", "is not bound; allocate_kv_cache or bind_kv_cache comes before warm_up");
  report_ = backend_->warm_up();
  warm_ = true;
  return report_.c_str();
}

void Core::input_buffers(std::int32_t buffer_set, trn_input_buffers* buffers) {
  check_out(buffers, "buffers", offsetof(trn_input_buffers, pooled), offsetof(trn_input_buffers, prefix_indptr),
            description_);
  if (buffer_set < 0 || buffer_set >= kNumBufferSets) {
    refuse("buffer_set", buffer_set, " is outside 0 ... ", kNumBufferSets - 1);
  }
  const BufferSet& set = backend_->buffer_set(buffer_set);
  trn_input_buffers all = set.inputs;
  all.groups = set.groups.data();
  copy_out(all, buffers);
}

void Core::execute(const trn_forward_batch* batch, trn_forward_output* output, bool* begun) {
  const auto started = std::chrono::steady_clock::now();
  try {
    check_out(batch, "batch", kLeastBatchSize);
    check_out(output, "output", offsetof(trn_forward_output, pooled), sizeof *output, description_);
    run(*batch, output, begun);
    ++stats_.executes;
  } catch (const StatusError& error) {
    ++(error.status() == TRN_REFUSED ? stats_.refused : stats_.failed);
    throw;
  }
  stats_.execute_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

void Core::validate(const trn_forward_batch* batch) {
  check_out(batch, "batch", kLeastBatchSize);
  check(*batch);
}

const BatchView& Core::check(const trn_forward_batch& batch) {
  if (!warm_) refuse("kv_cache", "warm_up comes before execute");
  const std::int32_t index = batch.buffer_set;
  if (index < 0 || index >= kNumBufferSets) refuse("buffer_set", index, " is outside 0 ... ", kNumBufferSets - 1);
  if (set_fences_[index] > done_fence_) {
    refuse("buffer_set", index, " is in use until its fence ", set_fences_[index], " has been waited for");
  }
  const BatchView& view = reader_.read(batch, backend_->buffer_set(index));
  validator_.check(view);
  check_hidden(view);
  check_images(batch, description_, limits_);
  if (batch.kv_events != nullptr) backend_->kv_events().check(*batch.kv_events);
  return view;
}

void Core::check_hidden(const BatchView& view) const {
  if (view.hidden_indices == nullptr) return;
  const bool own = view.counts.hidden_source == 1;
  const std::int64_t rows = own ? last_num_tokens_ : target_->last_num_tokens_;
  for (std::int64_t t = 0; t < view.counts.num_tokens; ++t) {
    if (view.hidden_indices[t] >= 0 && view.hidden_indices[t] < rows) continue;
    refuse("hidden_indices", "token ", t, " is ", view.hidden_indices[t], ", the last step of ",
           own ? "this executor" : "the target", " had ", rows, " rows");
  }
}

void Core::run(const trn_forward_batch& batch, trn_forward_output* output, bool* begun) {
  const BatchView& view = check(batch);
  const std::int32_t index = batch.buffer_set;
  if (batch.kv_events != nullptr) backend_->kv_events().begin(index, *batch.kv_events);
  *begun = true;
  // Until it has returned, nobody knows which rows are there.
  last_num_tokens_ = 0;
  const std::span images(batch.encoder_items, static_cast<std::size_t>(batch.num_encoder_items));
  try {
    stats_.copied_tensors += reader_.adopt();
    backend_->execute(index, view.counts, images);
    has_tokens_[index] = view.counts.num_tokens > 0;
    if (description_.synchronous) backend_->kv_events().finish(index, has_tokens_[index]);
  } catch (...) {
    backend_->kv_events().fail(index);
    throw;
  }
  last_num_tokens_ = view.counts.num_tokens;
  set_fences_[index] = ++last_fence_;
  const trn_input_buffers& lent = backend_->buffer_set(index).inputs;
  copy_out({output->struct_size, batch.num_logits, lent.logits, last_fence_, lent.pooled}, output);
}

void Core::wait(std::uint64_t fence) {
  if (fence < 1 || fence > last_fence_) refuse("fence", fence, " was never returned; the last one is ", last_fence_);
  if (fence <= done_fence_) return;
  if (description_.synchronous) {
    done_fence_ = fence;
    return;
  }
  KvEvents& events = backend_->kv_events();
  try {
    backend_->wait(fence);
  } catch (...) {
    events.fail_all();
    throw;
  }
  // One stream: what was enqueued before the fence is done as well.
  const std::uint64_t before = std::exchange(done_fence_, fence);
  for (std::int32_t index = 0; index < kNumBufferSets; ++index) {
    const bool done = set_fences_[index] > before && set_fences_[index] <= fence;
    if (done) events.finish(index, has_tokens_[index]);
  }
}

void Core::stats(trn_executor_stats* stats) const {
  check_out(stats, "stats", offsetof(trn_executor_stats, replays));
  trn_executor_stats all = stats_;
  all.struct_size = stats->struct_size;
  const GilStats gil = backend_->gil_stats();
  all.gil_entries = gil.entries;
  all.step_gil_entries = gil.step_entries;
  all.gil_wait_seconds = gil.step_wait_seconds;
  all.last_gil_begin_ns = gil.last_begin_ns;
  all.last_gil_end_ns = gil.last_end_ns;
  const RunnerCounters& runner = backend_->runner_counters();
  all.replays = static_cast<std::uint64_t>(runner.replays);
  all.eager_steps = static_cast<std::uint64_t>(runner.eager_steps);
  all.padded_tokens = static_cast<std::uint64_t>(runner.padded_tokens);
  all.plan_calls = static_cast<std::uint64_t>(runner.plan_calls);
  all.plan_seconds = static_cast<double>(runner.plan_ns) * 1e-9;
  all.python_seconds = static_cast<double>(runner.python_ns) * 1e-9;
  all.num_eager_reasons = static_cast<std::uint64_t>(runner.num_eager_reasons);
  all.last_python_begin_ns = runner.last_python_begin_ns;
  all.last_python_end_ns = runner.last_python_end_ns;
  all.last_plan_begin_ns = runner.last_plan_begin_ns;
  all.last_plan_end_ns = runner.last_plan_end_ns;
  all.kv_event_steps = static_cast<std::uint64_t>(runner.kv_event_steps);
  all.prefix_level_steps = static_cast<std::uint64_t>(runner.prefix_level_steps);
  all.token_type_steps = static_cast<std::uint64_t>(runner.token_type_steps);
  std::memcpy(stats, &all, std::min<std::size_t>(all.struct_size, sizeof all));
}

void Core::eager_reason(std::int32_t index, const char** reason, std::uint64_t* steps) {
  if (reason == nullptr || steps == nullptr) refuse("reason", "or steps is NULL");
  const RunnerCounters& runner = backend_->runner_counters();
  if (index < 0 || index >= runner.num_eager_reasons) {
    refuse("index", index, " is not below the ", runner.num_eager_reasons, " reasons seen so far");
  }
  *reason = backend_->eager_reason(index).c_str();
  *steps = static_cast<std::uint64_t>(runner.eager[index]);
}

}  // namespace trunnion::executor
