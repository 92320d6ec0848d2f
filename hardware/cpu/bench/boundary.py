"""Times one `execute` across the C boundary with a runner that computes nothing, at several batch sizes."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import tempfile
import timeit
from pathlib import Path

import torch
from safetensors.torch import save_file

from trunnion import registry
from trunnion_host import _api as api
from trunnion_host import library_path

STEPS = 2000
HEADS, HEAD_DIM, HIDDEN, VOCAB = 2, 8, 16, 1024
STUB = '''
"""A CPU whose runner computes nothing: what is left is the boundary and the executor."""
from trunnion_cpu.hardware import CpuHardware
from trunnion.interfaces.runner import Runner
from trunnion.interfaces.runner import Bucket

class StubRunner(Runner):
    rows = {}

    def select(self, counts):
        return Bucket.exact(counts)

    def warm_up(self, report, inputs):
        pass

    def run(self, step, bucket):
        rows = self.rows.get(step.counts.num_logits)
        if rows is None:
            import torch
            rows = self.rows[step.counts.num_logits] = torch.zeros(step.counts.num_logits, 1024)
        return rows, rows

class StubHardware(CpuHardware):
    name = "stub"

    def create_runner(self, model, groups, limits, breaks):
        return StubRunner(model, groups, limits)

HARDWARE = StubHardware
'''


def main(rounds: int) -> dict[str, dict[str, float]]:
    bare = functools.partial(lambda: None)
    floor = min(timeit.repeat(bare, number=200_000, repeat=rounds)) / 200_000 * 1e6
    results = {"bare callable": {"us": floor}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trunnion_stub").mkdir()
        (folder / "trunnion_stub" / "__init__.py").touch()
        (folder / "trunnion_stub" / "hardware.py").write_text(STUB)
        registry.load_hardware_from(folder)
        _write_model(folder)
        for batch in (1, 64, 256):
            results[f"execute, batch {batch}"] = _measure(folder, batch, rounds, floor)
    return results


def _measure(folder: Path, batch: int, rounds: int, floor: float) -> dict[str, float]:
    library = ctypes.CDLL(str(library_path()))
    library.trn_last_error.restype = ctypes.c_char_p
    executor = ctypes.c_void_p()
    options = api.CreateOptions(
        struct_size=ctypes.sizeof(api.CreateOptions),
        abi_version=api.ABI_VERSION,
        contract_version=api.CONTRACT_VERSION,
        model=str(folder).encode(),
        hardware=b"stub",
        dtype=b"float32",
        tp_size=1,
        limits=api.Limits(batch, batch, 64, batch, 16),
    )
    error = ctypes.create_string_buffer(1024)
    status = library.trn_executor_create(ctypes.byref(options), ctypes.byref(executor), error, len(error))
    assert status == api.OK, error.value.decode()
    blocks = (ctypes.c_int32 * 1)(batch + 1)
    assert library.trn_executor_allocate_kv_cache(executor, blocks, 1) == api.OK
    assert library.trn_executor_warm_up(executor, None) == api.OK
    buffers = api.InputBuffers(struct_size=ctypes.sizeof(api.InputBuffers))
    assert library.trn_executor_input_buffers(executor, 0, ctypes.byref(buffers)) == api.OK
    _fill(buffers, batch)
    step = api.ForwardBatch(
        struct_size=ctypes.sizeof(api.ForwardBatch),
        num_tokens=batch,
        num_reqs=batch,
        num_logits=batch,
        num_decodes=batch,
        decode_query_len=1,
        max_query_len=1,
        max_seq_len=1,
        lens_are_exact=1,
    )
    output = api.ForwardOutput(struct_size=ctypes.sizeof(api.ForwardOutput))
    arguments = (executor, ctypes.byref(step), ctypes.byref(output))
    best = float("inf")
    for _ in range(rounds):
        before = _execute_seconds(library, executor)
        for _ in range(STEPS):
            status = library.trn_executor_execute(*arguments)
            assert status == api.OK, library.trn_last_error(executor).decode()
            assert library.trn_executor_wait(executor, ctypes.c_uint64(output.fence)) == api.OK
        best = min(best, (_execute_seconds(library, executor) - before) / STEPS * 1e6)
    library.trn_executor_close(executor)
    return {"us": best, "over floor": best / floor}


def _execute_seconds(library: ctypes.CDLL, executor: ctypes.c_void_p) -> float:
    stats = api.ExecutorStats(struct_size=ctypes.sizeof(api.ExecutorStats))
    assert library.trn_executor_get_stats(executor, ctypes.byref(stats)) == api.OK
    return float(stats.execute_seconds)


def _fill(buffers: api.InputBuffers, batch: int) -> None:
    """A decode step of one-token requests, each in a block of its own."""
    group = buffers.groups[0]
    for row in range(batch):
        buffers.input_ids[row] = row
        buffers.positions[row] = 0
        buffers.query_start_loc[row] = row
        buffers.seq_lens[row] = 1
        buffers.logits_indices[row] = row
        group.block_table[row * 4] = row + 1
        group.slot_mapping[row] = (row + 1) * 16
        group.kv_start[row] = 0
    buffers.query_start_loc[batch] = batch


def _write_model(folder: Path) -> None:
    """One layer, so that the executor has a group; its weights are never used."""
    shapes = {
        "model.embed_tokens": (VOCAB, HIDDEN),
        "model.norm": (HIDDEN,),
        "model.layers.0.input_layernorm": (HIDDEN,),
        "model.layers.0.post_attention_layernorm": (HIDDEN,),
        **{f"model.layers.0.self_attn.{part}_proj": (HEADS * HEAD_DIM, HIDDEN) for part in "qkvo"},
        **{f"model.layers.0.mlp.{part}_proj": (HIDDEN, HIDDEN) for part in ("gate", "up", "down")},
    }
    save_file({f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[2]))))
