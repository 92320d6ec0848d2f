"""SmolLM3: Llama with layers that do not rotate, and windows in those if it has any."""

ARCHITECTURES = {"SmolLM3ForCausalLM": "model:SmolLM3ForCausalLM"}
