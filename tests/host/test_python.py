"""The Python executor driven by the C host, inside a Python process and as a program with Python inside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trunnion_host.serving import HostConfig, SamplingParams, ServingHost

from .conftest import HOST_PACKAGE, HostRun, run_host
from .traces import check_trace, parents, read_trace

Host = Callable[..., HostRun]

INSIDE = """
import ctypes, sys
host = ctypes.CDLL(sys.argv[1])
arguments = [argument.encode() for argument in sys.argv[1:]]
sys.exit(host.host_main(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)))
"""

FAULTY_HARDWARE = '''
"""A CPU whose runner raises at a given step, after the step's caches were written."""

import os

from trunnion.errors import BatchRefused
from trunnion_cpu.hardware import CpuHardware

ERRORS = {"failed": RuntimeError("a kernel said no"), "fatal": MemoryError("none left"),
          "refused": BatchRefused("seq_lens: not today")}


class FaultyHardware(CpuHardware):
    name = "faulty"

    def create_runner(self, model, groups, limits, breaks):
        runner = super().create_runner(model, groups, limits, breaks)
        run, steps = runner.run, iter(range(1, 1 << 30))

        def run_or_raise(step, bucket):
            number, refused = next(steps), os.environ["FAULT"] == "refused"
            outputs = None if refused and number == 4 else run(step, bucket)
            if number == 4:
                raise ERRORS[os.environ["FAULT"]]
            return outputs

        runner.run = run_or_raise
        return runner


