"""Scaffolds a port of a family that is not there yet: its files, guessed from a configuration and names of tensors."""
