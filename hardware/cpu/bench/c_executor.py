"""An executor behind the C boundary, driven step by step from Python: what the boundary's benchmarks share."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from trunnion_host import _api as api
from trunnion_host import library_path

HEADS, HEAD_DIM, HIDDEN, VOCAB = 2, 8, 16, 16
"""A vocabulary so small that copying logits out is not what is measured."""
BLOCK_SIZE = 16


def write_model(folder: Path, num_layers: int, max_model_len: int) -> None:
    """A Llama whose weights are never used; it gives the executor its groups."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    for index in range(num_layers):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.{name}_layernorm": (HIDDEN,) for name in ("input", "post_attention")}
        shapes |= {f"{layer}.self_attn.{part}_proj": (HEADS * HEAD_DIM, HIDDEN) for part in "qkvo"}
        shapes |= {f"{layer}.mlp.{part}_proj": (HIDDEN, HIDDEN) for part in ("gate", "up", "down")}
    save_file({f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "max_position_embeddings": max_model_len,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))


class CExecutor:
    """One executor, warmed up, whose buffer set 0 holds a decode step of `batch` requests of `seq_len` tokens."""

    def __init__(self, folder: Path, hardware: str, batch: int, seq_len: int, max_model_len: int) -> None:
        self._library = ctypes.CDLL(str(library_path()))
        self._library.trn_last_error.restype = ctypes.c_char_p
        self._executor = ctypes.c_void_p()
        options = api.CreateOptions(
            struct_size=ctypes.sizeof(api.CreateOptions),
            abi_version=api.ABI_VERSION,
            contract_version=api.CONTRACT_VERSION,
            model=str(folder).encode(),
            hardware=hardware.encode(),
            dtype=b"float32",
            tp_size=1,
            limits=api.Limits(batch, batch, max_model_len, batch, BLOCK_SIZE),
        )
        error = ctypes.create_string_buffer(1024)
        status = self._library.trn_executor_create(
            ctypes.byref(options), ctypes.byref(self._executor), error, len(error)
        )
        assert status == api.OK, error.value.decode()
        blocks_each = -(-seq_len // BLOCK_SIZE)
        blocks = (ctypes.c_int32 * 1)(batch * blocks_each + 1)
        self._check(self._library.trn_executor_allocate_kv_cache(self._executor, blocks, 1))
        self._check(self._library.trn_executor_warm_up(self._executor, None))
        info = api.ModelInfo(struct_size=ctypes.sizeof(api.ModelInfo))
        self._check(self._library.trn_executor_model_info(self._executor, ctypes.byref(info)))
        buffers = api.InputBuffers(struct_size=ctypes.sizeof(api.InputBuffers))
        self._check(self._library.trn_executor_input_buffers(self._executor, 0, ctypes.byref(buffers)))
        has_csr = bool(info.required_fields & api.FIELD_KV_CSR)
        _fill(buffers, batch, seq_len, -(-max_model_len // BLOCK_SIZE), has_csr)
        step = api.ForwardBatch(
            struct_size=ctypes.sizeof(api.ForwardBatch),
            num_tokens=batch,
            num_reqs=batch,
            num_logits=batch,
            num_decodes=batch,
            decode_query_len=1,
            max_query_len=1,
            max_seq_len=seq_len,
            lens_are_exact=1,
        )
        self._output = api.ForwardOutput(struct_size=ctypes.sizeof(api.ForwardOutput))
        self._step = step
        self._arguments = (self._executor, ctypes.byref(step), ctypes.byref(self._output))

    def execute(self, steps: int) -> float:
        """Seconds per step inside `trn_executor_execute`, as the library counts them."""
        before = self._execute_seconds()
        for _ in range(steps):
            self._check(self._library.trn_executor_execute(*self._arguments))
            self._check(self._library.trn_executor_wait(self._executor, ctypes.c_uint64(self._output.fence)))
        return (self._execute_seconds() - before) / steps

    def close(self) -> None:
        """Close the executor; it cannot be used any more."""
        self._library.trn_executor_close(self._executor)

    def _execute_seconds(self) -> float:
        stats = api.ExecutorStats(struct_size=ctypes.sizeof(api.ExecutorStats))
        self._check(self._library.trn_executor_get_stats(self._executor, ctypes.byref(stats)))
        return float(stats.execute_seconds)

    def _check(self, status: int) -> None:
        assert status == api.OK, self._library.trn_last_error(self._executor).decode()


def _fill(buffers: api.InputBuffers, batch: int, seq_len: int, width: int, has_csr: bool) -> None:
    """Each request in blocks of its own."""
    group = buffers.groups[0]
    blocks_each = -(-seq_len // BLOCK_SIZE)
    for row in range(batch):
        first = 1 + row * blocks_each
        buffers.input_ids[row] = row % VOCAB
        buffers.positions[row] = seq_len - 1
        buffers.query_start_loc[row] = row
        buffers.seq_lens[row] = seq_len
        buffers.logits_indices[row] = row
        for column in range(blocks_each):
            group.block_table[row * width + column] = first + column
            if has_csr:
                group.kv_indices[row * blocks_each + column] = first + column
        group.slot_mapping[row] = (first + (seq_len - 1) // BLOCK_SIZE) * BLOCK_SIZE + (seq_len - 1) % BLOCK_SIZE
        group.kv_start[row] = 0
        if has_csr:
            group.kv_indptr[row] = row * blocks_each
            group.kv_last_page_len[row] = (seq_len - 1) % BLOCK_SIZE + 1
    buffers.query_start_loc[batch] = batch
    if has_csr:
        group.kv_indptr[batch] = batch * blocks_each
