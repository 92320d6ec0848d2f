"""Published checkpoints have as many parameters here as their authors say: every layer is there, once, in full size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trunnion import registry
from trunnion.config import BuildContext
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.reference import ReferenceHardware

SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
MISTRAL_7B = LLAMA_3_8B | {"architectures": ["MistralForCausalLM"], "vocab_size": 32000, "sliding_window": 4096}
QWEN2_5_0_5B = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
GEMMA_2_2B = {
    "architectures": ["Gemma2ForCausalLM"],
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
GEMMA_2_9B = GEMMA_2_2B | {
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
}
GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}
"""Its text: the published 4,300,079,472 are with the tower and its projector."""
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
}
GLM_4_5 = {
    "architectures": ["Glm4MoeForCausalLM"],
    "vocab_size": 151552,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "num_hidden_layers": 92,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "first_k_dense_replace": 3,
    "attention_bias": True,
    "use_qk_norm": True,
}
QWEN3_NEXT_80B = {
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
}
QWEN3_5_9B = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
QWEN3_5_35B_A3B = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
}
QWEN1_5_MOE_A2_7B = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
}
MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
MIXTRAL_8X22B = MIXTRAL_8X7B | {
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 56,
    "num_attention_heads": 48,
}
QWEN2_5_VL_7B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584},
}
QWEN2_5_VL_3B = QWEN2_5_VL_7B | {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vision_config": {"hidden_size": 1280, "out_hidden_size": 2048},
}
OLMO_2_7B = {
    "architectures": ["Olmo2ForCausalLM"],
    "vocab_size": 100352,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
PHI_3_MINI = {
    "architectures": ["Phi3ForCausalLM"],
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
PHI_4_MINI = PHI_3_MINI | {
    "vocab_size": 200064,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
}
GRANITE_3_3_2B = {
    "architectures": ["GraniteForCausalLM"],
    "vocab_size": 49159,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
GRANITE_3B_CODE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
}
DEVSTRAL_SMALL = {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 131072,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": None,
}
MISTRAL_SMALL_3_1 = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": DEVSTRAL_SMALL}
MINISTRAL_3_3B = {
    "architectures": ["Ministral3ForCausalLM"],
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
SMOLLM3_3B = {
    "architectures": ["SmolLM3ForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
COMMAND_R7B = {
    "architectures": ["Cohere2ForCausalLM"],
    "vocab_size": 256000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
TINY_AYA = {
    "architectures": ["Cohere2ForCausalLM"],
    "vocab_size": 262144,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
EXAONE_4_0_1_2B = {
    "architectures": ["Exaone4ForCausalLM"],
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": True,
}
EXAONE_4_0_32B = {
    "architectures": ["Exaone4ForCausalLM"],
    "vocab_size": 102400,
    "hidden_size": 5120,
    "intermediate_size": 27392,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "sliding_window_pattern": "LLLG",
}
GLM_4_9B = {
    "architectures": ["Glm4ForCausalLM"],
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
}
MINILM_L6 = {
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 30522,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_labels": 1,
}
BGE_RERANKER_LARGE = {
    "architectures": ["XLMRobertaForSequenceClassification"],
    "vocab_size": 250002,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "num_labels": 1,
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_local_experts": 32,
}
GPT_OSS_120B = GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128}

PUBLISHED = [
    pytest.param(SMOLLM2_135M, 134_515_008, id="SmolLM2-135M"),
    pytest.param(LLAMA_3_8B, 8_030_261_248, id="Llama-3-8B"),
    pytest.param(MISTRAL_7B, 7_241_732_096, id="Mistral-7B"),
    pytest.param(QWEN2_5_0_5B, 494_032_768, id="Qwen2.5-0.5B"),
    pytest.param(QWEN3_0_6B, 596_049_920, id="Qwen3-0.6B"),
    pytest.param(GEMMA_2_2B, 2_614_341_888, id="Gemma-2-2B"),
    pytest.param(GEMMA_2_9B, 9_241_705_984, id="Gemma-2-9B"),
    pytest.param(GEMMA_3_1B, 999_885_952, id="Gemma-3-1B"),
    pytest.param(GEMMA_3_4B, 3_880_263_168, id="Gemma-3-4B-text"),
    pytest.param(OLMO_2_7B, 7_298_617_344, id="OLMo-2-7B"),
    pytest.param(DEVSTRAL_SMALL, 23_572_403_200, id="Devstral-Small"),
    pytest.param(MISTRAL_SMALL_3_1, 23_572_403_200, id="Mistral-Small-3.1-text"),
    pytest.param(MINISTRAL_3_3B, 3_429_006_336, id="Ministral-3-3B-text"),
    pytest.param(SMOLLM3_3B, 3_075_098_624, id="SmolLM3-3B"),
    pytest.param(COMMAND_R7B, 8_028_033_024, id="Command-R7B"),
    pytest.param(TINY_AYA, 3_349_227_520, id="Tiny-Aya"),
    pytest.param(EXAONE_4_0_1_2B, 1_279_391_488, id="EXAONE-4.0-1.2B"),
    pytest.param(EXAONE_4_0_32B, 32_003_216_384, id="EXAONE-4.0-32B"),
    pytest.param(DEEPSEEK_V2_LITE, 15_706_484_224, id="DeepSeek-V2-Lite"),
    # transformers counts 671_026_404_352: there the biases of 58 layers are buffers.
    pytest.param(DEEPSEEK_V3, 671_026_404_352 + 58 * 256, id="DeepSeek-V3"),
    # 89 layers with biases, as above; without the head that drafts.
    pytest.param(GLM_4_5, 352_797_814_784 + 89 * 160, id="GLM-4.5"),
    pytest.param(QWEN3_NEXT_80B, 79_674_391_296, id="Qwen3-Next-80B"),
    pytest.param(QWEN3_5_9B, 8_953_803_264, id="Qwen3.5-9B-text"),
    pytest.param(QWEN3_5_35B_A3B, 34_660_610_688, id="Qwen3.5-35B-A3B-text"),
    pytest.param(QWEN3_30B_A3B, 30_532_122_624, id="Qwen3-30B-A3B"),
    pytest.param(QWEN1_5_MOE_A2_7B, 14_315_784_192, id="Qwen1.5-MoE-A2.7B"),
    pytest.param(MIXTRAL_8X7B, 46_702_792_704, id="Mixtral-8x7B"),
    pytest.param(MIXTRAL_8X22B, 140_620_634_112, id="WizardLM-2-8x22B"),
    pytest.param(QWEN2_5_VL_3B, 3_754_622_976, id="Qwen2.5-VL-3B"),
    pytest.param(QWEN2_5_VL_7B, 8_292_166_656, id="Qwen2.5-VL-7B"),
    pytest.param(PHI_3_MINI, 3_821_079_552, id="Phi-3-mini"),
    pytest.param(PHI_4_MINI, 3_836_021_760, id="Phi-4-mini"),
    pytest.param(GRANITE_3_3_2B, 2_533_539_840, id="Granite-3.3-2B"),
    pytest.param(GRANITE_3B_CODE, 3_482_503_680, id="Granite-3B-Code"),
    pytest.param(MINILM_L6, 22_713_601, id="ms-marco-MiniLM-L6-v2"),
    pytest.param(BGE_RERANKER_LARGE, 559_891_457, id="bge-reranker-large"),
    pytest.param(GLM_4_9B, 9_400_279_040, id="GLM-4-9B-0414"),
    pytest.param(GPT_OSS_20B, 20_914_757_184, id="gpt-oss-20b"),
    pytest.param(GPT_OSS_120B, 116_829_156_672, id="gpt-oss-120b"),
]


@pytest.mark.parametrize(("config", "expected"), PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(config: dict[str, Any], expected: int) -> None:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.bfloat16, max_model_len=16)
    model_class = registry.model_class(config)
    with torch.device("meta"):
        model = model_class(model_class.config_class.from_hf(config), ctx)
    assert isinstance(model, torch.nn.Module)
    # Rows beyond the vocabulary; a tied head has those of the embedding.
    padding = {
        module.weight: (module.shard.num_rows - module.shard.num_valid) * module.hidden_size
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding | ParallelLMHead)
    }
    assert sum(parameter.numel() for parameter in model.parameters()) - sum(padding.values()) == expected
