"""Multi-head latent attention as a model sees it: absorbs the latent's up-projection into queries and outputs."""

from __future__ import annotations

import torch

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import MLAGroup, MLASpec
from trunnion.layers.group_layer import GroupLayer
from trunnion.layers.linear import ColumnParallelLinear


class MLAAttention(GroupLayer[MLAGroup]):
    """Latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1) over a cache of latents.

    The latent's up-projection `kv_b_proj` [num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank] is never applied
    to keys: its key half goes into the query, its value half after the attention. The layer is the model's own
    (`self.kv_b_proj`), so that the parameter keeps the checkpoint's name; only its dense weight is read.

    Args:
        num_heads: query heads of all ranks.
        scale: factor of the scores, `(qk_nope_head_dim + qk_rope_head_dim) ** -0.5` times what YaRN adds.
    """

    def __init__(
        self,
        num_heads: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        kv_lora_rank: int,
        scale: float,
        *,
        kv_b_proj: ColumnParallelLinear,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        if ctx.kv_cache_dtype is not None:
            name = str(ctx.kv_cache_dtype).removeprefix("torch.")
            raise UnsupportedError(
                f"{prefix}: latents are cached in the model's dtype, not in {name}; kv_cache_dtype choices: auto"
            )
        self.num_heads = ctx.parallel.divide(num_heads, f"{prefix} num_heads")
        spec = MLASpec(
            num_qo_heads=self.num_heads,
            kv_lora_rank=kv_lora_rank,
            rope_head_dim=qk_rope_head_dim,
            scale=scale,
            dtype=ctx.dtype,
        )
        super().__init__(spec, prefix)
        self.qk_nope_head_dim, self.v_head_dim, self.kv_lora_rank = qk_nope_head_dim, v_head_dim, kv_lora_rank
        wanted = (self.num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank)
        if (kv_b_proj.out_features, kv_b_proj.in_features) != wanted:
            found = (kv_b_proj.out_features, kv_b_proj.in_features)
            raise ValueError(f"{prefix}: kv_b_proj must be {wanted} on this rank, got {found}")
        kv_b_proj.keeps_dense_weight = True
        # In a tuple, so that the module is not registered a second time.
        self._kv_b_proj = (kv_b_proj,)

    def forward(
        self, q_nope: torch.Tensor, q_rope: torch.Tensor, kv_latent: torch.Tensor, k_rope: torch.Tensor
    ) -> torch.Tensor:
        """q_nope [T, H, Dn], q_rope [T, H, Dr] rotated, kv_latent [T, R] normed, k_rope [T, Dr] rotated -> [T, H * Dv].

        H counts this rank's heads.
        """
        weight = self._kv_b_proj[0].dense_weight().unflatten(0, (self.num_heads, -1))  # [H, Dn + Dv, R]
        w_uk, w_uv = weight.split((self.qk_nope_head_dim, self.v_head_dim), dim=1)
        q_latent = torch.einsum("thd,hdr->thr", q_nope, w_uk)
        latent = self.run_group(q_latent, q_rope, kv_latent, k_rope)  # [T, H, R]
        return torch.einsum("thr,hvr->thv", latent, w_uv).flatten(1)
