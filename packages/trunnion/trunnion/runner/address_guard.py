"""Holds the inputs of steps to the addresses at which graphs read them."""

from __future__ import annotations

from trunnion.interfaces.attention import StepInputs


class AddressError(RuntimeError):
    """An input lies elsewhere than when the graphs were captured: a replay would read what is not there."""


class AddressGuard:
    """Remembers where each input lay when it was first seen; a step is refused that has one elsewhere."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}

    def check(self, step: StepInputs) -> None:
        """AddressError if an input has moved. Inputs without elements lie nowhere."""
        for name, address in _addresses(step).items():
            if self._addresses.setdefault(name, address) != address:
                raise AddressError(f"{name} lies at {address:#x}; the graphs read it at {self._addresses[name]:#x}")


def _addresses(step: StepInputs) -> dict[str, int]:
    """Where the inputs of a step lie, those that belong to one block by its first field."""
    inputs = step.device
    named = {
        "input_ids": inputs.input_ids,
        "logits_indices": inputs.logits_indices,
        "hidden_states": step.hidden_states,
        "target_states": step.target_states,
        "encoder_pool": step.encoder_pool,
        "sampled_ids": step.sampled_ids,
    }
    found = {name: tensor.data_ptr() for name, tensor in named.items() if tensor is not None and tensor.numel()}
    for index, group in enumerate(inputs.groups):
        for name in ("slot_mapping", "block_table", "kv_indices", "state_indices"):
            tensor = getattr(group, name)
            if tensor is not None and tensor.numel():
                found[f"groups[{index}].{name}"] = tensor.data_ptr()
    return found
