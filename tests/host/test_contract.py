"""The contract's three texts, header, Python types and documented table, and its ctypes mirror against each other."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import itertools
import re
import subprocess
from pathlib import Path

import pytest

import trunnion.contract as contract
from trunnion.interfaces import kv_events
from trunnion.runner import host_entry, step_counters
from trunnion_host import _api as api

from .conftest import HOST_PACKAGE, REPOSITORY, tool

HEADER = (HOST_PACKAGE / "include" / "trunnion" / "contract.h").read_text()
DOCUMENT = (REPOSITORY / "packages" / "trunnion" / "docs" / "contract.md").read_text()
CAPACITIES = {"T": "max_num_tokens", "B": "max_num_seqs", "N": "max_logits_rows", "P": "max_num_seqs"}


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def header_structs() -> dict[str, list[str]]:
    """Struct name -> names of its fields, in order."""
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", without_comments(HEADER), flags=re.DOTALL):
        declared = [part for line in body.split(";") for part in line.split(",") if part.strip()]
        found[name] = [re.findall(r"\w+", part.partition("[")[0])[-1] for part in declared]
    return found


def table(heading: str) -> dict[str, list[str]]:
    """First cell -> the other cells, of all tables below a heading of the document; code marks removed."""
    section = DOCUMENT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in row] for row in rows]
    titles = [row for row, below in itertools.pairwise(cells) if below[0] == "---"]
    return {row[0]: row[1:] for row in cells if row[0] != "---" and row not in titles}


def documented_shapes(class_name: str) -> dict[str, str]:
    """Field -> the shape that its docstring in contract.py begins with."""
    tree = ast.parse(Path(contract.__file__).read_text())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    shapes = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            shape = re.match(r"(\[.*?\](?:\])?)(?=$|[ :,;])", str(text.value.value))
            if shape is not None:
                shapes[field.target.id] = shape[1]  # type: ignore[union-attr]
    return shapes


def names(cls: type) -> list[str]:
    return [spec.name for spec in dataclasses.fields(cls)]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Sizes and offsets as a C compiler sees them."""
    lines = []
    for struct, mirror in api.STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        for field in mirror._fields_:
            lines.append(f'printf("{struct}.{field[0]} %zu\\n", offsetof({struct}, {field[0]}));')
    folder = tmp_path_factory.mktemp("layout")
    source, program = folder / "layout.c", folder / "layout"
    body = "\n  ".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "trunnion/contract.h"\nint main(void) {{\n  {body}\n  return 0;\n}}\n'
    )
    include = HOST_PACKAGE / "include"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{include}"]
    subprocess.run([tool("cc"), *flags, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in printed.splitlines())}


def test_ctypes_mirror_lies_as_the_compiler_lays_it(layout: dict[str, int]) -> None:
    for struct, mirror in api.STRUCTS.items():
        assert ctypes.sizeof(mirror) == layout[struct], struct
        for field in mirror._fields_:
            assert getattr(mirror, field[0]).offset == layout[f"{struct}.{field[0]}"], f"{struct}.{field[0]}"


def test_ctypes_mirror_is_complete() -> None:
    structs = header_structs()
    assert set(structs) == {name for name in api.STRUCTS if name.startswith("trn_")}
    for struct, fields in structs.items():
        assert fields == [field[0] for field in api.STRUCTS[struct]._fields_], struct


def test_versions_and_codes_agree() -> None:
    defines = dict(re.findall(r"#define (TRN_\w+) (\d+)u", HEADER))
    assert int(defines["TRN_CONTRACT_VERSION"]) == contract.CONTRACT_VERSION == api.CONTRACT_VERSION
    assert int(defines["TRN_ABI_VERSION"]) == api.ABI_VERSION
    codes = {name: int(value) for name, value in re.findall(r"(TRN_[A-Z_]+) = (\d+)\b(?!u)", HEADER)}
    assert {kind: codes[f"TRN_CACHE_{kind.name}"] for kind in contract.CacheKind} == host_entry.KIND_CODES
    assert {kind: codes[f"TRN_OUTPUT_{kind.name}"] for kind in contract.OutputKind} == host_entry.OUTPUT_CODES
    assert {role: codes[f"TRN_ROLE_{role.name}"] for role in contract.Role} == {
        role: code for code, role in enumerate(host_entry.ROLES)
    }
    assert {staging: codes[f"TRN_STAGING_{staging.name}"] for staging in contract.Staging} == {
        staging: code for code, staging in enumerate(host_entry.STAGINGS)
    }
    assert (codes["TRN_STAGING_HOST"], codes["TRN_STAGING_DEVICE"]) == (api.STAGING_HOST, api.STAGING_DEVICE)
    assert (codes["TRN_ROLE_TARGET"], codes["TRN_ROLE_DRAFT"]) == (api.ROLE_TARGET, api.ROLE_DRAFT)
    assert (codes["TRN_OUTPUT_LOGITS"], codes["TRN_OUTPUT_POOLED"]) == (api.OUTPUT_LOGITS, api.OUTPUT_POOLED)
    assert (codes["TRN_REFUSED"], codes["TRN_FAILED"], codes["TRN_FATAL"]) == (1, 2, 3)
    assert (
        (host_entry.REFUSED, host_entry.FAILED, host_entry.FATAL) == (api.REFUSED, api.FAILED, api.FATAL) == (1, 2, 3)
    )
    bits = {name: 1 << int(shift) for name, shift in re.findall(r"TRN_FIELD_(\w+) = 1u << (\d+)", HEADER)}
    assert bits == {field.name: field.value for field in contract.Field}


