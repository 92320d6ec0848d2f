"""Model bundles: graph, weights and serving policy in one folder, served by C++. See docs/."""

from __future__ import annotations

from trunnion_bundle._versions import VERSION
from trunnion_bundle.errors import BundleError

__version__ = VERSION
__all__ = ["BundleError", "__version__"]
