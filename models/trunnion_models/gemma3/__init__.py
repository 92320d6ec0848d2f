"""Gemma 3 text: alternating windows with two ropes, four norms per layer, scaled embeddings."""

ARCHITECTURES = {"Gemma3ForCausalLM": "model:Gemma3ForCausalLM"}
