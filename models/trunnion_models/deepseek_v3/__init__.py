"""DeepSeek-V3 and R1: DeepSeek-V2's latent attention, experts chosen by sigmoids with a bias."""

ARCHITECTURES = {"DeepseekV3ForCausalLM": "model:DeepseekV3ForCausalLM"}
DRAFTS = {"DeepseekV3ForCausalLM": "mtp:DeepseekV3MTP"}
