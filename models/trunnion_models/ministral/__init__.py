"""Ministral: Mistral with windows by layer."""

ARCHITECTURES = {"MinistralForCausalLM": "model:MinistralForCausalLM"}
