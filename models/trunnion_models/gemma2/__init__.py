"""Gemma 2: windows in every other layer, soft caps on scores and logits, four norms per layer, scaled embeddings."""

ARCHITECTURES = {"Gemma2ForCausalLM": "model:Gemma2ForCausalLM"}
