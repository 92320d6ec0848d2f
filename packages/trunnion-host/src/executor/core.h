// The executor behind trn_executor: order of calls, checks, statistics; what it asks of a backend is plain work.
#pragma once

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

#include "batch_reader.h"
#include "validate.h"

namespace trunnion::executor {

/// Methods throw StatusError; the caller has checked thread and process with `usable_here`.
class Core {
 public:
  /// `target` is what `options.share_with` stands for.
  Core(const trn_create_options& options, Core* target);

  /// Why this thread or process may not use the executor, or nullptr.
  const char* usable_here() const noexcept;

  void model_info(trn_model_info* info) const;
  void cache_group(std::int32_t group, trn_cache_group_spec* spec) const;
  void memory_profile(trn_memory_profile* profile) const;
  void allocate_kv_cache(const std::int32_t* num_blocks, std::int32_t num_groups);
  void bind_kv_cache(const trn_cache_tensor* tensors, std::int32_t num_tensors);
  const char* warm_up();
  void input_buffers(std::int32_t buffer_set, trn_input_buffers* buffers);
  /// `begun` becomes true when the KV events of the batch, if it has any, belong to the step: who fails then has
  /// signalled them.
  void execute(const trn_forward_batch* batch, trn_forward_output* output, bool* begun);
  void wait(std::uint64_t fence);
  void validate(const trn_forward_batch* batch);
  void stats(trn_executor_stats* stats) const;
  void eager_reason(std::int32_t index, const char** reason, std::uint64_t* steps);

  /// The last error, or empty.
  std::string error;
  std::string error_field;
  /// Set by the first FATAL; from then on every call is FATAL.
  bool lost = false;

 private:
  /// C views of one cache group, kept so that the pointers handed out stay valid.
  struct GroupStrings {
    std::vector<const char*> layers;
    std::vector<trn_cache_tensor_spec> tensors;
  };

  /// REFUSED, or where the values of the batch lie.
  const BatchView& check(const trn_forward_batch& batch);
  /// A draft reads rows that the last step of its source has made.
  void check_hidden(const BatchView& view) const;
  void run(const trn_forward_batch& batch, trn_forward_output* output, bool* begun);
  void set_num_blocks(const std::vector<std::int32_t>& num_blocks);

  std::thread::id thread_;
  pid_t process_;
  trn_limits limits_;
  std::unique_ptr<Backend> backend_;
  const Description& description_;
  std::vector<GroupStrings> strings_;
  BatchReader reader_;
  Validator validator_;
  const Core* target_;
  /// Rows of the last step that returned TRN_OK.
  std::int64_t last_num_tokens_ = 0;
  bool bound_ = false;
  bool warm_ = false;
  std::string report_;
  std::uint64_t last_fence_ = 0;
  std::uint64_t done_fence_ = 0;
  std::uint64_t set_fences_[kNumBufferSets] = {};
  bool has_tokens_[kNumBufferSets] = {};
  trn_executor_stats stats_{};
};

}  // namespace trunnion::executor
