"""Runs a module where the simulation is installed: `python -m ascend_simulator --devices 2 MODULE [ARGUMENTS]`."""

from __future__ import annotations

import argparse
import runpy
import sys

from ascend_simulator.install import DEFAULT_SOC, install

parser = argparse.ArgumentParser(prog="ascend_simulator", description=__doc__)
parser.add_argument("--soc", default=DEFAULT_SOC, help=f"what the device says that it is (default: {DEFAULT_SOC})")
parser.add_argument("--devices", type=int, default=1, help="how many there are; this process uses one (default: 1)")
parser.add_argument("module", help="run as `python -m` runs it")
parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")

if __name__ == "__main__":
    options = parser.parse_args()
    install(soc_name=options.soc, num_devices=options.devices)
    sys.argv = [options.module, *options.arguments]
    runpy.run_module(options.module, run_name="__main__", alter_sys=True)
