"""What trunnion-ascend does on this machine's NPU, in one table and at most five minutes: `python ci/npu_check.py`.

Needs this checkout, torch and torch_npu with the machine's CANN; no internet and nothing installed beside them. Runs on
whatever versions are found and names what differs from `ci/versions.toml`; uses transformers where it is, and says what
it leaves out without it. Exit status: 0, 1 if something failed, 2 if there is no NPU. `--simulated` runs the same over
the simulated device of the package's tests, which tries the script and proves no device.
"""

from __future__ import annotations

import argparse
import sys

from device_check.script import DeviceScript
from device_check.table import FAILED, NOTED, PASSED, Table


def _machine(table: Table, options: argparse.Namespace) -> bool:
    import torch

    from trunnion_ascend import environment

    table.add("device", torch.npu.get_device_name(), PASSED)
    for problem in environment.problems():
        result = FAILED if problem.fatal else NOTED
        table.add("device", problem.what, result, f"found {problem.found}; needed: {problem.needed}")
    for what, fact in environment.facts().items():
        table.add("device", what, NOTED, fact)
    return True


SCRIPT = DeviceScript(
    hardware="ascend",
    device_type="npu",
    device="NPU",
    description=__doc__,
    add_options=lambda parser: None,
    machine=_machine,
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
