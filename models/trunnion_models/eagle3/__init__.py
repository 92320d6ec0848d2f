"""EAGLE-3: one Llama layer with a checkpoint of its own, which drafts for a decoder from states between its layers."""

DRAFT_ARCHITECTURES = {
    "LlamaForCausalLMEagle3": "model:LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM": "model:LlamaForCausalLMEagle3",
    "Eagle3Speculator": "model:LlamaForCausalLMEagle3",
    "Eagle3DraftModel": "model:LlamaForCausalLMEagle3",
    "LlamaForCausalLM": "model:LlamaForCausalLMEagle3",
}
"""As SGLang, vLLM and speculators call it; the authors' own checkpoints have the name of a whole decoder."""

DRAFT_FIELD = "draft_vocab_size"
"""What a configuration of theirs has, and none of a whole decoder."""
