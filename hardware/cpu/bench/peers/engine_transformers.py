"""The worker of transformers: its default attention and cache, one forward pass a token."""

from __future__ import annotations

import time

import torch
from protocol import Generate, Generated, Limits, Prompts, joint_steps, serve
from transformers import AutoModelForCausalLM


def open_engine(path: str, limits: Limits) -> Generate:
    torch.set_num_threads(limits.threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def generate(prompts: Prompts, new_tokens: int) -> Generated:
        called = time.perf_counter()
        inputs, cache, moments, tokens = torch.tensor(prompts), None, [], []
        for _ in range(new_tokens):
            output = model(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            inputs, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
            tokens.append(inputs)
            moments.append(time.perf_counter())
        return Generated(tokens=torch.cat(tokens, 1).tolist(), times=joint_steps(called, moments, len(prompts)))

    return generate


if __name__ == "__main__":
    serve(open_engine)
