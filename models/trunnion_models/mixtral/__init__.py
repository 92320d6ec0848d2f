"""Mixtral: Mistral with sparse experts where the dense family has one feed-forward block."""

ARCHITECTURES = {"MixtralForCausalLM": "model:MixtralForCausalLM"}
