"""Qwen3 with sparse experts where the dense family has one feed-forward block."""

ARCHITECTURES = {"Qwen3MoeForCausalLM": "model:Qwen3MoeForCausalLM"}
