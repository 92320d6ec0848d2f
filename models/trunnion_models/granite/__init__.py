"""Granite 3: Llama's decoder with a multiplier on embeddings, residual branches, attention scores and logits."""

ARCHITECTURES = {"GraniteForCausalLM": "model:GraniteForCausalLM"}
