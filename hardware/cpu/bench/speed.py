"""Times SmolLM2 in bfloat16 through the C++ host beside transformers: decode at batch 1, 8, 32 and a long prefill."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from host_rates import NEW_TOKENS, PREFILL_LEN, PROMPT_LEN, decode_rate, open_host, prefill_rate
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from trunnion.text.sample_model import find_sample_model

BATCHES = (1, 8, 32)


def main(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    torch.set_num_threads(threads)
    with open_host(BATCHES) as host:
        peer = _peer()
        contests: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            f"decode, batch {batch}, tokens/s": (
                lambda batch=batch: decode_rate(host, batch),
                lambda batch=batch: _peer_decode(peer, batch),
            )
            for batch in BATCHES
        }
        contests[f"prefill {PREFILL_LEN}, tokens/s"] = (lambda: prefill_rate(host), lambda: _peer_prefill(peer))
        results = {}
        with tqdm(total=len(contests) * (rounds + 1) * 2, desc="speed", file=sys.stderr, leave=False) as bar:
            for name, contestants in contests.items():
                samples: list[list[float]] = [[], []]
                for _ in range(rounds + 1):
                    for index, run in enumerate(contestants):
                        samples[index].append(run())
                        bar.update()
                own, other = (statistics.median(values[1:]) for values in samples)
                results[name] = {"trunnion": own, "transformers": other, "ratio": own / other}
    return results


def _peer() -> PreTrainedModel:
    """transformers on the same weights, its default attention."""
    path = find_sample_model("smollm2")
    names = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**names), dtype=torch.bfloat16).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    return model


@torch.inference_mode()
def _peer_decode(model: PreTrainedModel, batch: int) -> float:
    inputs = torch.stack([torch.full((PROMPT_LEN,), 100 + row) for row in range(batch)])
    output = model(inputs, use_cache=True)
    started = time.perf_counter()
    for _ in range(NEW_TOKENS - 1):
        output = model(output.logits[:, -1:].argmax(-1), past_key_values=output.past_key_values, use_cache=True)
    return batch * (NEW_TOKENS - 1) / (time.perf_counter() - started)


@torch.inference_mode()
def _peer_prefill(model: PreTrainedModel) -> float:
    inputs = torch.arange(100, 100 + PREFILL_LEN).unsqueeze(0)
    started = time.perf_counter()
    model(inputs, use_cache=True, logits_to_keep=1)
    return PREFILL_LEN / (time.perf_counter() - started)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
