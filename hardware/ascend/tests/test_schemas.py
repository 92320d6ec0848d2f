"""Calls of torch_npu's operators in this folder's sources fit the schemas that the real torch_npu registers.

Calls in branches that no test takes are looked at too, and no NPU is needed for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hardware.ascend.tests.npu_calls import calls_in, misfits, schemas

torch_npu = pytest.importorskip("torch_npu")
# torch_npu registers these when the first of them is called.
torch.ops.load_library(str(Path(torch_npu.__file__).parent / "lib" / "libop_plugin_atb.so"))

FOLDER = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for part in ("trunnion_ascend", "tests", "bench") for path in (FOLDER / part).rglob("*.py"))
PINNED = Path(__file__).with_name("npu_schemas.txt")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_calls_fit_their_schemas(path: Path) -> None:
    assert not list(misfits(path))


def test_schemas_are_those_that_this_was_written_for() -> None:
    """An operator that another version of torch_npu has changed is seen here, and not on the first machine with it."""
    used = {call.name for path in SOURCES for call in calls_in(path)}
    found = sorted(str(schema) for name in used for schema in schemas(name))
    assert found == PINNED.read_text().splitlines(), "\n".join(["torch_npu has:", *found])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("torch_npu.npu_rms_norm(x, g, eps=1e-5)", "eps is none of input, gamma, epsilon"),
        ("torch.ops.npu.npu_swiglu(x, -1, 2)", "3 arguments by place, 2 can be"),
        ("torch_npu.npu_rotary_mul(x, r1=cos)", "r2 is not given"),
        ("torch_npu.npu_rms_norm(x, g, epsilon=1e-5)", None),
        ("torch_npu.npu_rotary_mul(*inputs, **options)", None),
        ("torch_npu.npu.synchronize()", None),
    ],
    ids=["misnamed", "too many", "missing", "right", "spread", "no operator"],
)
def test_a_call_that_does_not_fit_is_told(tmp_path: Path, source: str, message: str | None) -> None:
    path = tmp_path / "calls.py"
    path.write_text(source)
    found = list(misfits(path))
    assert found == [] if message is None else len(found) == 1 and message in found[0]


def test_the_registry_has_torch_npus_operators() -> None:
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("npu::")}
    assert len(names) > 300
