"""trunnion on Ascend NPUs: torch_npu's fused operators, NPUGraph, HCCL."""
