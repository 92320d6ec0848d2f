"""One rank: loads cards that `test_tensor_parallel.py` has saved, and runs the same steps as the other ranks.

Arguments: hardware, rank, size, folder. Exits with 1 and one line per card whose logits are not the reference's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from trunnion import registry

from .bench import Comparison, load_bench
from .cases import cards, load_hardware
from .hf_reference import Reference
from .modes import modes_of

MODES_OF_RANKS = ("whole", "mixed")


def main(hardware: str, rank: int, size: int, folder: Path) -> int:
    torch.set_num_threads(1)
    failures = []
    name = load_hardware(hardware)
    device = 0 if registry.hardware(name).uses_host_memory else rank
    known = {card.name: card for card in cards()}
    for saved in sorted(folder.glob("*/reference.pt")):
        logits, sequences, positions, token_ids = torch.load(saved, weights_only=True)
        card = known[saved.parent.name]
        reference = Reference(saved.parent, sequences, logits, None, card, positions, token_ids)
        store = f"file://{saved.parent / 'store'}"
        place = {"tp_rank": rank, "tp_size": size, "tp_init_method": store, "device_index": device}
        bench = load_bench(card, name, "float32", reference, **place)
        modes = modes_of(card)
        for mode in modes if card.whole_prompts else MODES_OF_RANKS:
            bench.host.reset(seed=0)
            seen = Comparison(bench)
            modes[mode](bench, seen)
            try:
                seen.check()
            except AssertionError as error:
                failures.append(f"rank {rank} of {size}, {mode}: {error}")
        bench.close()
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
