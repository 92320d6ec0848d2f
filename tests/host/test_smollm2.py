"""SmolLM2-135M through the C++ host against transformers: the same greedy tokens, however requests are batched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from trunnion.text.sample_model import find_sample_model
from trunnion_host.serving import Event, HostConfig, SamplingParams, ServingHost, Stats

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a little robot who",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
    "1, 2, 3, 5, 8, 13,",
)
NUM_TOKENS = 64
TIE = 1e-4
"""Two logits this close may be taken in either order; such places are listed."""


@dataclass(frozen=True)
class Continuation:
    """What transformers says: the prompt, its greedy continuation, and how far ahead each token was of the second."""

    prompt: list[int]
    tokens: list[int]
    leads: list[float]


@pytest.fixture(scope="module")
def model_path() -> Path:
    return find_sample_model("smollm2")


@pytest.fixture(scope="module")
def truth(model_path: Path) -> list[Continuation]:
    """transformers in float32, one prompt at a time."""
    names = {"pretrained_model_name_or_path": str(model_path.parent), "gguf_file": model_path.name}
    tokenizer = AutoTokenizer.from_pretrained(**names)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**names), dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(model_path), return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(tensors, strict=False)
    assert missing.missing_keys == ["lm_head.weight"], "the head is tied to the embedding"
    assert not missing.unexpected_keys
    return [_continue(model, tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]


@torch.inference_mode()
def _continue(model: torch.nn.Module, prompt: list[int]) -> Continuation:
    inputs, cache = torch.tensor([prompt]), None
    tokens, leads = [], []
    while len(tokens) < NUM_TOKENS:
        output = model(inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        best = output.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]))
        inputs = torch.tensor([[tokens[-1]]])
    return Continuation(prompt, tokens, leads)


def _serve(host: ServingHost, prompts: list[list[int]]) -> tuple[list[list[int]], list[Event]]:
    """Submit all prompts at once -> the tokens and the finished event of each, in order."""
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    order = [host.submit(prompt, sampling) for prompt in prompts]
    tokens: dict[int, list[int]] = {request: [] for request in order}
    finished: dict[int, Event] = {}
    while len(finished) < len(order):
        event = host.next_event(timeout=120)
        assert event is not None, "no event within two minutes"
        if event.finished:
            finished[event.request_id] = event
        else:
            tokens[event.request_id].append(event.token_id)
    return [tokens[request] for request in order], [finished[request] for request in order]


def _compare(truth: list[Continuation], outputs: list[list[int]]) -> None:
    for expected, tokens in zip(truth, outputs, strict=True):
        assert len(tokens) == NUM_TOKENS
        if tokens == expected.tokens:
            continue
        first = next(i for i, (a, b) in enumerate(zip(tokens, expected.tokens, strict=True)) if a != b)
        lead = expected.leads[first]
        assert lead < TIE, f"token {first} is {tokens[first]}, transformers has {expected.tokens[first]} by {lead:.2e}"
        print(f"tie at token {first} of prompt {expected.prompt}: lead {lead:.2e}")


def _host(model_path: Path, **options: object) -> ServingHost:
    settings = {"max_model_len": 256, "max_num_tokens": 64, "max_num_seqs": 8, "watchdog_s": 120.0, **options}
    return ServingHost(HostConfig(model=str(model_path), dtype="float32", **settings))  # type: ignore[arg-type]


def _check_counts(stats: Stats) -> None:
    """One execute per step, one GIL entry per execute."""
    assert stats.steps == stats.execute_calls == stats.step_gil_entries
    assert stats.refused_steps == stats.failed_steps == 0
    assert stats.blocks_used == 0


@pytest.fixture(scope="module")
def roomy_host(model_path: Path) -> Iterator[ServingHost]:
    with _host(model_path) as host:
        yield host


def test_one_at_a_time(roomy_host: ServingHost, truth: list[Continuation]) -> None:
    """Prefill, then decode at batch 1."""
    _compare(truth, [_serve(roomy_host, [expected.prompt])[0][0] for expected in truth])
    _check_counts(roomy_host.stats())


def test_five_together_with_prefix_hits(roomy_host: ServingHost, truth: list[Continuation]) -> None:
    """Five at once; the second time, prompts with their continuations are found in the prefix cache."""
    prompts = [expected.prompt for expected in truth]
    _compare(truth, _serve(roomy_host, prompts)[0])
    before = roomy_host.stats().prefix_hit_tokens
    longer = [Continuation(e.prompt + e.tokens[:32], e.tokens[32:], e.leads[32:]) for e in truth]
    outputs, events = _serve(roomy_host, [expected.prompt for expected in longer])
    _compare(
        [Continuation(e.prompt, e.tokens + t[32:], e.leads) for e, t in zip(longer, outputs, strict=True)], outputs
    )
    assert all(event.num_cached_tokens >= 16 for event in events)
    assert roomy_host.stats().prefix_hit_tokens > before
    _check_counts(roomy_host.stats())


@pytest.mark.parametrize(
    ("prefix_caching", "overlap"),
    [(True, False), (False, False), (True, True)],
    ids=["prefix", "no-prefix", "overlap"],
)
def test_preemption(model_path: Path, truth: list[Continuation], prefix_caching: bool, overlap: bool) -> None:
    """Five at once in a pool that holds about three of them."""
    settings = {"kv_blocks": 16, "max_num_tokens": 24, "prefix_caching": prefix_caching, "overlap": overlap}
    with _host(model_path, **settings) as host:
        _compare(truth, _serve(host, [expected.prompt for expected in truth])[0])
        stats = host.stats()
    assert stats.preemptions > 0
    assert prefix_caching or stats.prefix_hit_tokens == 0
    assert stats.overlapped_steps == (stats.steps - 1 if overlap else 0)
    _check_counts(stats)
