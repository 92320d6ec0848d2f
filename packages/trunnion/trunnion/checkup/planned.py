"""What a model on the meta device will need on a hardware: groups, caches, memory."""

from __future__ import annotations

from torch import nn

from trunnion.checkup.facts import GroupFacts, MemoryFacts
from trunnion.contract import Limits
from trunnion.interfaces.attention import AttentionSpec, EncoderSpec, GroupSpec, LayerRowsSpec, LayerStateSpec, MLASpec
from trunnion.interfaces.hardware import Hardware
from trunnion.runner.groups import GroupLayout, GroupMembers


def group_facts(layout: GroupLayout) -> list[GroupFacts]:
    """One row for each attention group."""
    return [_group(entry, layout) for entry in layout.members]


def memory_facts(model: nn.Module, hardware: Hardware, limits: Limits, layout: GroupLayout) -> MemoryFacts:
    """As the executor tells its host, and the caches that the host allocates by itself."""
    profile = hardware.memory_profile(model, limits)  # type: ignore[arg-type]
    caches = sum(
        group.bytes_per_block * (1 + limits.max_num_seqs * group.max_blocks_per_seq)
        for group in layout.cache_spec.groups
    )
    return MemoryFacts(
        hardware=hardware.name,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_tokens=limits.max_num_tokens,
        weights=profile.weights,
        activations=profile.activations,
        graphs=profile.graphs,
        workspaces=profile.workspaces,
        caches=caches,
    )


def describe_shape(spec: GroupSpec) -> str:
    """Heads and features of one layer."""
    if isinstance(spec, AttentionSpec):
        extras = [
            f"{spec.num_qo_heads} heads over {spec.num_kv_heads} of {spec.head_dim}",
            *([f"soft cap {spec.soft_cap:g}"] if spec.soft_cap is not None else []),
            *(["sinks"] if spec.has_sinks else []),
            *([f"cached in {str(spec.cache_dtype).removeprefix('torch.')}"] if spec.cache_dtype is not None else []),
        ]
        return ", ".join(extras)
    if isinstance(spec, MLASpec):
        return f"{spec.num_qo_heads} heads, latent of {spec.kv_lora_rank} and {spec.rope_head_dim} rotated"
    if isinstance(spec, EncoderSpec):
        return f"{spec.num_heads} heads of {spec.head_dim}, no mask"
    if isinstance(spec, LayerStateSpec | LayerRowsSpec):
        shapes = ", ".join(f"{tensor.name} {'x'.join(map(str, tensor.shape))}" for tensor in spec.tensors)
        return f"a layer's own: {shapes}"
    return (
        f"{spec.num_k_heads} key heads of {spec.head_k_dim}, {spec.num_v_heads} value heads of {spec.head_v_dim}, "
        f"convolution over {spec.conv_kernel_size}"
    )


def _group(entry: GroupMembers, layout: GroupLayout) -> GroupFacts:
    per_token = per_request = 0
    if entry.cache_group is not None:
        cache = layout.cache_spec.groups[entry.cache_group]
        per_block = len(entry.layers) * sum(tensor.bytes_per_block for tensor in cache.tensors)
        per_request = per_block * cache.max_blocks_per_seq
        per_token = per_block // cache.block_size if cache.block_size else 0
    return GroupFacts(
        kind="encoder" if entry.spec.kind is None else entry.spec.kind.value,
        shape=describe_shape(entry.spec),
        layers=len(entry.layers),
        window=entry.spec.window,
        bytes_per_token=per_token,
        bytes_per_request=per_request,
        group_class=entry.group_class.__name__,
        on_reference=entry.on_reference,
    )
