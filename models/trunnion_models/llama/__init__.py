"""Llama 2 and 3, Mistral, SmolLM2: pre-norm decoders with grouped-query attention and a SwiGLU MLP."""

ARCHITECTURES = {"LlamaForCausalLM": "model:LlamaForCausalLM", "MistralForCausalLM": "model:MistralForCausalLM"}
