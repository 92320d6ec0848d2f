"""OLMo 2: norms after attention and MLP instead of before, and over the whole of q and k."""

ARCHITECTURES = {"Olmo2ForCausalLM": "model:Olmo2ForCausalLM"}
