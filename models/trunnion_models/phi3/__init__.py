"""Phi-3, Phi-3.5 and Phi-4 (mini): Llama's decoder, stored with fused projections; LongRoPE over part of a head."""

ARCHITECTURES = {"Phi3ForCausalLM": "model:Phi3ForCausalLM"}