def test_tensors_have_the_same_names_everywhere() -> None:
    batch = [name for name in names(contract.BatchTensors) if name != "groups"]
    groups = names(contract.GroupTensors)
    structs = header_structs()
    assert list(table("Tensors of a step")) == [*batch, *groups]
    assert structs["trn_group_buffers"] == structs["trn_group_batch"] == groups
    assert [name for name in structs["trn_input_buffers"] if name in batch] == batch
    assert [name for name in structs["trn_forward_batch"] if name in batch] == batch
    assert (*batch,) == api.BATCH_FIELDS + api.PREFIX_FIELDS + api.TYPE_FIELDS
    assert (*groups,) == api.GROUP_FIELDS


def test_tensors_have_the_same_shapes_everywhere() -> None:
    python = documented_shapes("BatchTensors") | documented_shapes("GroupTensors")
    comments = dict(re.findall(r"int32_t \*(\w+); +/\* (\[[^\]]+\])", HEADER))
    for name, (shape, capacity, _) in table("Tensors of a step").items():
        assert python[name] == shape, name
        assert comments[name] == capacity, name
        if name != "kv_indices":
            sized = re.sub(r"\b[TBNP]\b", lambda match: CAPACITIES[match[0]], shape)
            assert sized == capacity, name


def test_counts_agree() -> None:
    documented = list(table("Counts of a step"))
    assert documented == list(contract.COUNT_FIELDS)
    # The C batch says it by the pointer alone.
    declared = [name.replace("kv_events", "has_kv_events") for name in header_structs()["trn_forward_batch"]]
    assert [name for name in declared if name in documented] == documented
    backend = (HOST_PACKAGE / "src" / "executor" / "backend.h").read_text()
    (counts,) = re.findall(r"struct Counts \{\s*std::int64_t (.*?);", backend, flags=re.DOTALL)
    assert re.findall(r"\w+", counts) == documented


def test_kv_events_agree() -> None:
    assert list(table("KV events")) == header_structs()["trn_kv_events"][1:]
    source = (HOST_PACKAGE / "src" / "executor" / "kv_events.h").read_text()
    (results,) = re.findall(r"enum class SlotResult.*?\{(.*?)\}", source)
    python = {f"k{name[5:].title()}": value for name, value in vars(kv_events).items() if name.startswith("SLOT_")}
    assert {name: int(value) for name, value in re.findall(r"(\w+) = (\d)", results)} == python


def test_runner_counters_agree() -> None:
    backend = (HOST_PACKAGE / "src" / "executor" / "backend.h").read_text()
    (body,) = re.findall(r"struct RunnerCounters \{(.*?)\n\};", backend, flags=re.DOTALL)
    (most,) = re.findall(r"kMaxReasons = (\d+);", body)
    (fields,) = re.findall(r"^  std::int64_t (replays.*?);", body, flags=re.DOTALL | re.MULTILINE)
    assert tuple(re.findall(r"\w+", fields)) == step_counters.FIELDS
    assert int(most) == step_counters.MAX_REASONS


def test_limits_outputs_and_profile_agree() -> None:
    structs = header_structs()
    assert structs["trn_limits"] == names(contract.Limits) == list(table("Limits"))
    assert list(table("Outputs of a step")) == names(contract.ForwardOutput)
    assert {*structs["trn_forward_output"]} - {"struct_size", "num_logits"} == {*names(contract.ForwardOutput)}
    assert structs["trn_memory_profile"][2:] == names(contract.MemoryProfile)
    assert set(names(contract.CacheGroupSpec)) - {"layers", "tensors"} <= set(structs["trn_cache_group_spec"])


def test_every_function_is_documented_and_exported(build: Path) -> None:
    declared = set(re.findall(r"\b(trn_(?:executor|event)_\w+)\(", without_comments(HEADER)))
    assert set(re.findall(r"`(trn_(?:executor|event)_\w+)`", DOCUMENT)) == declared
    (library,) = (build / "trunnion-host").glob("_host.abi3.so")
    exported = ctypes.CDLL(str(library))
    for function in [*declared, "trn_abi_version", "trn_features", "trn_last_error", "trn_last_error_field"]:
        assert hasattr(exported, function), function
    assert exported.trn_abi_version() == api.ABI_VERSION
