"""Ministral 3: Mistral with YaRN, and queries that grow with their position."""

ARCHITECTURES = {"Ministral3ForCausalLM": "model:Ministral3ForCausalLM"}
