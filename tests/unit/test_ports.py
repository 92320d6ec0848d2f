"""A family that is not installed is found in its folder, beside those that are; what is wrong with it is one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trunnion import registry
from trunnion.errors import PortError, UnknownArchitectureError, UnsupportedError
from trunnion.ports import load_port

INIT = 'ARCHITECTURES = {"ToyForCausalLM": "model:ToyForCausalLM"}\n'
MODEL = "from .sizes import SIZE\n\n\nclass ToyForCausalLM:\n    size = SIZE\n"
TOY = {"architectures": ["ToyForCausalLM"]}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str = "toy", *, size: int = 3, **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, text in {"__init__": INIT, "model": MODEL, "sizes": f"SIZE = {size}\n", **files}.items():
            (folder / f"{file}.py").write_text(text)
        return folder

    return make


def test_a_port_is_asked_beside_what_is_installed_and_not_remembered(write: Write) -> None:
    folder = write()
    found = registry.model_class(TOY, port=folder)
    assert (found.__name__, found.size) == ("ToyForCausalLM", 3)  # type: ignore[attr-defined]
    assert registry.model_class(TOY, port=folder) is found
    assert registry.model_class({"architectures": ["LlamaForCausalLM"]}, port=folder).__name__ == "LlamaForCausalLM"
    assert {family.name for family in registry.model_families(folder)} >= {"toy", "llama"}
    with pytest.raises(UnsupportedError, match="unknown architecture 'ToyForCausalLM'"):
        registry.model_class(TOY)


def test_a_port_says_how_long_a_text_may_be(write: Write) -> None:
    folder = write(
        __init__=INIT + 'MAX_POSITIONS = "sizes:half"\n',
        sizes="SIZE = 3\n\n\ndef half(config):\n    return config['max_position_embeddings'] // 2\n",
    )
    config = {**TOY, "max_position_embeddings": 64}
    assert registry.max_positions(config, port=folder) == 32
    assert registry.max_positions(config) == 64
    assert registry.max_positions({"max_position_embeddings": 64}, port=folder) == 64


def test_a_name_that_another_package_has_shadows_nothing(write: Write) -> None:
    before = list(sys.path)
    first, second = write("a/json", size=1), write("b/json", size=2)
    sizes = [registry.model_class(TOY, port=folder).size for folder in (first, second)]  # type: ignore[attr-defined]
    assert sizes == [1, 2]
    assert sys.path == before
    assert __import__("json").loads("[1]") == [1]


def test_asking_imports_no_model_code(write: Write) -> None:
    folder = write("dotted.name-1", model="raise RuntimeError('imported')\n")
    assert load_port(folder).architectures == {"ToyForCausalLM": "model:ToyForCausalLM"}
    with pytest.raises(PortError, match=r"RuntimeError: imported \(.*dotted\.name-1/model\.py:1\)$"):
        registry.model_class(TOY, port=folder)


def test_an_architecture_that_is_installed_is_refused(write: Write) -> None:
    folder = write(__init__='ARCHITECTURES = {"LlamaForCausalLM": "model:ToyForCausalLM"}\n')
    with pytest.raises(UnsupportedError) as caught:
        registry.model_class(TOY, port=folder)
    # Of an unknown one the adapter would be asked.
    assert not isinstance(caught.value, UnknownArchitectureError)
    assert str(caught.value) == (
        f"architecture 'LlamaForCausalLM' is claimed by trunnion_models.llama and {folder.resolve()}"
    )


BROKEN: Mapping[str, tuple[dict[str, str], str]] = {
    "nothing-declared": ({"__init__": "X = 1\n"}, r"its __init__\.py declares none of ARCHITECTURES, "),
    "init-raises": ({"__init__": "\nimport no_such_module\n"}, r"ModuleNotFoundError: .*/__init__\.py:2\)$"),
    "syntax": ({"model": "class Toy:\n    def\n"}, r"SyntaxError: .*/model\.py:2\)$"),
    "deeper": ({"sizes": "\n\nSIZE = 1 / 0\n"}, r"ZeroDivisionError: division by zero \(.*/sizes\.py:3\)$"),
    "no-class": ({"model": "Y = 2\n"}, r"model\.py has no ToyForCausalLM, which its __init__\.py names$"),
    "absolute": ({"model": "from trunnion_models.toy.config import X\n"}, r"ModuleNotFoundError: .*/model\.py:1\)$"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_wrong_is_one_line_that_names_file_and_line(fault: str, write: Write) -> None:
    files, said = BROKEN[fault]
    folder = write(**files)
    for _ in range(2):
        with pytest.raises(PortError, match=said) as caught:
            registry.model_class(TOY, port=folder)
        assert str(caught.value).startswith(f"port {folder.resolve()}: ") and "\n" not in str(caught.value)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, said in (("absent", "no such folder"), ("file", "is not a folder"), ("empty", "no __init__.py")):
        with pytest.raises(PortError, match=f"^port {tmp_path.resolve() / name}: {said}"):
            load_port(tmp_path / name)
