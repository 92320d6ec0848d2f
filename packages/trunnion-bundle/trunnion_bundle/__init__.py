"""Model bundles: graph, weights and serving policy in one folder, served by C++. See docs/."""

from __future__ import annotations

from trunnion_bundle._versions import VERSION
from trunnion_bundle.errors import BundleError
from trunnion_bundle.runner import Runner, load

__version__ = VERSION
__all__ = ["BundleError", "Runner", "__version__", "load"]
