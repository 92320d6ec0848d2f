"""The worker of vLLM's CPU build: compiled, its engine in this process, stepped as it steps itself."""

from __future__ import annotations

import itertools
import time

from protocol import Generate, Generated, Limits, Prompts, serve
from vllm import LLM, SamplingParams

BATCHED = 2048
"""Tokens of a step at most; all prompts of a call fit."""


def open_engine(path: str, limits: Limits) -> Generate:
    engine = LLM(
        model=path,
        dtype="bfloat16",
        max_model_len=limits.max_len,
        max_num_seqs=limits.max_seqs,
        max_num_batched_tokens=BATCHED,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    ).llm_engine
    numbers = itertools.count()

    def generate(prompts: Prompts, new_tokens: int) -> Generated:
        sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        called = time.perf_counter()
        rows = {}
        for row, prompt in enumerate(prompts):
            name = str(next(numbers))
            engine.add_request(name, {"prompt_token_ids": list(prompt)}, sampling)
            rows[name] = row
        tokens: list[list[int]] = [[] for _ in prompts]
        times: list[list[float]] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            outputs = engine.step()
            moment = time.perf_counter() - called
            for output in outputs:
                row, found = rows[output.request_id], output.outputs[0].token_ids
                times[row] += [moment] * (len(found) - len(tokens[row]))
                tokens[row] = list(found)
        return Generated(tokens=tokens, times=times)

    return generate


if __name__ == "__main__":
    serve(open_engine)
