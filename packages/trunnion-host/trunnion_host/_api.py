"""contract.h as ctypes sees it: structs and constants; a test holds both against each other."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

ABI_VERSION = 6
CONTRACT_VERSION = 3

OK, REFUSED, FAILED, FATAL = range(4)
CACHE_FULL, CACHE_WINDOW, CACHE_MLA, CACHE_RECURRENT = range(4)
OUTPUT_LOGITS, OUTPUT_POOLED = range(2)
FIELD_KV_CSR, FIELD_NUM_ACCEPTED, FIELD_HIDDEN_INDICES, FIELD_ENCODER_INDICES = 1, 2, 4, 8
ROLE_TARGET, ROLE_DRAFT = range(2)
STAGING_HOST, STAGING_DEVICE = range(2)


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Limits(ctypes.Structure):
    """trn_limits"""

    _fields_ = [
        ("max_num_tokens", c_int32),
        ("max_num_seqs", c_int32),
        ("max_model_len", c_int32),
        ("max_logits_rows", c_int32),
        ("block_size", c_int32),
        ("max_decode_query_len", c_int32),
        ("max_encoder_rows", c_int32),
    ]


class CreateOptions(ctypes.Structure):
    """trn_create_options"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("abi_version", c_uint32),
        ("contract_version", c_uint32),
        ("reserved", c_uint32),
        ("model", c_char_p),
        ("hardware", c_char_p),
        ("dtype", c_char_p),
        ("device_index", c_int32),
        ("tp_rank", c_int32),
        ("tp_size", c_int32),
        ("show_progress", c_int32),
        ("tp_init_method", c_char_p),
        ("limits", Limits),
        ("role", c_int32),
        ("keep_hidden", c_int32),
        ("staging", c_int32),
        ("reserved2", c_int32),
        ("share_with", c_void_p),
        ("kv_cache_dtype", c_char_p),
        ("draft_model", c_char_p),
        ("port", c_char_p),
        ("num_threads", c_int32),
        ("reserved3", c_int32),
        ("weights", c_char_p),
        ("activations", c_char_p),
    ]


class ModelInfo(ctypes.Structure):
    """trn_model_info"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("required_fields", c_uint32),
        ("vocab_size", c_int32),
        ("num_groups", c_int32),
        ("accepts_upper_bound_lens", c_int32),
        ("num_buffer_sets", c_int32),
        ("output_kind", c_int32),
        ("output_width", c_int32),
        ("num_position_axes", c_int32),
        ("encoder_patch_dim", c_int32),
        ("accepts_prefix_levels", c_int32),
        ("needs_whole_prompts", c_int32),
        ("num_token_types", c_int32),
    ]


class CacheTensorSpec(ctypes.Structure):
    """trn_cache_tensor_spec"""

    _fields_ = [
        ("name", c_char_p),
        ("shape", POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("bytes_per_block", c_int64),
    ]


class CacheGroupSpec(ctypes.Structure):
    """trn_cache_group_spec"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("num_layers", c_int32),
        ("block_size", c_int32),
        ("max_blocks_per_seq", c_int32),
        ("window", c_int32),
        ("num_tensors", c_int32),
        ("layers", POINTER(c_char_p)),
        ("tensors", POINTER(CacheTensorSpec)),
        ("bytes_per_block", c_int64),
    ]


class MemoryProfile(ctypes.Structure):
    """trn_memory_profile"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("weights", c_int64),
        ("activations", c_int64),
        ("graphs", c_int64),
        ("workspaces", c_int64),
    ]


class CacheTensor(ctypes.Structure):
    """trn_cache_tensor"""

    _fields_ = [("group", c_int32), ("layer", c_int32), ("name", c_char_p), ("tensor", DLTensor)]


GROUP_FIELDS = (
    "slot_mapping",
    "block_table",
    "kv_start",
    "kv_indptr",
    "kv_indices",
    "kv_last_page_len",
    "state_indices",
    "has_initial_state",
    "num_accepted",
)
BATCH_FIELDS = (
    "input_ids",
    "positions",
    "query_start_loc",
    "seq_lens",
    "logits_indices",
    "hidden_indices",
    "encoder_indices",
)
PREFIX_FIELDS = ("prefix_indptr", "prefix_lens")
TYPE_FIELDS = ("token_type_ids",)


class GroupBuffers(ctypes.Structure):
    """trn_group_buffers"""

    _fields_ = [(name, POINTER(c_int32)) for name in GROUP_FIELDS]


class InputBuffers(ctypes.Structure):
    """trn_input_buffers"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("num_groups", c_int32),
        *((name, POINTER(c_int32)) for name in BATCH_FIELDS),
        ("groups", POINTER(GroupBuffers)),
        ("logits", POINTER(c_float)),
        ("pooled", POINTER(c_float)),
        ("sampled_ids", POINTER(c_int32)),
        *((name, POINTER(c_int32)) for name in PREFIX_FIELDS),
        *((name, POINTER(c_int32)) for name in TYPE_FIELDS),
    ]


