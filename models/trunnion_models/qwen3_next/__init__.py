"""Qwen3-Next: gated delta nets with gated full attention on every fourth layer, and sparse experts."""

ARCHITECTURES = {"Qwen3NextForCausalLM": "model:Qwen3NextForCausalLM"}
DRAFTS = {"Qwen3NextForCausalLM": "mtp:Qwen3NextMTP"}
