"""Cohere 2 (Command R7B, Command A, Tiny Aya): attention beside the MLP, layers with a window and a rope or neither."""

ARCHITECTURES = {"Cohere2ForCausalLM": "model:Cohere2ForCausalLM"}
