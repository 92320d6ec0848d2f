"""Holds a model against transformers' on the same weights and tokens, module by module."""
