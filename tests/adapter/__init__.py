"""The adapter over every causal model of transformers, in tiny configurations."""
