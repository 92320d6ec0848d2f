"""Qwen3.5-MoE, its text: Qwen3.5's layers, each with sparse experts and a shared one."""

ARCHITECTURES = {
    "Qwen3_5MoeForCausalLM": "model:Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "model:Qwen3_5MoeForCausalLM",
}
DRAFTS = dict.fromkeys(ARCHITECTURES, "mtp:Qwen3_5MoeMTP")
