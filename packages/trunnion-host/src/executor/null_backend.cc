// The executor without Python, for hosts under test: a hash for a model, and faults on order.
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "lent_buffers.h"
#include "null_draft.h"
#include "prefix_levels.h"
#include "status.h"

namespace trunnion::executor {
namespace {

class NullBackend final : public Backend {
 public:
  NullBackend(const NullOptions& options, const trn_limits& limits, std::unique_ptr<NullModel> model)
      : options_(options),
        owned_model_(std::move(model)),
        model_(*owned_model_),
        buffers_(model_.description(), limits),
        kv_events_(cache_layers(model_.description()), false) {}

  const NullModel& model() const { return model_; }

  const Description& description() const override { return model_.description(); }
  const BufferSet& buffer_set(std::int32_t index) override { return buffers_.set(index); }
  void allocate_kv_cache(const std::vector<std::int32_t>& num_blocks) override { model_.allocate(num_blocks); }

  void bind_kv_cache(const trn_cache_tensor* tensors, std::int32_t num_tensors) override {
    std::vector<std::vector<void*>> data;
    for (const CacheGroup& group : description().groups) data.emplace_back(group.layers.size(), nullptr);
    for (std::int32_t i = 0; i < num_tensors; ++i) {
      data[static_cast<std::size_t>(tensors[i].group)][static_cast<std::size_t>(tensors[i].layer)] =
          static_cast<char*>(tensors[i].tensor.data) + tensors[i].tensor.byte_offset;
    }
    model_.bind(std::move(data));
  }

  std::string warm_up() override {
    return R"({"captured": [], "eager": {}, "on_reference": {}, "seconds": 0.0, "bytes": 0})";
  }

  void execute(std::int32_t index, const Counts& counts, std::span<const trn_encoder_item> images) override {
    const BufferSet& set = buffers_.set(index);
    NullImages::check(images);
    ++step_;
    if (options_.sleep_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(options_.sleep_us));
    if (step_ == options_.refuse_at) refuse("input_ids", "refused at step ", step_, " as asked");
    if (step_ == options_.fatal_at) throw StatusError(TRN_FATAL, "", concat("fatal at step ", step_, " as asked"));
    if (step_ == options_.fail_at) {
      model_.scribble(set, counts);
      model_.images().scribble(images);
      throw StatusError(TRN_FAILED, "", concat("failed at step ", step_, " as asked"));
    }
    while (step_ == options_.hang_at) std::this_thread::sleep_for(std::chrono::hours(1));
    model_.images().encode(images);
    model_.forward(set, counts, counts.has_kv_events != 0 ? &kv_events_.slot(index, 0) : nullptr);
    counters_.kv_event_steps += counts.has_kv_events;
    counters_.token_type_steps += counts.has_token_types;
    counters_.prefix_level_steps += shares_blocks(set.inputs.prefix_lens, counts.num_prefixes) ? 1 : 0;
  }

  void wait(std::uint64_t) override {}
  KvEvents& kv_events() override { return kv_events_; }
  const RunnerCounters& runner_counters() const override { return counters_; }

 private:
  NullOptions options_;
  const std::unique_ptr<NullModel> owned_model_;
  NullModel& model_;
  LentBuffers buffers_;
  KvEvents kv_events_;
  RunnerCounters counters_{};
  std::int64_t step_ = 0;
};

}  // namespace

namespace {

void refuse_choices(const trn_create_options& options) {
  const std::pair<const char*, const char*> choices[] = {{"weights", options.weights}, {"activations", options.activations}};
  for (const auto& [name, choice] : choices) {
    if (std::string_view(choice) != "auto") refuse(name, "'", choice, "' is not for hardware 'null'; choices: auto");
  }
}

}  // namespace

std::unique_ptr<Backend> make_null_backend(const trn_create_options& options, Backend* target) {
  refuse_choices(options);
  if (options.staging == TRN_STAGING_DEVICE) refuse("staging", "device: the null executor has no device; choices: 0 (host)");
  NullOptions null = parse_null_options(options.model);
  const trn_limits& limits = options.limits;
  if (options.role != TRN_ROLE_DRAFT) {
    return std::make_unique<NullBackend>(null, limits,
                                         std::make_unique<NullModel>(null, limits, options.keep_hidden != 0));
  }
  if (null.draft == 0) refuse("role", "draft: the model of the null executor has none without draft=1");
  if (null.pooled > 0) refuse("role", "draft: a model that pools has none");
  if (null.types > 0) refuse("role", "draft: a model that takes token types has none");
  if (null.images > 0 || null.axes > 1) refuse("role", "draft: a model that takes images has none");
  const auto* source = dynamic_cast<const NullBackend*>(target);
  if (source == nullptr) refuse("share_with", "is no null executor");
  if (!source->model().keeps_hidden()) refuse("share_with", "keeps no hidden states: create it with keep_hidden");
  // The faults are the target's, but for one.
  null.fail_at = null.draft_fail_at;
  null.refuse_at = null.fatal_at = null.hang_at = 0;
  return std::make_unique<NullBackend>(null, limits, std::make_unique<NullDraft>(null, limits, source->model()));
}

}  // namespace trunnion::executor
