"""The worker of llama.cpp: a batch of sequences in one context through its C interface, as its own batched bench."""

from __future__ import annotations

import time
from collections.abc import Sequence

import llama_cpp
import numpy as np
from protocol import Generate, Generated, Limits, Prompts, joint_steps, serve

BATCHED = 2048


def open_engine(path: str, limits: Limits) -> Generate:
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = limits.max_tokens
    settings.n_batch = settings.n_ubatch = BATCHED
    settings.n_seq_max = limits.max_seqs
    settings.n_threads = settings.n_threads_batch = limits.threads
    settings.kv_unified = True
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError(f"llama.cpp cannot make a context of {limits.max_tokens} tokens")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(BATCHED, 0, 1)

    def step(rows: Prompts, position: int) -> list[int]:
        """Add the same number of tokens to each sequence; the best next token of each."""
        count = 0
        last = []
        for row, tokens in enumerate(rows):
            for offset, token in enumerate(tokens):
                batch.token[count], batch.pos[count] = token, position + offset
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, row
                batch.logits[count] = offset == len(tokens) - 1
                count += 1
            last.append(count - 1)
        batch.n_tokens = count
        if status := llama_cpp.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode: status {status}")
        return [_best(llama_cpp.llama_get_logits_ith(context, index), vocabulary) for index in last]

    def generate(prompts: Prompts, new_tokens: int) -> Generated:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        called = time.perf_counter()
        rows: Prompts = prompts
        steps: list[Sequence[int]] = []
        moments, position = [], 0
        for _ in range(new_tokens):
            steps.append(step(rows, position))
            moments.append(time.perf_counter())
            position += len(rows[0])
            rows = [[token] for token in steps[-1]]
        tokens = [list(row) for row in zip(*steps, strict=True)]
        return Generated(tokens=tokens, times=joint_steps(called, moments, len(prompts)))

    return generate


def _best(logits: llama_cpp.ctypes.Array, count: int) -> int:
    return int(np.ctypeslib.as_array(logits, shape=(count,)).argmax())


if __name__ == "__main__":
    serve(open_engine)
