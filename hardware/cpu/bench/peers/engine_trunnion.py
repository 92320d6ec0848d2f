"""The worker of trunnion: requests to the C++ host, which batches them as they come."""

from __future__ import annotations

import time

from protocol import Generate, Generated, Limits, Prompts, serve

from trunnion_host.serving import HostConfig, SamplingParams, ServingHost

BLOCK = 16
PREFILL = 1024
"""Tokens of a step at most."""


def open_engine(path: str, limits: Limits) -> Generate:
    blocks = -(-limits.max_tokens // BLOCK) + limits.max_seqs + 1
    config = HostConfig(
        model=path,
        dtype="bfloat16",
        # The very file that llama.cpp reads, and as llama.cpp reads it.
        weights="native" if path.endswith(".gguf") else "auto",
        threads=limits.threads,
        max_model_len=limits.max_len,
        max_num_tokens=PREFILL,
        max_num_seqs=limits.max_seqs,
        kv_blocks=blocks,
        block_size=BLOCK,
    )
    host = ServingHost(config)

    def generate(prompts: Prompts, new_tokens: int) -> Generated:
        sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        called = time.perf_counter()
        rows = {host.submit(prompt, sampling): row for row, prompt in enumerate(prompts)}
        tokens: list[list[int]] = [[] for _ in rows]
        times: list[list[float]] = [[] for _ in rows]
        unfinished = len(rows)
        while unfinished:
            event = host.next_event()
            assert event is not None, "without a timeout an event comes or an error is raised"
            if event.error:
                raise RuntimeError(event.error)
            if event.token_id >= 0:
                tokens[rows[event.request_id]].append(event.token_id)
                times[rows[event.request_id]].append(time.perf_counter() - called)
            unfinished -= event.finished
        return Generated(tokens=tokens, times=times)

    return generate


if __name__ == "__main__":
    serve(open_engine)
