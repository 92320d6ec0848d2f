"""What a person did wrong with a bundle."""

from __future__ import annotations


class BundleError(ValueError):
    """A bundle, a policy or a request that is refused: the text names the place, the value, the limit, the choices."""
