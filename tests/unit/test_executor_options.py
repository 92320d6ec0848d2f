"""Options of an executor: what is unknown, what a package does not offer, and what a checkpoint has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import MAX_THREADS, ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import UnsupportedError
from trunnion.reference import ReferenceHardware
from trunnion.runner.load_model import load_model

LIMITS = Limits(max_num_tokens=4, max_num_seqs=1, max_model_len=16, max_logits_rows=1)


class Choosy(ReferenceHardware):
    """Keeps weights as they lie, and says so."""

    name = "choosy"
    weights_choices = ("auto", "native")


def config(model: Path, **options: Any) -> ExecutorConfig:
    return ExecutorConfig(model=model, hardware="cpu", limits=LIMITS, **options)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"weights": "raw"}, "unknown weights 'raw'; choices: auto, native"),
        ({"activations": "int4"}, "unknown activations 'int4'; choices: auto, int8"),
        ({"num_threads": -1}, r"num_threads is -1, expected 0 \(the hardware's choice\) ... 1024"),
        ({"num_threads": MAX_THREADS + 1}, "num_threads is 1025"),
    ],
    ids=str,
)
def test_what_is_unknown_is_named(tmp_path: Path, options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        config(tmp_path, **options)


def test_a_package_runs_what_it_offers_and_refuses_the_rest() -> None:
    package = Choosy()
    assert package.choosing() is package
    chosen = package.choosing(weights="native")
    assert isinstance(chosen, Choosy) and (chosen.weights, package.weights) == ("native", "auto")
    assert chosen.choosing(weights="native") is chosen
    with pytest.raises(UnsupportedError, match=r"activations 'int8' is not for hardware 'choosy'; choices: auto$"):
        package.choosing(weights="native", activations="int8")
    with pytest.raises(UnsupportedError, match=r"weights 'native' is not for hardware 'reference'; choices: auto$"):
        ReferenceHardware().choosing(weights="native")


def test_loading_refuses_before_it_reads_weights(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="weights 'native' is not for hardware 'reference'"):
        load_model(config(tmp_path / "nothing", weights="native"), ReferenceHardware(), None)
    folder = write_tiny_llama(tmp_path)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8] + b"8 bytes.")
    with pytest.raises(UnsupportedError, match=r"weights 'native' is for \.gguf files, and .* is none; choices: auto"):
        load_model(config(folder, weights="native"), Choosy(), None)


def test_a_model_is_told_what_was_chosen(tmp_path: Path) -> None:
    class Rounding(ReferenceHardware):
        activations_choices = ("auto", "int8")

    loaded = load_model(config(write_tiny_llama(tmp_path), activations="int8"), Rounding(), None)
    assert (loaded.hardware.activations, loaded.hardware.weights) == ("int8", "auto")
