"""Layers that models are written in: one vocabulary, the same on every hardware."""
