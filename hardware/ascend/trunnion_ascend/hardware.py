"""The Ascend package's entry."""

from __future__ import annotations

import torch

from trunnion.reference import ReferenceHardware


class AscendHardware(ReferenceHardware):
    """One NPU per process."""

    name = "ascend"
    device_type = "npu"

    def initialize(self, device_index: int) -> torch.device:
        """Select the device.

        Raises:
            ValueError: there is no such device; the text says which there are.
        """
        count = torch.npu.device_count() if torch.npu.is_available() else 0
        if not 0 <= device_index < count:
            choices = f"0 ... {count - 1}" if count else "none, torch_npu finds no NPU"
            raise ValueError(f"device_index {device_index} does not exist on 'ascend'; choices: {choices}")
        device = torch.device("npu", device_index)
        torch.npu.set_device(device)
        return device


HARDWARE = AscendHardware
