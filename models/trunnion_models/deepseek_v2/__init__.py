"""DeepSeek-V2: latent attention and fine-grained experts with shared ones, routed within groups of experts."""

ARCHITECTURES = {"DeepseekV2ForCausalLM": "model:DeepseekV2ForCausalLM"}
