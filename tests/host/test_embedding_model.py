"""An embedding model through the C++ host against transformers: the same vectors, however requests are batched."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3Model

from trunnion_host.serving import HostConfig, InvalidError, ServingHost

LENGTHS = (1, 2, 9, 16, 17, 40, 64, 5, 33, 64)


@pytest.fixture(scope="module")
def reference() -> Qwen3Model:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=131,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return Qwen3Model(config).to(torch.float32).eval()


@pytest.fixture(scope="module")
def model(reference: Qwen3Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as sentence-transformers writes it."""
    folder = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in modules])
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return folder


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(131) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def library(build: Path) -> Path:
    (found,) = (build / "trunnion-host").glob("_host.abi3.so")
    return found


def config_of(model: Path, **changes: int | bool) -> HostConfig:
    limits = {"max_num_tokens": 24, "max_num_seqs": 4, "max_model_len": 64, "block_size": 8}
    return HostConfig(model=str(model), exit_on_fatal=False, **{**limits, **changes})  # type: ignore[arg-type]


@torch.inference_mode()
def test_embeddings_are_those_of_transformers(
    model: Path, library: Path, reference: Qwen3Model, texts: list[list[int]]
) -> None:
    expected = [F.normalize(reference(torch.tensor([text])).last_hidden_state[0, -1], dim=-1) for text in texts]
    with ServingHost(config_of(model), library=library) as host:
        assert host.embedding_width == 48
        for _ in range(2):
            ids = [host.submit_embedding(text) for text in texts]
            events = [host.next_event(request_id) for request_id in ids]
            for event, truth in zip(events, expected, strict=True):
                assert event is not None and event.embedding is not None
                torch.testing.assert_close(torch.tensor(event.embedding), truth, rtol=0, atol=2e-6)
        stats = host.stats()
        assert stats.steps == stats.execute_calls == stats.replays
        assert stats.prefix_hit_tokens > 0
        assert (stats.blocks_used, stats.output_tokens) == (0, 0)
        assert host.embed(texts[-1]) == pytest.approx(expected[-1].tolist(), abs=2e-6)
        with pytest.raises(InvalidError, match="kind is generate, but this model pools embeddings"):
            host.submit(texts[0])


def test_the_folder_without_its_pooling_is_refused(model: Path, library: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(model / file)
    with pytest.raises(InvalidError, match=r"'Qwen3Model' has no language-model head, and there is no modules\.json"):
        ServingHost(config_of(tmp_path), library=library)
