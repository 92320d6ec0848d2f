"""Runs a module where the simulation is installed: `python -m cuda_simulator MODULE [ARGUMENTS]`."""

from __future__ import annotations

import argparse
import runpy
import sys

from cuda_simulator.install import install
from cuda_simulator.modules import prepare_modules

parser = argparse.ArgumentParser(prog="cuda_simulator", description=__doc__)
parser.add_argument("--no-triton", action="store_true", help="as on a device without Triton; else it is interpreted")
parser.add_argument("module", help="run as `python -m` runs it")
parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")

if __name__ == "__main__":
    options = parser.parse_args()
    install(interprets_triton=not options.no_triton)
    prepare_modules()
    sys.argv = [options.module, *options.arguments]
    runpy.run_module(options.module, run_name="__main__", alter_sys=True)
