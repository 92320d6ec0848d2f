"""What trunnion-cuda does on this machine's GPU, in one table and at most five minutes: `python ci/gpu_check.py`.

Needs this checkout and torch, no internet and nothing installed beside it. Runs on whatever torch is found and names
what differs from `ci/versions.toml`; uses FlashInfer, Triton and transformers where they are, and says what it leaves
out without them. Exit status: 0, 1 if something failed, 2 if there is no GPU. `--simulated` runs the same over the
simulated device of the package's tests, which tries the script and proves no device.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ci", "packages/trunnion", "models", "hardware/cuda", "tests")
SIMULATOR = "hardware/cuda/simulator"
SECONDS = 270
"""After so many no other part is begun."""
GRACE = 30
"""A part that takes so many more ends the process."""
TUNING_SECONDS = 40
"""Of the model that is timed."""
MODES = ("whole", "decode", "mixed")
PASSED, FAILED, SKIPPED, NOTED = "passed", "FAILED", "skipped", "noted"


@dataclass
class Table:
    """The rows found so far; each is printed when it is known."""

    ends: float
    rows: list[dict[str, str]] = field(default_factory=list)

    def add(self, part: str, what: str, result: str, detail: str = "") -> None:
        self.rows.append({"part": part, "what": what, "result": result, "detail": detail})
        print(f"{part}: {what}: {result}{detail and f', {detail}'}", flush=True)

    def attempt(self, part: str, what: str, work: Callable[[list[str]], None]) -> None:
        """A row for what `work` does; the lines it adds to the list become the detail. Without time it is skipped."""
        if time.monotonic() >= self.ends:
            self.add(part, what, SKIPPED, "the time is used up")
            return
        lines: list[str] = []
        try:
            work(lines)
        except Exception as error:  # the other parts are worth knowing all the same
            self.add(part, what, FAILED, f"{type(error).__name__}: {error}".splitlines()[0][:300])
        else:
            self.add(part, what, PASSED, ", ".join(lines))

    def text(self) -> str:
        columns = ("part", "what", "result", "detail")
        widths = [max(len(row[name]) for row in self.rows) for name in columns]
        return "\n".join(
            "  ".join(row[name].ljust(width) for name, width in zip(columns, widths, strict=True)).rstrip()
            for row in self.rows
        )


@dataclass(frozen=True)
class Shape:
    """Of the model that decodes: its sizes, requests and cached tokens each."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    requests: int
    context: int
    steps: int


