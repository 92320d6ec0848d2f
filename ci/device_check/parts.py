"""Parts of a first-day script that are the same on every device: pins, cards of the matrix, a decode step."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from device_check.plain_llama import PlainLlama, Shape, write_model
from device_check.table import NOTED, PASSED, SKIPPED, Table

ROOT = Path(__file__).resolve().parents[2]
MODES = ("whole", "decode", "mixed")
TUNING_SECONDS = 40
"""Of the model that is timed."""


def pins(table: Table, hardware: str) -> None:
    """What is installed against the one table of versions: a difference is named, and no failure."""
    from versions import read_table

    versions = read_table(ROOT)
    wanted = {**versions["hardware"][hardware], "transformers": versions["tests"]["transformers"]}
    for name, pinned in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            table.add("pins", name, NOTED, f"not installed; pinned {pinned}")
            continue
        same = found.partition("+")[0] == pinned
        table.add("pins", name, PASSED if same else NOTED, found if same else f"{found} is not the pinned {pinned}")


def matrix(table: Table, hardware: str, chosen: Sequence[str] | None, only: str | None) -> None:
    """Quick cards against transformers, in a few ways of batching, as far as graphs go and without them."""
    if missing := [name for name in ("transformers", "pytest") if find_spec(name) is None]:
        table.add("matrix", "all cards", SKIPPED, f"{' and '.join(missing)} not installed")
        return
    from tests.matrix.cases import Case, cards
    from tests.matrix.conftest import unsupported
    from tests.matrix.hf_reference import build_reference

    from trunnion.config import DTYPES
    from trunnion.interfaces.runner import Mode

    known = {card.name: card for card in cards() if card.quick and not card.draft and card.pooling is None}
    listed = unsupported(hardware)
    for name in chosen or known:
        if name not in known:
            raise SystemExit(f"unknown card {name!r}; choices: {', '.join(known)}")
        for dtype in ("bfloat16", "float32") if known[name].bf16 else ("float32",):
            if dtype != (only or dtype):
                continue
            with tempfile.TemporaryDirectory() as folder:
                if time.monotonic() > table.ends:
                    table.add("matrix", f"{name} {dtype}", SKIPPED, "the time is used up")
                    continue
                reference = build_reference(known[name], DTYPES[dtype], Path(folder))
                for execution in (Mode.FULL, Mode.PIECEWISE, Mode.EAGER):
                    case = Case(known[name], hardware, dtype, MODES[0], execution)
                    if reasons := [listed[key] for key in case.keys if key in listed]:
                        table.add("matrix", f"{name} {dtype} {execution.value}", SKIPPED, reasons[0])
                        continue
                    table.attempt("matrix", f"{name} {dtype} {execution.value}", partial(_run_card, case, reference))


def decode(hardware: str, shape: Shape, lines: list[str]) -> None:
    """Logits and time of a decode step, against a plain PyTorch loop over the same weights and tokens."""
    import torch
    from tests.matrix.host_double import Chunk, HostDouble

    from trunnion.config import ExecutorConfig
    from trunnion.contract import Limits
    from trunnion.runner.model_executor import ModelExecutor

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        weights = write_model(Path(folder), shape)
        longest = shape.context + 8
        limits = Limits(
            max_num_tokens=shape.requests * shape.context,
            max_num_seqs=shape.requests,
            max_model_len=longest,
            max_logits_rows=shape.requests,
            block_size=16,
        )
        config = ExecutorConfig(
            model=Path(folder), hardware=hardware, limits=limits, dtype="bfloat16", tuning_seconds=TUNING_SECONDS
        )
        executor = ModelExecutor.create(config)
        host = HostDouble(executor, 1 + shape.requests * -(-longest // 16), executor.device)
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(shape.vocab, (shape.requests, longest), generator=generator)
        requests = [host.add(row) for row in tokens.tolist()]
        prefill = shape.context - 1
        host.step([Chunk(request, prefill, (prefill - 1,)) for request in requests])
        ours = torch.cat(host.step([Chunk(request, 1) for request in requests]))
        plain = PlainLlama(weights, shape, executor.device)
        plain.step(tokens[:, :prefill].to(executor.device), 0)
        column = tokens[:, prefill : prefill + 1].to(executor.device)
        theirs = plain.step(column, prefill).float().cpu()
        error = float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())
        lines.append(f"logits differ by {error:.2%}")
        if not error < 0.05:
            raise AssertionError(f"{lines[-1]} (RMS) from plain PyTorch's")
        last = (host.steps - 1) % len(executor.input_buffers())
        wait = torch.get_device_module(executor.device).synchronize
        ours_ms = _milliseconds(lambda: executor.wait(executor.execute_set(last).fence), wait, shape.steps)
        plain_ms = _milliseconds(lambda: plain.step(column, prefill), wait, shape.steps)
        lines.append(f"step {ours_ms:.3f} ms, plain {plain_ms:.3f} ms, ratio {plain_ms / ours_ms:.2f}")
        _count_graphs(executor, host.report, lines)
        executor.close()


def _run_card(case: Any, reference: Any, lines: list[str]) -> None:
    from tests.matrix.bench import Comparison, load_bench
    from tests.matrix.modes import MODES as WAYS

    from trunnion.interfaces.runner import Mode

    bench = load_bench(case.card, case.hardware, case.dtype, reference, execution=case.execution)
    try:
        for mode in MODES:
            bench.host.reset(zlib.crc32(mode.encode()))
            seen = Comparison(bench)
            WAYS[mode](bench, seen)
            seen.check()
            lines.append(f"{mode} {len(seen.errors)} rows")
        _count_graphs(bench.executor, bench.host.report, lines, replays=case.execution is not Mode.EAGER)
    finally:
        bench.close()


def _count_graphs(executor: Any, report: Any, lines: list[str], *, replays: bool = True) -> None:
    """Every step within the limits replays, or none does."""
    counters = executor.counters
    eager = sum(counters.eager.values())
    lines.append(f"{len(report.captured)} captured, {counters.replays} replayed, {eager} eager")
    lines += [f"{what} missing: {why}" for what, why in report.missing.items() if what == "FlashInfer"]
    lines += [f"{what} on the reference: {why}" for what, why in report.on_reference.items() if what.endswith(" group")]
    lines += [f"{kernel} tuned: {what}" for kernel, what in report.tuned.items()]
    if (untuned := len(report.untuned)) and report.tuned:
        lines.append(f"{untuned} lines on what is untuned")
    if replays and (eager or not counters.replays or not report.captured):
        raise AssertionError(f"{lines[-1]}; {dict(counters.eager)}")


def _milliseconds(step: Callable[[], object], wait: Callable[[], object], count: int) -> float:
    """The median of `count` steps, each waited for, after two more."""
    times = []
    for _ in range(count + 2):
        started = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - started)
    return sorted(times[2:])[count // 2] * 1e3
