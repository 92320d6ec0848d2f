"""OLMo 2: what its configuration leaves out, and how far its rope reaches."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import UnsupportedError
from trunnion_models.olmo2.config import Olmo2Config

BASE: dict[str, Any] = {
    "model_type": "olmo2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_are_those_of_the_family() -> None:
    config = Olmo2Config.from_hf(BASE)
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-5)
    assert (config.max_model_len, config.windows) == (2048, (None, None))
    assert config.ropes["full_attention"].rope_theta == 10000.0
    assert not (config.attention_bias or config.tie_word_embeddings)


def test_a_stretched_rope_reaches_further() -> None:
    stretched = BASE | {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 500000}
    config = Olmo2Config.from_hf(stretched)
    assert (config.max_model_len, config.ropes["full_attention"].rope_theta) == (8192, 500000.0)


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="olmo2: hidden_act 'gelu' is not supported"):
        Olmo2Config.from_hf(BASE | {"hidden_act": "gelu"})
