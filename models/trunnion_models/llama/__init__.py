"""Llama 2 and 3, SmolLM2: pre-norm decoders with grouped-query attention and a SwiGLU MLP."""

ARCHITECTURES = {"LlamaForCausalLM": "model:LlamaForCausalLM"}
