"""The two sides of a comparison: one prompt, whole, through this repository's model and through transformers'."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.compare.recording import Call, recording
from trunnion.config import ExecutorConfig
from trunnion.contract import BatchCounts, BatchTensors, CacheGroupSpec, CacheKind, GroupTensors
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.model import CausalLM
from trunnion.runner.groups import BoundGroups
from trunnion.runner.kv_caches import allocate_caches
from trunnion.runner.load_model import LoadedModel, load_model
from trunnion.runner.step_tensors import on_device


@torch.inference_mode()
def record_here(config: ExecutorConfig, token_ids: Sequence[int]) -> tuple[LoadedModel, dict[str, Call]]:
    """Load what `config` names, and run the tokens eagerly on its hardware's groups.

    Raises:
        UnsupportedError: it is no language model; and as `load_model`.
    """
    loaded = load_model(config, None, None)
    model = loaded.model
    if not isinstance(model, CausalLM):
        raise UnsupportedError(f"{type(model).__name__} is no language model: there are no logits to compare")
    groups = BoundGroups(model, loaded.hardware, loaded.device, config.limits, loaded.breaks)
    spec = groups.cache_spec
    blocks = [2 + len(token_ids) // max(group.block_size, 1) for group in spec.groups]
    groups.bind_kv_cache(allocate_caches(spec, blocks, loaded.device))
    step = _prefill(token_ids, spec.groups, loaded.device)
    for group in groups.groups:
        group.plan(step)
    with recording(model) as calls:
        hidden = model(step.device.input_ids, step.device.positions)
        logits = model.compute_logits(hidden)
    calls["logits"] = Call(hidden.float().cpu(), logits.float().cpu())
    return loaded, calls


@torch.inference_mode()
def record_there(loaded: LoadedModel, config: ExecutorConfig, token_ids: Sequence[int]) -> dict[str, Call]:
    """Transformers' module of the same checkpoint in the same dtype, on the host, with its eager attention."""
    from transformers import AutoModelForCausalLM

    try:
        module = AutoModelForCausalLM.from_pretrained(
            config.model, dtype=loaded.dtype, attn_implementation="eager", local_files_only=True
        ).eval()
        with recording(module) as calls:
            logits = module(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    except Exception as error:
        # The module is not ours: its words are the reason.
        raise UnsupportedError(
            f"transformers cannot run {config.model}: {' '.join(str(error).split())[:300]}"
        ) from None
    calls["logits"] = Call(None, logits.float())
    return calls


def _prefill(token_ids: Sequence[int], groups: Sequence[CacheGroupSpec], device: torch.device) -> StepInputs:
    count = len(token_ids)
    ints = {"dtype": torch.int32}
    host = BatchTensors(
        input_ids=torch.tensor(list(token_ids), **ints),
        positions=torch.arange(count, **ints),
        query_start_loc=torch.tensor([0, count], **ints),
        seq_lens=torch.tensor([count], **ints),
        logits_indices=torch.arange(count, **ints),
        groups=tuple(_cache_rows(group, count) for group in groups),
    )
    counts = BatchCounts(num_tokens=count, num_reqs=1, num_logits=count, max_query_len=count, max_seq_len=count)
    return StepInputs(counts=counts, host=host, device=on_device(host, device))


def _cache_rows(group: CacheGroupSpec, count: int) -> GroupTensors:
    """One request, whose blocks follow the reserved one."""
    ints = {"dtype": torch.int32}
    if group.kind is CacheKind.RECURRENT:
        return GroupTensors(
            state_indices=torch.ones(1, group.max_blocks_per_seq, **ints),
            has_initial_state=torch.zeros(1, **ints),
            num_accepted=torch.ones(1, **ints),
        )
    size = group.block_size
    used = -(-count // size)
    return GroupTensors(
        slot_mapping=torch.arange(size, size + count, **ints),
        block_table=torch.arange(1, 1 + used, **ints)[None],
        kv_start=torch.zeros(1, **ints),
        kv_indptr=torch.tensor([0, used], **ints),
        kv_indices=torch.arange(1, 1 + used, **ints),
        kv_last_page_len=torch.tensor([count - (used - 1) * size], **ints),
    )
