"""Caches in fp8 through the serving host: half the bytes of bfloat16, and the text that the same caches give alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.tiny_llama import VOCAB, write_tiny_llama

from trunnion_host.serving import HostConfig, InvalidError, SamplingParams, ServingHost, Stats

PROMPT = [(7 * index + 3) % VOCAB for index in range(14)]
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of two layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


def config(folder: Path, **changes: object) -> HostConfig:
    small: dict[str, object] = {
        "max_num_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 64,
        "block_size": 4,
        "dtype": "float32",
        "exit_on_fatal": False,
    }
    return HostConfig(model=str(folder), hardware="cpu", **{**small, **changes})  # type: ignore[arg-type]


def texts(folder: Path, **changes: object) -> tuple[list[list[int]], Stats]:
    """The prompt three times, one after the other, the last with another end."""
    found = []
    with ServingHost(config(folder, **changes)) as host:
        for prompt in (PROMPT, PROMPT, [*PROMPT[:-1], 5]):
            request = host.submit(prompt, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True))
            found.append([event.token_id for event in host.stream(request) if not event.finished])
        return found, host.stats()


def test_text_is_the_same_with_and_without_a_prefix_cache(folder: Path) -> None:
    """What a hit reads was stored by another request, of the same scales: nothing of it is computed otherwise."""
    cached, stats = texts(folder, kv_cache_dtype="fp8_e4m3")
    alone, without = texts(folder, kv_cache_dtype="fp8_e4m3", prefix_caching=False)
    assert cached == alone
    assert stats.prefix_hit_tokens >= 2 * 12 and without.prefix_hit_tokens == 0
    assert cached[0] == cached[1] != cached[2]


def test_text_is_near_that_of_whole_caches(folder: Path) -> None:
    """Three bits of mantissa: a random model's greedy text may part late, not at once."""
    (narrow, *_), _ = texts(folder, kv_cache_dtype="fp8_e4m3")
    (whole, *_), _ = texts(folder)
    assert narrow[:4] == whole[:4]


def test_an_unknown_dtype_is_one_line(folder: Path) -> None:
    with pytest.raises(InvalidError, match=r"kv_cache_dtype.*'fp4'.*auto, fp8_e4m3") as caught:
        ServingHost(config(folder, kv_cache_dtype="fp4"))
    assert "\n" not in str(caught.value)
