// Checks of trn_create_options.
#include "create_options.h"

#include <algorithm>

#include "status.h"

namespace trunnion::executor {
namespace {

void check_limits(const trn_limits& limits) {
  const struct {
    const char* name;
    std::int32_t value;
  } all[] = {{"max_num_tokens", limits.max_num_tokens},
             {"max_num_seqs", limits.max_num_seqs},
             {"max_model_len", limits.max_model_len},
             {"max_logits_rows", limits.max_logits_rows},
             {"block_size", limits.block_size}};
  for (const auto& limit : all) {
    if (limit.value < 1) refuse(limit.name, limit.value, " is not a positive integer");
  }
  if (limits.max_num_seqs > limits.max_num_tokens) {
    refuse("max_num_seqs", limits.max_num_seqs, " is above max_num_tokens ", limits.max_num_tokens,
           ": a decode step needs one token per request");
  }
  if (limits.max_logits_rows > limits.max_num_tokens) {
    refuse("max_logits_rows", limits.max_logits_rows, " is above max_num_tokens ", limits.max_num_tokens);
  }
  if (limits.max_decode_query_len < 0 || limits.max_decode_query_len > limits.max_num_tokens) {
    refuse("max_decode_query_len", limits.max_decode_query_len, " is outside 0 (which means 1) ... max_num_tokens ",
           limits.max_num_tokens);
  }
  if (limits.max_encoder_rows < 0) refuse("max_encoder_rows", limits.max_encoder_rows, " is negative");
}

void check_role(const trn_create_options& options) {
  const bool draft = options.role == TRN_ROLE_DRAFT;
  if (!draft && options.role != TRN_ROLE_TARGET) {
    refuse("role", options.role, " is unknown; choices: ", int{TRN_ROLE_TARGET}, " (target), ", int{TRN_ROLE_DRAFT}, " (draft)");
  }
  if (options.staging != TRN_STAGING_HOST && options.staging != TRN_STAGING_DEVICE) {
    refuse("staging", options.staging, " is unknown; choices: ", int{TRN_STAGING_HOST}, " (host), ", int{TRN_STAGING_DEVICE},
           " (device)");
  }
  if (draft && options.share_with == nullptr) refuse("share_with", "is NULL, a draft needs the executor of its target");
  if (!draft && options.share_with != nullptr) refuse("share_with", "is set, and role is not draft");
  if (!draft && options.draft_model != nullptr && options.keep_hidden == 0) {
    refuse("draft_model", "is '", options.draft_model, "', and keep_hidden is 0: a draft reads what its target keeps");
  }
}

/// What every struct has, however old.
void check_versions(const trn_create_options& options) {
  if (options.abi_version < kOldestAbi || options.abi_version > TRN_ABI_VERSION) {
    refuse("abi_version", options.abi_version, " of the host is not this library's ", TRN_ABI_VERSION, ", nor its oldest, ",
           kOldestAbi);
  }
  if (options.contract_version != TRN_CONTRACT_VERSION) {
    refuse("contract_version", options.contract_version, " of the host is not this library's ", TRN_CONTRACT_VERSION);
  }
  if (!is_whole(options)) {
    refuse("struct_size", options.struct_size, " of options is below ", kOldestOptions, ", or not that of abi_version ",
           options.abi_version);
  }
}

}  // namespace

trn_create_options checked_options(const trn_create_options& given) {
  check_versions(given);
  const trn_create_options options = whole_options(given);
  if (options.model == nullptr) refuse("model", "is NULL");
  if (options.hardware == nullptr) refuse("hardware", "is NULL");
  if (options.dtype == nullptr) refuse("dtype", "is NULL; \"auto\" takes the checkpoint's");
  if (options.tp_size < 1 || options.tp_rank < 0 || options.tp_rank >= options.tp_size) {
    refuse("tp_rank", options.tp_rank, " is outside a group of ", options.tp_size);
  }
  if (options.num_threads < 0 || options.num_threads > TRN_MAX_THREADS) {
    refuse("num_threads", options.num_threads, " is outside 0 (the hardware's choice) ... ", int{TRN_MAX_THREADS});
  }
  check_limits(options.limits);
  check_role(options);
  trn_create_options all = options;
  for (const char** choice : {&all.kv_cache_dtype, &all.weights, &all.activations}) {
    if (*choice == nullptr) *choice = "auto";
  }
  all.limits.max_decode_query_len = std::max(1, all.limits.max_decode_query_len);
  return all;
}

}  // namespace trunnion::executor
