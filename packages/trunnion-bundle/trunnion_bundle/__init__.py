"""Model bundles: graph, weights and serving policy in one folder, served by C++. See docs/."""

from __future__ import annotations

from trunnion_bundle._versions import VERSION
from trunnion_bundle.endpoint import Endpoint, Input
from trunnion_bundle.errors import BundleError
from trunnion_bundle.policy import Batching
from trunnion_bundle.runner import Runner, load
from trunnion_bundle.saving import save
from trunnion_bundle.steps import Step
from trunnion_bundle.tensors import IndexRange, Pad, Symbol, Tolerance

__version__ = VERSION
__all__ = [
    "Batching", "BundleError", "Endpoint", "IndexRange", "Input", "Pad", "Runner", "Step", "Symbol", "Tolerance",
    "__version__", "load", "save",
]  # fmt: skip
