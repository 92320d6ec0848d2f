"""The worker of OpenVINO GenAI: its pipeline over a GGUF file with its own defaults, a cache in 8 bits among them."""

from __future__ import annotations

import time

import numpy as np
import openvino
import openvino_genai
from protocol import Generate, Generated, Limits, Prompts, serve


def open_engine(path: str, limits: Limits) -> Generate:
    pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=limits.threads)

    def generate(prompts: Prompts, new_tokens: int) -> Generated:
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens, settings.do_sample, settings.ignore_eos = new_tokens, False, True
        called = time.perf_counter()
        found = pipeline.generate(inputs, settings)
        del called
        metrics = found.perf_metrics.raw_metrics
        # Microseconds to the first token; moments of a clock, one a step, in milliseconds.
        first = metrics.m_times_to_first_token[0] / 1e6
        moments = metrics.m_new_token_times
        times = [first + (moment - moments[0]) / 1e3 for moment in moments]
        return Generated(tokens=[list(row) for row in found.tokens], times=[times] * len(prompts))

    return generate


if __name__ == "__main__":
    serve(open_engine)
