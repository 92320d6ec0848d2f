"""Where the tensors of a Llama checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import Rules, WeightMap

EXAONE_NAMES: Rules = (
    (r"^transformer\.wte", "model.embed_tokens"),
    (r"^transformer\.h", "model.layers"),
    (r"^transformer\.ln_f", "model.norm"),
    (r"attn\.attention", "self_attn"),
    (r"self_attn\.out_proj", "self_attn.o_proj"),
    (r"ln_1", "input_layernorm"),
    (r"ln_2", "post_attention_layernorm"),
    (r"mlp\.c_fc_0", "mlp.gate_proj"),
    (r"mlp\.c_fc_1", "mlp.up_proj"),
    (r"mlp\.c_proj", "mlp.down_proj"),
)
"""EXAONE 3 is a Llama whose tensors are called as GPT-2's."""

WEIGHT_MAP = WeightMap(
    rename=EXAONE_NAMES,
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
)
