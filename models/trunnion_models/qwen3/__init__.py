"""Qwen3 dense: Qwen2 with norms on the heads of q and k instead of biases."""

ARCHITECTURES = {"Qwen3ForCausalLM": "model:Qwen3ForCausalLM"}
