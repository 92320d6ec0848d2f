"""Qwen3 dense: Qwen2 with norms on the heads of q and k instead of biases; and the embedding models made of it."""

ARCHITECTURES = {"Qwen3ForCausalLM": "model:Qwen3ForCausalLM"}

POOLING_ARCHITECTURES = {"Qwen3ForCausalLM": "pooling:Qwen3Embedding", "Qwen3Model": "pooling:Qwen3Embedding"}
