"""Hardware packages and model families are found by folder and by entry point, and refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trunnion import registry
from trunnion.errors import ConfigError, UnsupportedError

HARDWARE = """
from trunnion.reference.hardware import ReferenceHardware

class {cls}(ReferenceHardware):
    name = "{name}"
    device_type = "{device_type}"

HARDWARE = {cls}
"""

MakePackage = Callable[..., Path]


@pytest.fixture(autouse=True)
def import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`tmp_path/site` is on the import path for one test; what is imported from it is forgotten afterwards."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def make_hardware(tmp_path: Path) -> MakePackage:
    def make(name: str, *, package: str = "", folder: str = "site", device_type: str = "cpu") -> Path:
        place = tmp_path / folder / (package or f"trunnion_{name}")
        place.mkdir(parents=True)
        (place / "__init__.py").touch()
        (place / "hardware.py").write_text(HARDWARE.format(cls="Toy", name=name, device_type=device_type))
        return place

    return make


@pytest.fixture
def add_entry_point(tmp_path: Path) -> Callable[[str, str, str], None]:
    def add(group: str, name: str, value: str) -> None:
        info = tmp_path / "site" / f"{name}_dist-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")

    return add


AddEntryPoint = Callable[[str, str, str], None]


def test_a_folder_on_the_import_path_is_found_without_being_imported(make_hardware: MakePackage) -> None:
    make_hardware("toyone")
    assert "toyone" in registry.hardware_names()
    assert "trunnion_toyone" not in sys.modules
    hardware = registry.Registry().hardware("toyone")
    assert hardware.name == "toyone"


def test_packages_without_hardware_are_not_hardware() -> None:
    assert not {"host", "models", "bundle"} & set(registry.hardware_names())


def test_an_entry_point_is_found(make_hardware: MakePackage, add_entry_point: AddEntryPoint) -> None:
    make_hardware("toytwo", package="vendor_toytwo")
    add_entry_point("trunnion.hardware", "toytwo", "vendor_toytwo.hardware:Toy")
    assert registry.Registry().hardware("toytwo").name == "toytwo"


def test_a_package_that_is_seen_both_ways_is_one(make_hardware: MakePackage, add_entry_point: AddEntryPoint) -> None:
    make_hardware("toythree")
    add_entry_point("trunnion.hardware", "toythree", "trunnion_toythree.hardware:HARDWARE")
    assert registry.Registry().hardware("toythree").name == "toythree"


def test_two_packages_of_one_name_are_named(make_hardware: MakePackage, add_entry_point: AddEntryPoint) -> None:
    make_hardware("toyfour")
    make_hardware("toyfour", package="vendor_toyfour")
    add_entry_point("trunnion.hardware", "toyfour", "vendor_toyfour.hardware:HARDWARE")
    with pytest.raises(UnsupportedError, match=r"'toyfour' is claimed by two packages: vendor_.*trunnion_toyfour"):
        registry.hardware_names()


def test_unknown_hardware_lists_what_is_installed(make_hardware: MakePackage) -> None:
    make_hardware("toyfive")
    with pytest.raises(UnsupportedError, match=r"unknown hardware 'tpu'; installed: .*toyfive"):
        registry.hardware("tpu")


def test_one_instance_per_registry_and_one_package_per_device_type(make_hardware: MakePackage) -> None:
    make_hardware("toysix")
    make_hardware("toyseven")
    make_hardware("toyeight", device_type="meta")
    found = registry.Registry()
    assert found.hardware("toysix") is found.hardware("toysix")
    assert found.hardware("toyeight").device_type == "meta"
    with pytest.raises(UnsupportedError, match="'toyseven' and 'toysix' both run device type 'cpu'"):
        found.hardware("toyseven")


@pytest.mark.parametrize("parent", [False, True])
def test_a_package_anywhere_can_be_loaded_from_its_folder(make_hardware: MakePackage, parent: bool) -> None:
    name = f"toynine{parent}".lower()
    place = make_hardware(name, folder="elsewhere")
    assert name not in registry.hardware_names()
    found = registry.Registry()
    hardware = found.load_hardware_from(place.parent if parent else place)
    assert hardware.name == name
    assert found.hardware(name) is hardware


def test_a_folder_without_a_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="expected one package trunnion_<name>"):
        registry.Registry().load_hardware_from(tmp_path)


def test_a_module_without_the_class_is_named(tmp_path: Path, make_hardware: MakePackage) -> None:
    (make_hardware("toyten") / "hardware.py").write_text("HARDWARE = 3\n")
    with pytest.raises(UnsupportedError, match=r"trunnion_toyten\.hardware has no Hardware class named HARDWARE"):
        registry.Registry().hardware("toyten")


def test_a_hardware_package_that_cannot_be_imported_is_not_hidden(make_hardware: MakePackage) -> None:
    (make_hardware("toyeleven") / "hardware.py").write_text("import no_such_module_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        registry.Registry().hardware("toyeleven")


def make_family(place: Path, architectures: str, drafts: str = "{}") -> None:
    place.mkdir(parents=True)
    (place.parent / "__init__.py").touch()
    (place / "__init__.py").write_text(f"ARCHITECTURES = {architectures}\nDRAFTS = {drafts}\n")
    (place / "model.py").write_text("class ToyForCausalLM:\n    pass\n")


def test_the_families_of_the_repository_are_found() -> None:
    families = {family.name: family for family in registry.model_families()}
    assert set(families) >= {"llama", "mistral", "qwen2", "qwen3", "gemma3", "deepseek_v2", "qwen3_next"}
    assert set(families["llama"].architectures) == {"LlamaForCausalLM"}


def test_a_family_of_another_distribution_is_found_and_imported_late(
    tmp_path: Path, add_entry_point: AddEntryPoint
) -> None:
    make_family(tmp_path / "site" / "vendor_models" / "toy", "{'ToyForCausalLM': 'model:ToyForCausalLM'}")
    add_entry_point("trunnion.models", "vendor", "vendor_models")
    assert "toy" in {family.name for family in registry.model_families()}
    assert "vendor_models.toy.model" not in sys.modules
    assert registry.model_class({"architectures": ["ToyForCausalLM"]}).__name__ == "ToyForCausalLM"


def test_two_families_for_one_architecture_are_named(tmp_path: Path, add_entry_point: AddEntryPoint) -> None:
    make_family(tmp_path / "site" / "rival_models" / "toy", "{'LlamaForCausalLM': 'model:ToyForCausalLM'}")
    add_entry_point("trunnion.models", "rival", "rival_models")
    with pytest.raises(UnsupportedError, match=r"'LlamaForCausalLM' is claimed by rival_models\.toy and trunnion_"):
        registry.model_families()


def test_the_head_that_drafts_is_found_by_the_decoder() -> None:
    assert registry.draft_class({"architectures": ["Qwen3NextForCausalLM"]}).__name__ == "Qwen3NextMTP"


def test_an_architecture_without_a_head_is_named_with_the_choices() -> None:
    with pytest.raises(UnsupportedError) as caught:
        registry.draft_class({"architectures": ["LlamaForCausalLM"]})
    heads = sorted(name for family in registry.model_families() for name in family.drafts)
    assert {"DeepseekV3ForCausalLM", "Qwen3NextForCausalLM"} <= set(heads)
    assert str(caught.value) == (
        f"there is no draft head for architecture 'LlamaForCausalLM'; supported: {', '.join(heads)}, "
        "or name a draft_model"
    )
    with pytest.raises(ConfigError, match="names no architecture"):
        registry.draft_class({"architectures": []})


def test_two_heads_for_one_architecture_are_named(tmp_path: Path, add_entry_point: AddEntryPoint) -> None:
    drafts = "{'Qwen3NextForCausalLM': 'model:ToyForCausalLM'}"
    make_family(tmp_path / "site" / "drafting_models" / "toy", "{'ToyForCausalLM': 'model:ToyForCausalLM'}", drafts)
    add_entry_point("trunnion.models", "drafting", "drafting_models")
    with pytest.raises(
        UnsupportedError, match=r"draft head of architecture 'Qwen3NextForCausalLM' is claimed by draft"
    ):
        registry.model_families()


def test_an_unknown_architecture_is_named_with_the_choices() -> None:
    with pytest.raises(UnsupportedError) as caught:
        registry.model_class({"architectures": ["XForCausalLM"], "model_type": "y"})
    assert str(caught.value).startswith("unknown architecture 'XForCausalLM' (model_type 'y'); supported: ")
    assert "Gemma3ForCausalLM" in str(caught.value)


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [3]])
def test_a_config_without_architecture_is_named(architectures: object) -> None:
    with pytest.raises(ConfigError, match="names no architecture"):
        registry.model_class({"architectures": architectures, "model_type": "llama"})
