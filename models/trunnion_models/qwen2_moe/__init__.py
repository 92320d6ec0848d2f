"""Qwen2 with sparse experts and a shared one where the dense family has one feed-forward block."""

ARCHITECTURES = {"Qwen2MoeForCausalLM": "model:Qwen2MoeForCausalLM"}
