"""Qwen3.5, its text: Qwen3-Next's layers with a dense MLP, and the delta nets' projections one by one."""

ARCHITECTURES = {
    "Qwen3_5ForCausalLM": "model:Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "model:Qwen3_5ForCausalLM",
}
DRAFTS = dict.fromkeys(ARCHITECTURES, "mtp:Qwen3_5MTP")
