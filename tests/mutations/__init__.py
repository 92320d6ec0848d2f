"""Planted faults: each must turn the tests of a simulated device, or of the C++ host, red."""