LARGE = Shape(2048, 16, 16, 8, 128, 5632, 32000, 8, 512, 50)
SMALL = Shape(64, 2, 4, 2, 64, 96, 131, 3, 20, 2)
"""On a simulated device, which takes long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="ci/gpu_check.py", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--card", action="append", help="only this card of the matrix; may be repeated")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="only this dtype of the matrix")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"begin nothing after these; default {SECONDS}")
    parser.add_argument("--without-flashinfer", action="store_true", help="as if FlashInfer were not installed")
    parser.add_argument("--simulated", action="store_true", help="run over the simulated device, for tests")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
    if find_spec("torch") is None:
        print("no torch here: install one for this machine's driver")
        return 2
    if options.simulated:
        sys.path.insert(0, str(ROOT / SIMULATOR))
        from cuda_simulator.install import install

        install()
    import torch

    if not torch.cuda.is_available():
        print(f"no GPU that torch {torch.__version__} can use: nothing was checked")
        return 2
    faulthandler.dump_traceback_later(options.seconds + GRACE, exit=True)
    table = Table(time.monotonic() + options.seconds)
    _check(table, options)
    faulthandler.cancel_dump_traceback_later()
    print(f"\n{table.text()}")
    failed = sum(row["result"] == FAILED for row in table.rows)
    print(f"{len(table.rows)} rows, {failed} failed, {options.seconds - table.ends + time.monotonic():.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": table.rows}, indent=1))
    return int(failed > 0)


def _check(table: Table, options: argparse.Namespace) -> None:
    _pins(table)
    hidden = "--without-flashinfer" if options.without_flashinfer else _why_flashinfer_cannot_compile()
    if hidden is not None:
        # Its absence is a choice that the package reports; a spec of None is what `find_spec` gives for it.
        sys.modules["flashinfer"] = None  # type: ignore[assignment]
    _machine(table, hidden)
    if find_spec("triton") is None:
        table.add("packages", "triton", SKIPPED, "not installed: what would run on the reference is left out here")
        return
    shape = SMALL if options.simulated else LARGE
    what = f"{shape.requests} x {shape.context} tokens, {shape.layers} x {shape.hidden}, bfloat16"
    table.attempt("decode", what, partial(_decode, shape))
    _matrix(table, options.card, options.dtype)


def _pins(table: Table) -> None:
    """What is installed against the one table of versions: a difference is named, and no failure."""
    from versions import read_table

    versions = read_table(ROOT)
    pins = {**versions["hardware"]["cuda"], "transformers": versions["tests"]["transformers"]}
    for name, pinned in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            table.add("pins", name, NOTED, f"not installed; pinned {pinned}")
            continue
        same = found.partition("+")[0] == pinned
        table.add("pins", name, PASSED if same else NOTED, found if same else f"{found} is not the pinned {pinned}")


def _why_flashinfer_cannot_compile() -> str | None:
    if find_spec("flashinfer") is None or shutil.which("nvcc") or find_spec("flashinfer_jit_cache"):
        return None
    return "no nvcc on PATH and no flashinfer-jit-cache: its modules cannot be compiled"


def _machine(table: Table, hidden: str | None) -> None:
    import torch

    from trunnion_cuda import environment

    major, minor = torch.cuda.get_device_capability()
    table.add("device", torch.cuda.get_device_name(), PASSED, f"capability {major}.{minor}, CUDA {torch.version.cuda}")
    for problem in environment.problems():
        result = FAILED if problem.fatal else NOTED
        table.add("device", problem.what, result, f"found {problem.found}; needed: {problem.needed}")
    for what, fact in environment.facts().items():
        table.add("device", what, NOTED, fact)
    if (reason := hidden or environment.why_no_flashinfer()) is not None:
        table.add("packages", "flashinfer", NOTED, f"not used ({reason}): attention runs on the package's fallback")


def _matrix(table: Table, chosen: Sequence[str] | None, only: str | None) -> None:
    """Quick cards against transformers, in a few ways of batching, as far as graphs go and without them."""
    if missing := [name for name in ("transformers", "pytest") if find_spec(name) is None]:
        table.add("matrix", "all cards", SKIPPED, f"{' and '.join(missing)} not installed")
        return
    from matrix.conftest import Case, cards
    from matrix.hf_reference import build_reference

    from trunnion.config import DTYPES
    from trunnion.interfaces.runner import Mode

    known = {card.name: card for card in cards() if card.quick and not card.draft and card.pooling is None}
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
                    case = Case(known[name], "cuda", dtype, MODES[0], execution)
                    table.attempt("matrix", f"{name} {dtype} {execution.value}", partial(_run_card, case, reference))


def _run_card(case: Any, reference: Any, lines: list[str]) -> None:
    from matrix.bench import Comparison, load_bench
    from matrix.modes import MODES as WAYS

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


def _decode(shape: Shape, lines: list[str]) -> None:
    """Logits and time of a decode step, against a plain PyTorch loop over the same weights and tokens."""
    import torch
    from matrix.host_double import Chunk, HostDouble

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
            model=Path(folder), hardware="cuda", limits=limits, dtype="bfloat16", tuning_seconds=TUNING_SECONDS
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
        ours_ms = _milliseconds(lambda: executor.wait(executor.execute_set(last).fence), shape.steps)
        plain_ms = _milliseconds(lambda: plain.step(column, prefill), shape.steps)
        lines.append(f"step {ours_ms:.3f} ms, plain {plain_ms:.3f} ms, ratio {plain_ms / ours_ms:.2f}")
        _count_graphs(executor, host.report, lines)
        executor.close()


def _milliseconds(step: Callable[[], object], count: int) -> float:
    """The median of `count` steps, each waited for, after two more."""
    import torch

    times = []
    for _ in range(count + 2):
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times[2:])[count // 2] * 1e3


def write_model(folder: Path, shape: Shape) -> dict[str, Any]:
    """A Llama with random weights in bfloat16, as a checkpoint in `folder` -> its tensors by name."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (shape.vocab, shape.hidden)}
    for index in range(shape.layers):
        layer = f"model.layers.{index}"
        for part, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            sizes[f"{layer}.self_attn.{part}_proj"] = (heads * shape.head_dim, shape.hidden)
        sizes[f"{layer}.self_attn.o_proj"] = (shape.hidden, shape.heads * shape.head_dim)
        sizes[f"{layer}.mlp.gate_proj"] = sizes[f"{layer}.mlp.up_proj"] = (shape.intermediate, shape.hidden)
        sizes[f"{layer}.mlp.down_proj"] = (shape.hidden, shape.intermediate)
    sizes["lm_head"] = (shape.vocab, shape.hidden)
    weights = {
        f"{name}.weight": torch.randn(size, generator=generator) * size[1] ** -0.5 for name, size in sizes.items()
    }
    norms = ["model.norm"]
    norms += [f"model.layers.{i}.{n}_layernorm" for i in range(shape.layers) for n in ("input", "post_attention")]
    weights |= {f"{name}.weight": torch.ones(shape.hidden) for name in norms}
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab,
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context + 8, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return weights


