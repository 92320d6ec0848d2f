"""One rank of cards that `test_ranks.py` has saved: the logits of every rank, and what ran of graphs and updates.

Arguments: rank, size, folder. Exits with 1 and one line per card whose logits are not the reference's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from ascend_simulator import simulation
from tests.matrix.bench import Comparison, load_bench
from tests.matrix.cases import cards
from tests.matrix.hf_reference import Reference
from tests.matrix.modes import MODES

MODES_OF_RANKS = ("whole", "mixed")


def main(rank: int, size: int, folder: Path) -> int:
    torch.set_num_threads(1)
    failures = []
    known = {card.name: card for card in cards()}
    for saved in sorted(folder.glob("*/reference.pt")):
        dtype, logits, own_error, sequences = torch.load(saved, weights_only=True)
        card = known[saved.parent.name]
        reference = Reference(saved.parent, sequences, logits, own_error, card)
        store = f"file://{saved.parent / 'store'}"
        place = {"tp_rank": rank, "tp_size": size, "tp_init_method": store, "device_index": rank}
        bench = load_bench(card, "ascend", dtype, reference, **place)
        for mode in MODES_OF_RANKS:
            bench.host.reset(seed=0)
            seen = Comparison(bench)
            MODES[mode](bench, seen)
            try:
                seen.check()
            except AssertionError as error:
                failures.append(f"rank {rank} of {size}, {mode}: {error}")
        bench.close()
    print("\n".join(failures) or " ".join(str(simulation().count(name)) for name in ("replays", "updates")))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
