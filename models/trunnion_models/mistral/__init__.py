"""Mistral: Llama without biases, with an optional window over all layers."""

ARCHITECTURES = {"MistralForCausalLM": "model:MistralForCausalLM"}
