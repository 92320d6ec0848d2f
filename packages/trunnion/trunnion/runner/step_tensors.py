"""Puts the tensors of a step that was built on the host on a device, for steps that no host buffers carry."""

from __future__ import annotations

import dataclasses

import torch

from trunnion.contract import BatchTensors, GroupTensors


def on_device(host: BatchTensors, device: torch.device) -> BatchTensors:
    """`host` with every tensor on `device`."""
    groups = tuple(GroupTensors(**_moved(group, device)) for group in host.groups)
    return BatchTensors(**{**_moved(host, device), "groups": groups})


def _moved(place: BatchTensors | GroupTensors, device: torch.device) -> dict[str, torch.Tensor]:
    found = {spec.name: getattr(place, spec.name) for spec in dataclasses.fields(place)}
    return {name: value.to(device) for name, value in found.items() if isinstance(value, torch.Tensor)}
