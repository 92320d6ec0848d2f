"""The named errors of trunnion: what a user or a host can act upon."""

from __future__ import annotations


class TrunnionError(Exception):
    """Base of every error raised on purpose; its text is one line fit for a user."""


class UnsupportedError(TrunnionError, ValueError):
    """A model, rope, quantisation or option that this build does not run, named."""


class UnknownArchitectureError(UnsupportedError):
    """An architecture that no family has, in the role that is wanted."""


class ConfigError(TrunnionError, ValueError):
    """A `config.json` that lacks a field, or carries a value outside its limits."""


class ImageError(TrunnionError, ValueError):
    """An image of a prompt that cannot be read, or cut into patches, as given."""


class WeightsError(TrunnionError, ValueError):
    """A checkpoint whose tensors do not add up to the model: missing, unexpected, duplicated or of a wrong shape."""


class PortError(TrunnionError, ValueError):
    """A family's folder that is not installed and cannot be used: no family, or code that fails, by file and line."""


class BatchRefused(TrunnionError, ValueError):
    """A batch that breaks the contract; nothing was enqueued and the caches are as they were."""
