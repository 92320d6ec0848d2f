"""gpt-oss: experts with biases and a clamped activation, attention with sinks and a window in every other layer."""

ARCHITECTURES = {"GptOssForCausalLM": "model:GptOssForCausalLM"}
