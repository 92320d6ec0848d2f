"""trunnion on NVIDIA GPUs: attention on FlashInfer, CUDA graphs, kernels in Triton and TileLang."""
