"""`python -m trunnion_bundle`: as `trunnion bundle`."""

from __future__ import annotations

import sys

from trunnion_bundle.cli import main

sys.exit(main(prog="python -m trunnion_bundle"))
