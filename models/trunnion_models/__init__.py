"""Model families: one folder per Hugging Face model type, discovered by `trunnion.registry`."""
