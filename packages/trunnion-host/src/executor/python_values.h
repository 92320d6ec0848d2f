// Between C++ structs and what host_entry takes and returns; a part of python_bridge.cc, which includes Python.h before it.
#pragma once

#include <vector>

#include "python_support.h"

namespace trunnion::executor {

inline CacheTensor read_tensor(const Reader& from) {
  CacheTensor tensor;
  tensor.name = text_of(from.at("name"));
  PyObject* shape = from.at("shape");
  for (Py_ssize_t i = 0; i < PyList_Size(shape); ++i) tensor.shape.push_back(PyLong_AsLongLong(PyList_GetItem(shape, i)));
  tensor.dtype = {static_cast<std::uint8_t>(from.integer("code")), static_cast<std::uint8_t>(from.integer("bits")), 1};
  tensor.bytes_per_block = from.integer("bytes_per_block");
  return tensor;
}

inline CacheGroup read_group(const Reader& from) {
  CacheGroup group;
  group.kind = static_cast<trn_cache_kind>(from.integer("kind"));
  group.block_size = from.int32("block_size");
  group.max_blocks_per_seq = from.int32("max_blocks_per_seq");
  group.window = from.int32("window");
  PyObject* layers = from.at("layers");
  for (Py_ssize_t i = 0; i < PyList_Size(layers); ++i) group.layers.push_back(text_of(PyList_GetItem(layers, i)));
  PyObject* tensors = from.at("tensors");
  for (Py_ssize_t i = 0; i < PyList_Size(tensors); ++i) {
    group.tensors.push_back(read_tensor({PyList_GetItem(tensors, i)}));
  }
  return group;
}

inline Description read_description(const Reader& from) {
  Description description;
  const std::int64_t version = from.integer("contract_version");
  if (version != TRN_CONTRACT_VERSION) {
    refuse("contract_version", version, " of the installed trunnion is not this library's ", TRN_CONTRACT_VERSION);
  }
  if (from.integer("num_buffer_sets") != kNumBufferSets) throw StatusError(TRN_FATAL, "", "not two buffer sets");
  description.vocab_size = from.int32("vocab_size");
  description.output_kind = static_cast<trn_output_kind>(from.integer("output_kind"));
  description.output_width = from.int32("output_width");
  description.num_position_axes = from.int32("num_position_axes");
  description.encoder_patch_dim = from.int32("encoder_patch_dim");
  description.required_fields = static_cast<std::uint32_t>(from.integer("required_fields"));
  description.accepts_upper_bound_lens = from.integer("accepts_upper_bound_lens") != 0;
  description.accepts_prefix_levels = from.integer("accepts_prefix_levels") != 0;
  description.needs_whole_prompts = from.integer("needs_whole_prompts") != 0;
  description.num_token_types = from.int32("num_token_types");
  description.synchronous = from.integer("synchronous") != 0;
  description.cache_device = static_cast<DLDeviceType>(from.integer("cache_device"));
  description.profile.weights = from.integer("weights");
  description.profile.activations = from.integer("activations");
  description.profile.graphs = from.integer("graphs");
  description.profile.workspaces = from.integer("workspaces");
  PyObject* groups = from.at("groups");
  for (Py_ssize_t i = 0; i < PyList_Size(groups); ++i) description.groups.push_back(read_group({PyList_GetItem(groups, i)}));
  return description;
}

inline BufferSet read_buffer_set(const Reader& from, std::size_t num_groups) {
  BufferSet set;
  for (std::size_t g = 0; g < num_groups; ++g) {
    const auto field = [&](const char* name) { return from.pointer<std::int32_t*>(concat("groups[", g, "].", name)); };
    set.groups.push_back({field("slot_mapping"), field("block_table"), field("kv_start"), field("kv_indptr"),
                          field("kv_indices"), field("kv_last_page_len"), field("state_indices"),
                          field("has_initial_state"), field("num_accepted")});
  }
  set.inputs.num_groups = static_cast<std::int32_t>(num_groups);
  set.inputs.input_ids = from.pointer<std::int32_t*>("input_ids");
  set.inputs.positions = from.pointer<std::int32_t*>("positions");
  set.inputs.query_start_loc = from.pointer<std::int32_t*>("query_start_loc");
  set.inputs.seq_lens = from.pointer<std::int32_t*>("seq_lens");
  set.inputs.logits_indices = from.pointer<std::int32_t*>("logits_indices");
  set.inputs.hidden_indices = from.pointer<std::int32_t*>("hidden_indices");
  set.inputs.encoder_indices = from.pointer<std::int32_t*>("encoder_indices");
  set.inputs.logits = from.pointer<float*>("logits");
  set.inputs.pooled = from.pointer<float*>("pooled");
  set.inputs.sampled_ids = from.pointer<std::int32_t*>("sampled_ids");
  set.inputs.prefix_indptr = from.pointer<std::int32_t*>("prefix_indptr");
  set.inputs.prefix_lens = from.pointer<std::int32_t*>("prefix_lens");
  set.inputs.token_type_ids = from.pointer<std::int32_t*>("token_type_ids");
  return set;
}

/// `target` is what `create` returned for the executor to share with, or None.
inline Ref options_dict(const trn_create_options& options, PyObject* target) {
  const trn_limits& limits = options.limits;
  return Ref(Py_BuildValue(
      "{s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s,s:z,s:z,s:i,s:s,s:s,s:O}", "model", options.model, "hardware", options.hardware,
      "dtype", options.dtype, "device_index", options.device_index, "tp_rank", options.tp_rank, "tp_size",
      options.tp_size, "show_progress", options.show_progress, "tp_init_method",
      options.tp_init_method == nullptr ? "" : options.tp_init_method, "max_num_tokens", limits.max_num_tokens,
      "max_num_seqs", limits.max_num_seqs, "max_model_len", limits.max_model_len, "max_logits_rows",
      limits.max_logits_rows, "block_size", limits.block_size,
      "max_decode_query_len", limits.max_decode_query_len, "max_encoder_rows", limits.max_encoder_rows, "role",
      options.role, "staging", options.staging, "keep_hidden", options.keep_hidden,
      "kv_cache_dtype", options.kv_cache_dtype, "draft_model", options.draft_model, "port", options.port, "num_threads",
      options.num_threads, "weights", options.weights, "activations", options.activations, "share_with", target));
}

/// Tell `executor` where the slots lie and which functions take them; what it returns, or NULL.
inline Ref bind_kv_events(PyObject* executor, KvEvents& events) {
  Ref sets(PyList_New(0));
  for (std::int32_t set = 0; set < KvEvents::kNumSets; ++set) {
    Ref addresses(PyList_New(0));
    for (std::size_t layer = 0; layer < events.num_layers(); ++layer) {
      PyList_Append(addresses.get(), Ref(PyLong_FromVoidPtr(&events.slot(set, layer))).get());
    }
    PyList_Append(sets.get(), addresses.get());
  }
  const Ref wait(PyLong_FromVoidPtr(reinterpret_cast<void*>(&wait_kv_slot)));
  const Ref signal(PyLong_FromVoidPtr(reinterpret_cast<void*>(&signal_kv_slot)));
  return Ref(PyObject_CallMethod(executor, "bind_kv_events", "OOO", wait.get(), signal.get(), sets.get()));
}

/// A tensor of the host's as torch.from_dlpack takes it: the memory stays the host's, the description is ours.
struct LentTensor {
  DLManagedTensor managed{};
  std::vector<std::int64_t> shape;
};

inline Ref lent_capsule(const DLTensor& tensor) {
  auto* lent = new LentTensor;
  lent->shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  lent->managed.dl_tensor = tensor;
  lent->managed.dl_tensor.shape = lent->shape.data();
  lent->managed.dl_tensor.strides = nullptr;
  lent->managed.manager_ctx = lent;
  lent->managed.deleter = [](DLManagedTensor* self) { delete static_cast<LentTensor*>(self->manager_ctx); };
  PyObject* capsule = PyCapsule_New(&lent->managed, "dltensor", [](PyObject* self) {
    // A consumer renames what it took over.
    if (!PyCapsule_IsValid(self, "dltensor")) return;
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
    managed->deleter(managed);
  });
  if (capsule == nullptr) delete lent;
  return Ref(capsule);
}

/// What host_entry's step takes for the images of a step.
inline Ref image_list(std::span<const trn_encoder_item> images) {
  Ref list(PyList_New(0));
  for (const trn_encoder_item& image : images) {
    const Ref pixels = lent_capsule(*image.pixels);
    const Ref item(Py_BuildValue("(O(iii)ii)", pixels.get(), image.grid[0], image.grid[1], image.grid[2], image.first_row,
                                 image.num_rows));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return Ref();
  }
  return list;
}

}  // namespace trunnion::executor
