#include "serving/host_options.h"

#include <stdexcept>

namespace trunnion::serving {
namespace {

void require(bool holds, const std::string& text) {
  if (!holds) throw std::invalid_argument(text);
}

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

HostOptions::HostOptions(const trn_host_options& options)
    : queue_size(options.queue_size),
      prefix_caching(options.prefix_caching != 0),
      exit_on_fatal(options.exit_on_fatal != 0),
      overlap(options.overlap != 0),
      watchdog_s(options.watchdog_s),
      kv_blocks(options.kv_blocks),
      kv_bytes(options.kv_bytes),
      trace_file(text_of(options.trace_file)),
      kv_events_of(options.kv_events_of),
      kv_events_context(options.kv_events_context),
      num_drafts(options.num_drafts),
      prefix_levels(options.prefix_levels),
      executor(options.executor) {
  require(queue_size >= 1, "queue_size is " + std::to_string(queue_size) + ", expected at least 1");
  require(watchdog_s >= 0, "watchdog_s is " + std::to_string(watchdog_s) + ", expected 0 (off) or more");
  require(kv_blocks == 0 || kv_blocks >= 2,
          "kv_blocks is " + std::to_string(kv_blocks) + ", expected 0 or at least 2: block 0 is reserved");
  require(kv_bytes >= 0, "kv_bytes is " + std::to_string(kv_bytes) + ", expected 0 or more");
  require(executor.limits.max_num_tokens >= 1 && executor.limits.max_num_seqs >= 1 &&
              executor.limits.max_model_len >= 2 && executor.limits.max_logits_rows >= 1 &&
              executor.limits.block_size >= 1,
          "limits: each must be at least 1, and max_model_len at least 2");
  require(kv_events_of == nullptr || executor.tp_size <= 1,
          "kv_events_of: the other ranks do not see the events of this process; tp_size is " +
              std::to_string(executor.tp_size) + ", expected 1");
  require(prefix_levels >= 0, "prefix_levels is " + std::to_string(prefix_levels) + ", expected 0 (off) or more");
  read_drafts();
  if (options.num_blocks != nullptr) {
    num_blocks.assign(options.num_blocks, options.num_blocks + options.num_groups);
  }
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    require(num_blocks[g] >= 2, "num_blocks[" + std::to_string(g) + "] is " + std::to_string(num_blocks[g]) +
                                    ", expected at least 2: block 0 is reserved");
  }
  own_texts();
}

void HostOptions::own_texts() {
  for (const char** text : {&executor.model, &executor.hardware, &executor.dtype, &executor.kv_cache_dtype,
                            &executor.draft_model, &executor.port, &executor.weights, &executor.activations,
                            &executor.tp_init_method}) {
    if (*text != nullptr) *text = texts_.emplace_front(*text).c_str();
  }
}

void HostOptions::read_drafts() {
  require(num_drafts >= 0 && num_drafts <= TRN_HOST_MAX_DRAFTS,
          "num_drafts is " + std::to_string(num_drafts) + ", expected 0 ... " + std::to_string(TRN_HOST_MAX_DRAFTS));
  require(num_drafts > 0 || executor.draft_model == nullptr,
          "draft_model is '" + text_of(executor.draft_model) + "', and num_drafts is 0: expected at least 1");
  if (num_drafts == 0) return;
  const std::string given = "num_drafts is " + std::to_string(num_drafts);
  require(!overlap, given + " with overlap: which rows the next step has is known only when this one is verified");
  require(executor.tp_size == 1, given + " with tp_size " + std::to_string(executor.tp_size) +
                                     ": the other ranks' workers load no draft");
  require(executor.limits.max_num_tokens > num_drafts,
          given + ", so that a request has " + std::to_string(1 + num_drafts) + " rows, max_num_tokens is " +
              std::to_string(executor.limits.max_num_tokens));
  executor.limits.max_decode_query_len = 1 + num_drafts;
  executor.keep_hidden = 1;
}

}  // namespace trunnion::serving
