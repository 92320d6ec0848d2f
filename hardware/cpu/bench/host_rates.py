"""Tokens per second of SmolLM2 in bfloat16 through the C++ host: decodes of a batch, and a long prefill."""

from __future__ import annotations

from collections.abc import Sequence

from trunnion.text.sample_model import find_sample_model
from trunnion_host.serving import HostConfig, SamplingParams, ServingHost

PROMPT_LEN, NEW_TOKENS, PREFILL_LEN = 32, 33, 1024


def open_host(batches: Sequence[int]) -> ServingHost:
    """A host that takes any of `batches`."""
    config = HostConfig(
        model=str(find_sample_model("smollm2")),
        dtype="bfloat16",
        max_model_len=2048,
        max_num_tokens=PREFILL_LEN,
        max_num_seqs=max(batches),
        kv_blocks=max(batches) * 8 + 80,
        prefix_caching=False,
    )
    return ServingHost(config)


def decode_rate(host: ServingHost, batch: int) -> float:
    """Of `batch` requests at a time, from the host's own clock."""
    before = host.stats()
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    _drain(host, {host.submit([100 + row] * PROMPT_LEN, sampling) for row in range(batch)})
    after = host.stats()
    return (after.decode_tokens - before.decode_tokens) / (after.decode_seconds - before.decode_seconds)


def prefill_rate(host: ServingHost) -> float:
    """Of one prompt in one step."""
    before = host.stats()
    _drain(host, {host.submit(list(range(100, 100 + PREFILL_LEN)), SamplingParams(max_tokens=1, ignore_eos=True))})
    after = host.stats()
    return (after.prefill_tokens - before.prefill_tokens) / (after.prefill_seconds - before.prefill_seconds)


def _drain(host: ServingHost, open_requests: set[int]) -> None:
    while open_requests:
        event = host.next_event(timeout=300)
        assert event is not None, "no event within five minutes"
        assert not event.error, event.error
        if event.finished:
            open_requests.remove(event.request_id)
