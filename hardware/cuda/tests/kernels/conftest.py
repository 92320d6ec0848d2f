"""Tests of kernels: those under interpreted/ run in Triton's interpreter, in their own process; the others compile."""

from __future__ import annotations

import os

# Whether kernels are interpreted is settled when Triton first sees them: no process can do both.
collect_ignore_glob = ["test_*.py"] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted/*"]
