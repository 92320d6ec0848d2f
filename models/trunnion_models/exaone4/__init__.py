"""EXAONE 4: norms behind the layers and on heads of q and k; layers with windows rotate, the others do not."""

ARCHITECTURES = {"Exaone4ForCausalLM": "model:Exaone4ForCausalLM"}