class PlainLlama:
    """Llama as one would write it in torch for requests of one length: eager, contiguous caches, library attention."""

    def __init__(self, weights: dict[str, Any], shape: Shape, device: Any) -> None:
        import torch

        self.weights = {name.removesuffix(".weight"): tensor.to(device) for name, tensor in weights.items()}
        self.shape = shape
        size = shape.requests, shape.kv_heads, shape.context + 8, shape.head_dim
        self.caches = [
            [torch.zeros(size, dtype=torch.bfloat16, device=device) for _ in "kv"] for _ in range(shape.layers)
        ]
        frequencies = 10000.0 ** (-torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim)
        angles = torch.arange(shape.context + 8, device=device)[:, None] * frequencies
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def step(self, tokens: Any, start: int) -> Any:
        """tokens [B, n] at positions `start ...` -> logits [B, vocab] of the last."""
        import torch.nn.functional as F

        x = F.embedding(tokens, self.weights["model.embed_tokens"])
        for index in range(self.shape.layers):
            layer = f"model.layers.{index}"
            x = x + self._attend(index, self._norm(x, f"{layer}.input_layernorm"), start)
            y = self._norm(x, f"{layer}.post_attention_layernorm")
            gate, up = self._linear(y, f"{layer}.mlp.gate_proj"), self._linear(y, f"{layer}.mlp.up_proj")
            x = x + self._linear(F.silu(gate) * up, f"{layer}.mlp.down_proj")
        return self._linear(self._norm(x[:, -1], "model.norm"), "lm_head")

    def _attend(self, index: int, x: Any, start: int) -> Any:
        import torch.nn.functional as F

        layer, end = f"model.layers.{index}.self_attn", start + x.shape[1]
        q, k, v = (
            self._linear(x, f"{layer}.{part}_proj").unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for part in "qkv"
        )
        keys, values = self.caches[index]
        keys[:, :, start:end], values[:, :, start:end] = self._rotate(k, start, end), v
        out = F.scaled_dot_product_attention(
            self._rotate(q, start, end), keys[:, :, :end], values[:, :, :end], is_causal=x.shape[1] > 1, enable_gqa=True
        )
        return self._linear(out.transpose(1, 2).flatten(2), f"{layer}.o_proj")

    def _rotate(self, x: Any, start: int, end: int) -> Any:
        import torch

        first, second = x.float().chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return (x.float() * self.cos[start:end] + turned * self.sin[start:end]).to(x.dtype)

    def _norm(self, x: Any, name: str) -> Any:
        import torch.nn.functional as F

        return F.rms_norm(x, (x.shape[-1],), self.weights[name], 1e-5)

    def _linear(self, x: Any, name: str) -> Any:
        import torch.nn.functional as F

        return F.linear(x, self.weights[name])


if __name__ == "__main__":
    sys.exit(main())
