"""Qwen2.5-VL: Qwen2 with positions on three axes, and a vision tower with attention in windows."""

ARCHITECTURES = {"Qwen2_5_VLForConditionalGeneration": "model:Qwen2_5_VLForConditionalGeneration"}
