"""Planted faults: each must turn the tests of a simulated device red."""
