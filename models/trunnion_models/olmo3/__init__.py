"""OLMo 3: OLMo 2 with windows in most layers, whose rope is not stretched."""

ARCHITECTURES = {"Olmo3ForCausalLM": "model:Olmo3ForCausalLM"}