class GroupBatch(ctypes.Structure):
    """trn_group_batch"""

    _fields_ = [(name, POINTER(DLTensor)) for name in GROUP_FIELDS]


class EncoderItem(ctypes.Structure):
    """trn_encoder_item"""

    _fields_ = [
        ("pixels", POINTER(DLTensor)),
        ("grid", c_int32 * 3),
        ("first_row", c_int32),
        ("num_rows", c_int32),
    ]


class KvEvents(ctypes.Structure):
    """trn_kv_events"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("num_layers", c_int32),
        ("kv_ready", POINTER(c_void_p)),
        ("kv_written", POINTER(c_void_p)),
        ("ready_timeout_ns", c_int64),
    ]


class ForwardBatch(ctypes.Structure):
    """trn_forward_batch"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("buffer_set", c_int32),
        ("num_tokens", c_int32),
        ("num_reqs", c_int32),
        ("num_logits", c_int32),
        ("num_decodes", c_int32),
        ("decode_query_len", c_int32),
        ("max_query_len", c_int32),
        ("max_seq_len", c_int32),
        ("lens_are_exact", c_int32),
        ("hidden_source", c_int32),
        ("num_encoder_items", c_int32),
        *((name, POINTER(DLTensor)) for name in BATCH_FIELDS),
        ("groups", POINTER(GroupBatch)),
        ("num_groups", c_int32),
        ("encoder_items", POINTER(EncoderItem)),
        ("kv_events", POINTER(KvEvents)),
        ("num_prefixes", c_int32),
        *((name, POINTER(DLTensor)) for name in PREFIX_FIELDS),
        ("has_token_types", c_int32),
        *((name, POINTER(DLTensor)) for name in TYPE_FIELDS),
    ]


class ForwardOutput(ctypes.Structure):
    """trn_forward_output"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("num_logits", c_int32),
        ("logits", POINTER(c_float)),
        ("fence", c_uint64),
        ("pooled", POINTER(c_float)),
    ]


class ExecutorStats(ctypes.Structure):
    """trn_executor_stats"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("executes", c_uint64),
        ("refused", c_uint64),
        ("failed", c_uint64),
        ("gil_entries", c_uint64),
        ("step_gil_entries", c_uint64),
        ("copied_tensors", c_uint64),
        ("execute_seconds", c_double),
        ("gil_wait_seconds", c_double),
        ("replays", c_uint64),
        ("eager_steps", c_uint64),
        ("padded_tokens", c_uint64),
        ("plan_calls", c_uint64),
        ("plan_seconds", c_double),
        ("python_seconds", c_double),
        ("num_eager_reasons", c_uint64),
        ("last_gil_begin_ns", c_int64),
        ("last_gil_end_ns", c_int64),
        ("last_python_begin_ns", c_int64),
        ("last_python_end_ns", c_int64),
        ("last_plan_begin_ns", c_int64),
        ("last_plan_end_ns", c_int64),
        ("kv_event_steps", c_uint64),
        ("prefix_level_steps", c_uint64),
        ("token_type_steps", c_uint64),
    ]


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "DLDevice": DLDevice,
    "DLDataType": DLDataType,
    "DLTensor": DLTensor,
    "trn_limits": Limits,
    "trn_create_options": CreateOptions,
    "trn_model_info": ModelInfo,
    "trn_cache_tensor_spec": CacheTensorSpec,
    "trn_cache_group_spec": CacheGroupSpec,
    "trn_memory_profile": MemoryProfile,
    "trn_cache_tensor": CacheTensor,
    "trn_group_buffers": GroupBuffers,
    "trn_input_buffers": InputBuffers,
    "trn_group_batch": GroupBatch,
    "trn_encoder_item": EncoderItem,
    "trn_kv_events": KvEvents,
    "trn_forward_batch": ForwardBatch,
    "trn_forward_output": ForwardOutput,
    "trn_executor_stats": ExecutorStats,
}
"""C name -> mirror, for every struct of the header."""
