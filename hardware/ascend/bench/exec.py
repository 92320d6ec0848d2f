"""Times the host's share of telling a full graph its lengths.

A graph of 32 layers of attention is replayed; each replay issues 32 task updates. Timed is what the host does until all
of it is enqueued: the plan, the launch, and each update. Where there is no NPU the device is simulated. It does nothing
meanwhile, and what its rules take is left out, so that what remains is this package's and torch_npu's own work. What
CANN does for an update, its tiling above all, is not in the figures: they are no figures of a device.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "simulator"))

from ascend_simulator import install, is_needed  # noqa: E402

SIMULATION = install() if is_needed() else None

import torch  # noqa: E402

from trunnion.contract import BatchCounts, BatchTensors, GroupTensors  # noqa: E402
from trunnion.interfaces.attention import AttentionSpec, StepInputs  # noqa: E402
from trunnion_ascend.attention import FusedAttentionGroup  # noqa: E402
from trunnion_ascend.capture import NpuCapture, NpuSegment  # noqa: E402
from trunnion_ascend.task_updates import CallsAtOnce  # noqa: E402

DEVICE = torch.device("npu", 0)
LAYERS, SEQ_LEN, BLOCK_SIZE, NUM_BLOCKS = 32, 300, 128, 8
BATCHES = (1, 32, 256)
REPLAYS = 5
"""Of a round."""
SPEC = AttentionSpec(num_qo_heads=2, num_kv_heads=1, head_dim=64, scale=0.125, dtype=torch.bfloat16)


def decode_of(batch: int) -> StepInputs:
    """A decode of requests of SEQ_LEN tokens each; all of them share their blocks."""

    def made(*values: list[int]) -> torch.Tensor:
        return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.int32)

    blocks = [index % NUM_BLOCKS for index in range(-(-SEQ_LEN // BLOCK_SIZE))]
    group = GroupTensors(
        slot_mapping=made([SEQ_LEN % BLOCK_SIZE] * batch),
        block_table=made([blocks] * batch).view(batch, -1),
        kv_start=made([0] * batch),
    )
    host = BatchTensors(
        input_ids=made([0] * batch),
        positions=made([SEQ_LEN - 1] * batch),
        query_start_loc=made(list(range(batch + 1))),
        seq_lens=made([SEQ_LEN] * batch),
        logits_indices=made([]),
        groups=(group,),
    )
    fields = "slot_mapping", "block_table", "kv_start"
    on_device = BatchTensors(
        **{name: getattr(host, name).to(DEVICE) for name in ("input_ids", "positions", "query_start_loc", "seq_lens")},
        logits_indices=host.logits_indices,
        groups=(GroupTensors(**{name: getattr(group, name).to(DEVICE) for name in fields}),),
    )
    counts = BatchCounts(num_tokens=batch, num_reqs=batch, num_decodes=batch, max_query_len=1, max_seq_len=SEQ_LEN)
    return StepInputs(counts, host, on_device, in_full_graph=True)


class Layers:
    """LAYERS layers of one group, captured; with updates, or with the lengths of the capture for ever."""

    def __init__(self, batch: int, *, updated: bool) -> None:
        self.step = decode_of(batch)
        self.group = FusedAttentionGroup(SPEC, LAYERS, DEVICE)
        shape = NUM_BLOCKS, BLOCK_SIZE, SPEC.num_kv_heads, SPEC.head_dim
        cache = torch.zeros(shape, dtype=SPEC.dtype, device=DEVICE)
        self.group.bind_kv_cache(0, [{"k_cache": cache, "v_cache": cache.clone()} for _ in range(LAYERS)])
        self.rows = torch.zeros(batch, SPEC.num_qo_heads, SPEC.head_dim, dtype=SPEC.dtype, device=DEVICE)
        self.plan()
        self._forward()
        capture = NpuCapture(DEVICE)
        self.group.tasks = capture.tasks if updated else CallsAtOnce()
        capture.begin()
        self._forward()
        self.graph: NpuSegment = capture.end()

    def plan(self) -> None:
        """Once per step, from the host's copies."""
        self.group.plan(self.step)

    def _forward(self) -> None:
        q = self.rows
        for layer in range(LAYERS):
            q = self.group.run(layer, q, self.rows[:, :1], self.rows[:, :1])


def simulated_seconds() -> float:
    """What the simulation took so far."""
    return 0.0 if SIMULATION is None else SIMULATION.seconds


def microseconds(call: Callable[[], None], rounds: int) -> float:
    """The quickest of calls that enqueue, on a device that does not begin before the last one has returned."""
    times = []
    for _ in range(REPLAYS * rounds):
        torch.npu.synchronize()
        idle: AbstractContextManager[None] = nullcontext() if SIMULATION is None else SIMULATION.late()
        with idle:
            started = time.perf_counter() - simulated_seconds()
            call()
            times.append(time.perf_counter() - simulated_seconds() - started)
    return min(times) * 1e6


def figures(batch: int, rounds: int) -> dict[str, float]:
    """Microseconds of the host per step."""
    updated, fixed = Layers(batch, updated=True), Layers(batch, updated=False)
    launch, replay = microseconds(fixed.graph.replay, rounds), microseconds(updated.graph.replay, rounds)
    return {
        "plan us": microseconds(updated.plan, rounds),
        "launch us": launch,
        f"launch and {LAYERS} updates us": replay,
        "each update us": (replay - launch) / LAYERS,
    }


def main(rounds: int) -> dict[str, object]:
    """The device, and rows of figures."""
    name = torch.npu.get_device_name()
    with torch.inference_mode():
        rows = {f"{LAYERS} layers updated, batch {batch}": figures(batch, rounds) for batch in BATCHES}
    return {"device": name if SIMULATION is None else f"simulated {name}, no figures of a device", "rows": rows}


if __name__ == "__main__":
    # torch_npu prints as well: this line is the last.
    print("\n" + json.dumps(main(int(sys.argv[2]))))
