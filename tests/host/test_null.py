"""The null executor driven by the C host: the same tokens however it serves, and every fault refused by name."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import HERE, HostRun, cmake_build, run_host

Host = Callable[..., HostRun]
MODELS = ["null", "null:csr=1,recurrent=1,window=6", "null:window=0,layers=1,vocab=7"]


def served(run: HostRun) -> list[list[str]]:
    assert run.returncode == 0, run.stderr
    tokens = run.of("tokens")
    assert len(tokens) == 3
    return tokens


@pytest.mark.parametrize("model", MODELS)
def test_tokens_do_not_depend_on_how_they_are_served(null_host: Host, model: str) -> None:
    expected = served(null_host("--model", model))
    ways = [("--own",), ("--allocate",), ("--chunk", "5"), ("--seed", "7"), ("--chunk", "3", "--seed", "9", "--own")]
    for way in ways:
        assert served(null_host("--model", model, *way)) == expected, way


def test_a_fault_free_step_copies_nothing(null_host: Host) -> None:
    assert null_host().stats["copied_tensors"] == 0
    assert null_host("--own").stats["copied_tensors"] > 0


@pytest.mark.parametrize("model", ["null", "null:csr=1,recurrent=1,window=6"])
def test_every_contract_fault_is_refused_by_name(null_host: Host, model: str) -> None:
    clean, faulty = null_host("--model", model), null_host("--model", model, "--mode", "faults")
    assert served(faulty) == served(clean)
    assert faulty.of("logits") == clean.of("logits")
    # One of the 44 needs two requests in the step.
    assert "44" in {line[2] for line in faulty.of("faults")} <= {"43", "44"}
    assert len(faulty.of("faults")) == len(clean.of("logits"))


@pytest.mark.parametrize("model", MODELS)
def test_ten_thousand_malformed_batches(null_host: Host, model: str) -> None:
    clean = null_host("--model", model, "--seed", "3")
    fuzzed = null_host("--model", model, "--mode", "fuzz", "--count", "10000", "--seed", "3")
    assert served(fuzzed) == served(clean)
    assert fuzzed.of("logits") == clean.of("logits")
    assert sum(int(line[2]) for line in fuzzed.of("fuzz")) > 7000, "most mutants are malformed"
    assert sum(int(line[2]) + int(line[4]) for line in fuzzed.of("fuzz")) == 10000


LEVELS = ["null:levels=1", "null:levels=1,csr=1,recurrent=1,window=6", "null:levels=1,window=0,layers=1,vocab=7"]


@pytest.mark.parametrize("model", LEVELS)
def test_what_is_said_of_shared_blocks_changes_no_result(null_host: Host, model: str) -> None:
    """Prompts that begin alike; the null executor accepts levels, and computes what it does without."""
    expected = null_host("--model", model.replace("levels=1", "levels=0"), "--levels")
    assert expected.stats["prefix_level_steps"] == 0
    for way in ((), ("--own",), ("--chunk", "5", "--seed", "7")):
        run = null_host("--model", model, "--levels", *way)
        assert served(run) == served(expected), way
        assert 10 < run.stats["prefix_level_steps"] < run.stats["executes"], way
    assert null_host("--model", model, "--levels").stats["copied_tensors"] == 0


@pytest.mark.parametrize("model", LEVELS)
def test_every_fault_of_levels_is_refused_by_name(null_host: Host, model: str) -> None:
    clean = null_host("--model", model, "--levels")
    faulty = null_host("--model", model, "--levels", "--mode", "faults")
    assert served(faulty) == served(clean)
    assert faulty.of("logits") == clean.of("logits")
    tried = faulty.of("level_faults")
    assert {line[2] for line in tried} == {"9"} and len(tried) == len(clean.of("logits"))
    assert "1" in {line[4] for line in tried}, "requests that were cached further than they share"


@pytest.mark.parametrize("model", LEVELS)
def test_ten_thousand_malformed_batches_with_levels(null_host: Host, model: str) -> None:
    clean = null_host("--model", model, "--levels", "--seed", "3")
    fuzzed = null_host("--model", model, "--levels", "--mode", "fuzz", "--count", "10000", "--seed", "3")
    assert served(fuzzed) == served(clean)
    assert fuzzed.of("logits") == clean.of("logits")
    assert sum(int(line[2]) for line in fuzzed.of("fuzz")) > 7000, "most mutants are malformed"


TYPES = ["null:types=3", "null:types=2,csr=1,recurrent=1,window=6"]


@pytest.mark.parametrize("model", TYPES)
def test_types_of_tokens_matter_and_do_not_depend_on_how_they_are_served(null_host: Host, model: str) -> None:
    clean = null_host("--model", model)
    expected = served(clean)
    assert expected != served(null_host("--model", re.sub(r"types=\d", "types=0", model)))
    for way in (("--own",), ("--allocate",), ("--chunk", "5", "--seed", "7")):
        run = null_host("--model", model, *way)
        assert served(run) == expected, way
        assert 0 < run.stats["token_type_steps"] < run.stats["executes"], "decodes bring none"
    assert clean.stats["copied_tensors"] == 0


@pytest.mark.parametrize("model", TYPES)
def test_every_fault_of_types_is_refused_by_name(null_host: Host, model: str) -> None:
    clean = null_host("--model", model, "--chunk", "5")
    faulty = null_host("--model", model, "--chunk", "5", "--mode", "faults")
    assert served(faulty) == served(clean)
    assert faulty.of("logits") == clean.of("logits")
    tried = faulty.of("type_faults")
    assert {line[2] for line in tried} == {"6"} and len(tried) > 2


@pytest.mark.parametrize("model", TYPES)
def test_ten_thousand_malformed_batches_with_types(null_host: Host, model: str) -> None:
    clean = null_host("--model", model, "--seed", "3", "--chunk", "4")
    fuzzed = null_host("--model", model, "--mode", "fuzz", "--count", "10000", "--seed", "3", "--chunk", "4")
    assert served(fuzzed) == served(clean)
    assert fuzzed.of("logits") == clean.of("logits")
    assert sum(int(line[2]) for line in fuzzed.of("fuzz")) > 7000, "most mutants are malformed"


@pytest.mark.parametrize("step", [1, 2, 6, 20])
def test_failed_step_is_recomputed(null_host: Host, step: int) -> None:
    for base in ("null:", "null:recurrent=1,window=6,"):
        run = null_host("--model", f"{base}fail_at={step}")
        assert served(run) == served(null_host("--model", base.rstrip(":,")))
        assert run.stats["failed"] == 1
        assert run.of("failed")[0][1:] == f"failed at step {step} as asked".split()


def test_refused_step_is_repeated(null_host: Host) -> None:
    run = null_host("--model", "null:refuse_at=6")
    assert served(run) == served(null_host())
    assert run.of("refused") == [["5", "input_ids"]]


def test_fatal_ends_the_process(null_host: Host) -> None:
    run = null_host("--model", "null:fatal_at=6")
    assert run.returncode == 3
    assert run.of("fatal")


def test_watchdog_kills_a_rank_that_hangs(null_host: Host) -> None:
    run = null_host("--model", "null:hang_at=3", "--watchdog", "1")
    assert run.returncode == -signal.SIGALRM


def test_threads_forks_and_second_binding_are_refused(null_host: Host) -> None:
    run = null_host("--mode", "lifetime")
    assert run.returncode == 0, run.stderr
    assert run.of("lifetime") == [["ok"]]


def test_creation_is_refused_in_one_line(null_host: Host) -> None:
    run = null_host("--mode", "create")
    assert run.returncode == 0, run.stderr
    assert len(run.of("create")) == 16


def test_library_without_python_names_its_choices(null_host: Host) -> None:
    run = null_host("--hardware", "cpu")
    assert run.returncode == 2
    assert "hardware: 'cpu' needs the Python executor" in run.stderr
    assert "choices: null" in run.stderr


def test_cpp_class_throws_one_type_per_status(build: Path) -> None:
    run = run_host([str(build / "executor_class")])
    assert run.lines == [["ok"]], run.stderr


@pytest.mark.nightly
def test_sanitizers_find_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    options = [f"-DCMAKE_{language}_FLAGS={flags}" for language in ("C", "CXX")]
    folder = tmp_path_factory.mktemp("sanitized")
    build = cmake_build(HERE, folder, "-DTRUNNION_HOST_PYTHON=OFF", "-DTRUNNION_HOST_SERVING=OFF", *options)
    for model in [*MODELS, *LEVELS]:
        for arguments in (("--mode", "fuzz", "--count", "30000"), ("--mode", "faults"), ("--mode", "lifetime")):
            run = run_host([str(build / "host"), "--model", model, *arguments])
            assert run.returncode == 0, run.stderr
