"""GLM-4-0414 and GLM-Z1 (9B, 32B): four norms per layer, neighbouring features rotated in half of each head."""

ARCHITECTURES = {"Glm4ForCausalLM": "model:Glm4ForCausalLM"}
