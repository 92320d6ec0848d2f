"""Gemma 3, its text: alternating windows with two ropes, four norms per layer, scaled embeddings."""

ARCHITECTURES = {
    "Gemma3ForCausalLM": "model:Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration": "model:Gemma3ForConditionalGeneration",
}