HARDWARE = FaultyHardware
'''


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=131,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).to(torch.float32).eval()


@pytest.fixture(scope="module")
def model(reference: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=["inside", "embedded"])
def host(request: pytest.FixtureRequest, build: Path, model: str) -> Host:
    """Run the C host on the tiny model, in one of the two shapes."""
    return shaped_host(request.param, build, model)


@pytest.fixture(scope="module")
def clean(host: Host) -> HostRun:
    """The run without faults."""
    return host()


@pytest.fixture(scope="module")
def embedded(build: Path, model: str) -> Host:
    return shaped_host("embedded", build, model)


@pytest.fixture(scope="module")
def embedded_clean(embedded: Host) -> HostRun:
    return embedded()


def shaped_host(shape: str, build: Path, model: str) -> Host:
    command = [sys.executable, "-c", INSIDE, str(build / "libhost_library.so")]
    if shape == "embedded":
        command = [str(build / "embedded"), sys.executable]
        if not Path(command[0]).exists():
            pytest.skip("this Python has no shared library to embed")

    def run(*arguments: str, hardware: str = "cpu", environment: dict[str, str] | None = None) -> HostRun:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        options = ["--hardware", hardware, *([] if "--model" in arguments else ["--model", model])]
        return run_host([*command, *options, *arguments], env=env)

    return run


def served(run: HostRun) -> list[list[int]]:
    """The tokens of each request."""
    assert run.returncode == 0, run.stderr
    return [[int(word) for word in line[1:]] for line in run.of("tokens")]


@torch.inference_mode()
def continued(reference: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


def test_tokens_are_those_of_transformers(clean: HostRun, reference: LlamaForCausalLM) -> None:
    for tokens, length in zip(served(clean), (13, 7, 21), strict=True):
        assert tokens == continued(reference, tokens[:length], 24)


def test_tokens_do_not_depend_on_how_they_are_served(embedded: Host, embedded_clean: HostRun) -> None:
    expected = served(embedded_clean)
    for way in (("--own",), ("--allocate",), ("--chunk", "5", "--seed", "7"), ("--chunk", "3", "--own")):
        assert served(embedded(*way)) == expected, way


def test_the_gil_is_taken_once_per_step(clean: HostRun) -> None:
    stats = clean.stats
    assert stats["step_gil_entries"] == stats["executes"] == 25
    # create, bind_kv_cache and warm_up; nothing else enters Python.
    assert stats["gil_entries"] == stats["executes"] + 3
    assert stats["copied_tensors"] == 0


def test_the_runner_s_counters_reach_the_host(clean: HostRun, embedded: Host) -> None:
    """Every step is a replay or eager with its reason, and plans its groups once."""
    stats = clean.stats
    assert stats["replays"] == stats["executes"] == stats["plan_calls"] and stats["eager_steps"] == 0
    assert stats["padded_tokens"] > 0 and clean.of("eager") == []
    assert 0 < stats["plan_ns"] < stats["python_ns"] and stats["last_step_in_order"] == 1
    empty = embedded("--mode", "faults")
    steps = empty.stats["eager_steps"]
    assert empty.of("eager") == [[str(steps), "no", "tokens"]]
    assert steps > 0 and empty.stats["replays"] + steps == empty.stats["executes"]


def test_a_trace_shows_what_python_does_in_a_step(build: Path, model: str, tmp_path: Path) -> None:
    (library,) = (build / "trunnion-host").glob("_host.abi3.so")
    path = tmp_path / "steps.json"
    config = HostConfig(model=model, max_num_seqs=2, max_model_len=128, max_num_tokens=80, trace_file=path)
    with ServingHost(config, library=library) as host:
        list(host.stream(host.submit([5] * 70, SamplingParams(max_tokens=6))))
        stats = host.stats()
    trace = read_trace(path)
    check_trace(trace, steps=stats.steps, requests=1)
    inner = Counter(parents(trace.spans[1]))
    for pair in (("gil wait", "execute"), ("python", "execute"), ("plan", "python")):
        assert inner[pair] == stats.steps == 6, pair
    # 70 tokens are more than the widest tape.
    assert [span["args"]["replayed"] for span in trace.named("step")] == [0, 1, 1, 1, 1, 1]
    assert (stats.replays, stats.eager_steps, list(stats.eager.values())) == (5, 1, [1])


def test_ids_sampled_on_the_device_need_no_round_trip(host: Host, clean: HostRun) -> None:
    """Decodes name the row that was sampled, and never the id; the device is the host's memory here."""
    sampled = host("--device-staging")
    assert served(sampled) == served(clean)
    assert sampled.of("logits") == clean.of("logits")
    assert sampled.stats["replays"] == clean.stats["replays"]
    assert sampled.stats["copied_tensors"] == 0


def test_every_contract_fault_is_refused_by_name(host: Host, clean: HostRun) -> None:
    faulty = host("--mode", "faults")
    assert served(faulty) == served(clean)
    assert faulty.of("logits") == clean.of("logits")
    # One of the 44 needs two requests in the step.
    assert "44" in {line[2] for line in faulty.of("faults")} <= {"43", "44"}
    # Refused before Python is entered; the steps with T = 0 are entered.
    assert faulty.stats["step_gil_entries"] == faulty.stats["executes"] == 50


def test_ten_thousand_malformed_batches(embedded: Host) -> None:
    clean, fuzzed = embedded("--seed", "5"), embedded("--seed", "5", "--mode", "fuzz", "--count", "10000")
    assert served(fuzzed) == served(clean)
    assert fuzzed.of("logits") == clean.of("logits")
    assert sum(int(line[2]) for line in fuzzed.of("fuzz")) > 7000
    assert fuzzed.stats["step_gil_entries"] == fuzzed.stats["executes"]


def test_threads_forks_and_second_binding_are_refused(host: Host) -> None:
    run = host("--mode", "lifetime")
    assert run.returncode == 0, run.stderr
    assert run.of("lifetime") == [["ok"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hardware", "tpu"), ("'tpu'", "installed: ", "cpu")),
        (("--dtype", "float31"), ("'float31'", "choices: auto")),
        (("--model", "no-such-folder"), ("no-such-folder",)),
    ],
)
def test_creation_is_refused_in_one_line(embedded: Host, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    run = embedded(*arguments)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("create: status 1: ")
    assert all(word in run.stderr for word in words), run.stderr


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which hardware `faulty` exists."""
    package = tmp_path_factory.mktemp("faulty") / "trunnion_faulty"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hardware.py").write_text(FAULTY_HARDWARE)
    return {"PYTHONPATH": os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])}


def test_failed_step_is_recomputed(host: Host, clean: HostRun, faulty: dict[str, str]) -> None:
    run = host(hardware="faulty", environment={**faulty, "FAULT": "failed"})
    assert served(run) == served(clean)
    (words,) = run.of("failed")
    assert " ".join(words[1:]).startswith("RuntimeError: a kernel said no (hardware.py:")


def test_refused_step_is_repeated(embedded: Host, embedded_clean: HostRun, faulty: dict[str, str]) -> None:
    run = embedded(hardware="faulty", environment={**faulty, "FAULT": "refused"})
    assert served(run) == served(embedded_clean)
    assert run.of("refused") == [["3", "seq_lens"]]


def test_fatal_ends_the_process(embedded: Host, faulty: dict[str, str]) -> None:
    run = embedded(hardware="faulty", environment={**faulty, "FAULT": "fatal"})
    assert run.returncode == 3
    assert "MemoryError: none left" in " ".join(run.of("fatal")[0])


def test_embed_example_prints_the_tokens_of_transformers(build: Path, model: str, reference: LlamaForCausalLM) -> None:
    example = build / "trunnion-host" / "examples" / "embed" / "trunnion-embed"
    if not example.exists():
        pytest.skip("this Python has no shared library to embed")
    prompt = [5, 7, 100, 3]
    command = [str(example), sys.executable, model, "cpu", "12", *map(str, prompt)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == continued(reference, prompt, 12)[len(prompt) :]
    assert done.stderr.splitlines()[-1] == "steps 12, execute calls 12, GIL entries of steps 12"


@pytest.mark.parametrize("program", ["missing", "other version", "no trunnion"])
def test_embedding_refuses_a_wrong_python(build: Path, tmp_path: Path, program: str) -> None:
    if not (build / "embedded").exists():
        pytest.skip("this Python has no shared library to embed")
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    words = "is not a file"
    if program != "missing":
        python.write_text("")
        version = "3.9.1" if program == "other version" else sys.version.split()[0]
        home = Path(sys.base_prefix) / "bin"
        (tmp_path / "env" / "pyvenv.cfg").write_text(f"home = {home}\nversion = {version}\n")
        words = "is Python 3.9, the libpython" if program == "other version" else "cannot import trunnion"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = run_host([str(build / "embedded"), str(python)], env=env)
    assert run.returncode == 1
    assert run.stderr.startswith("python: program: ")
    assert words in run.stderr, run.stderr


def test_the_library_needs_neither_torch_nor_libpython(build: Path) -> None:
    (library,) = (build / "trunnion-host").glob("_host.abi3.so")
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" in needed
    assert not re.search(r"torch|c10|libpython", needed), needed


def test_one_file_includes_python() -> None:
    sources = [path for path in HOST_PACKAGE.rglob("*") if path.suffix in {".c", ".cc", ".h", ".hpp"}]
    including = [path.name for path in sources if re.search(r"#\s*include\s*[<\"]Python\.h", path.read_text())]
    assert including == ["python_bridge.cc"]
    (bridge,) = (path for path in sources if path.name == "python_bridge.cc")
    assert "#define Py_LIMITED_API 0x030b0000" in bridge.read_text()
