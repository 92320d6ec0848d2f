"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows on the upper layers where switched on."""

ARCHITECTURES = {"Qwen2ForCausalLM": "model:Qwen2ForCausalLM"}
