"""Granite with sparse experts where the dense family has one feed-forward block."""

ARCHITECTURES = {"GraniteMoeForCausalLM": "model:GraniteMoeForCausalLM"}
