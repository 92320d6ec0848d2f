"""Settings of an executor and the context a model is built in: frozen dataclasses, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from trunnion.contract import Limits, Role, Staging
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.methods import LinearMethod, MoEMethod
from trunnion.interfaces.quantization import Quantization, Scheme

DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
KV_CACHE_DTYPES: dict[str, torch.dtype] = {"fp8_e4m3": torch.float8_e4m3fn}
"""What keys and values may be cached in instead of the model's dtype."""
WEIGHTS = ("auto", "native")
"""How quantised weights are kept: as the hardware package has it, or as they lie in the file."""
ACTIVATIONS = ("auto", "int8")
"""What rows meet integer weights in: what their format says, or int8 that they are rounded to on the way."""
MAX_THREADS = 1024
"""Beyond this OpenMP may fail to start its threads, and then ends the process."""


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig:
    """What `create` is told. `dtype` "auto" takes the checkpoint's."""

    model: Path
    hardware: str
    limits: Limits
    dtype: str = "auto"
    device_index: int = 0
    tp_rank: int = 0
    tp_size: int = 1
    tp_init_method: str = ""
    progress: bool = False
    """Show a progress bar on stderr while weights load, and in long work of `warm_up`."""
    tuning_seconds: float | None = None
    """How long `warm_up` may time kernels of a package that chooses among configurations; None: as the package has it.
    0 times nothing, and takes what an earlier start has found."""
    role: Role = Role.TARGET
    """A draft is `draft_model`, or the head that `model` carries; it shares with the executor of the decoder."""
    staging: Staging = Staging.HOST
    keep_hidden: bool = False
    """Keep the hidden states of each step for a draft; a draft keeps its own anyway."""
    kv_cache_dtype: str = "auto"
    """What keys and values are cached in: "auto" (the model's dtype) or "fp8_e4m3". States of recurrent layers keep
    their own dtype."""
    draft_model: Path | None = None
    """The checkpoint of a draft that has its own; both executors are told, for its target keeps what it reads."""
    port: Path | None = None
    """The folder of a model family that is not installed, which is asked beside those that are (`trunnion.ports`)."""
    num_threads: int = 0
    """Threads of the host that this rank computes with; 0: as many as the hardware package chooses."""
    weights: str = "auto"
    """How quantised weights of `model` are kept: "auto", or "native", the blocks of a .gguf file as they lie."""
    activations: str = "auto"
    """What rows meet integer weights in: "auto" (as their format has it), or "int8", rounded on the way."""

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; choices: auto, {', '.join(DTYPES)}")
        if self.kv_cache_dtype != "auto" and self.kv_cache_dtype not in KV_CACHE_DTYPES:
            choices = ", ".join(KV_CACHE_DTYPES)
            raise ValueError(f"unknown kv_cache_dtype {self.kv_cache_dtype!r}; choices: auto, {choices}")
        for name, choices in (("weights", WEIGHTS), ("activations", ACTIVATIONS)):
            if (given := getattr(self, name)) not in choices:
                raise ValueError(f"unknown {name} {given!r}; choices: {', '.join(choices)}")
        if not 0 <= self.num_threads <= MAX_THREADS:
            raise ValueError(f"num_threads is {self.num_threads}, expected 0 (the hardware's choice) ... {MAX_THREADS}")
        if self.tuning_seconds is not None and not self.tuning_seconds >= 0:
            raise ValueError(f"tuning_seconds is {self.tuning_seconds}, expected 0 or more, or None")
        if self.draft_model is not None and self.role is Role.TARGET and not self.keep_hidden:
            raise ValueError(
                f"draft_model is {str(self.draft_model)!r}, and keep_hidden is not set: it reads what is kept"
            )


@dataclass(frozen=True, kw_only=True)
class PoolingConfig:
    """How a request's hidden states become an embedding, by the names of sentence-transformers."""

    mode: str = "lasttoken"
    """The row of the last token (`lasttoken`) or of the first (`cls`), or the mean of all rows (`mean`)."""
    normalize: bool
    """Scale each embedding to length 1."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What a model's constructor may know: dtype, ranks, methods, and how long a request can get. No request state."""

    hardware: Hardware
    dtype: torch.dtype
    parallel: ParallelGroup = field(default_factory=ParallelGroup)
    quantization: Quantization | None = None
    """What the checkpoint says about its layers; None: it is unquantised."""
    max_model_len: int | None = None
    """Longest request; None means `max_position_embeddings`. Sizes rope tables."""
    pooling: PoolingConfig | None = None
    """How a pooling model pools; None for a language model."""
    kv_cache_dtype: torch.dtype | None = None
    """What keys and values are cached in; None means `dtype`."""

    def linear_method(self, prefix: str) -> LinearMethod:
        """Of the linear layer named `prefix`."""
        return self.hardware.linear_method(self._scheme(prefix), prefix)

    def moe_method(self, prefix: str) -> MoEMethod:
        """Of the block of experts named `prefix`."""
        return self.hardware.moe_method(self._scheme(prefix), prefix)

    def embedding_method(self, prefix: str) -> LinearMethod | None:
        """Of the embedding named `prefix`; None: it is unquantised, and looks up rows of a plain weight."""
        scheme = None if self.quantization is None else self.quantization.embedding_scheme(prefix)
        return None if scheme is None else self.hardware.linear_method(scheme, prefix)

    def _scheme(self, prefix: str) -> Scheme | None:
        return None if self.quantization is None else self.quantization.scheme(prefix)
