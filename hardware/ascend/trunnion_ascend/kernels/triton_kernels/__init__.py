"""Kernels in Triton for what torch_npu has no operator for, or several: leaves, which nothing imports by itself.

They are written for triton-ascend, whose module is called `triton` as the other's is, and which the environment of
`trunnion-ascend` does not hold. `lower` takes them as far as the tools go that are public.
"""
