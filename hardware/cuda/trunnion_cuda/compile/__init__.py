"""Compiles every kernel for every architecture it claims, without a GPU, and reports what the binaries use."""
