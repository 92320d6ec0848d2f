"""GLM-4.5 and 4.6: heads of which half is rotated, before experts chosen as DeepSeek-V3 does."""

ARCHITECTURES = {"Glm4MoeForCausalLM": "model:Glm4MoeForCausalLM"}
DRAFTS = {"Glm4MoeForCausalLM": "mtp:Glm4MoeMTP"}
