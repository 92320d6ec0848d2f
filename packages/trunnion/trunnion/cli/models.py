"""`trunnion models`: the model families that can be loaded."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec

from trunnion.registry import ModelFamily, model_families

LISTED = {
    "architectures": "",
    "pooling_architectures": "embeds: ",
    "drafts": "drafts for: ",
    "draft_architectures": "drafts, with checkpoints of their own: ",
}
"""What is listed of a family, and in which words."""


def models(*, as_json: bool) -> int:
    """Print family, number of test cards, architectures and what they have heads for; the exit code."""
    families = [
        {
            "family": family.name,
            "architectures": sorted(family.architectures),
            "pooling_architectures": sorted(family.pooling_architectures),
            "drafts": sorted(family.drafts),
            "draft_architectures": sorted(family.draft_architectures),
            "cards": _card_count(family),
        }
        for family in model_families()
    ]
    if as_json:
        print(json.dumps(families))
        return 0
    width = max((len(str(family["family"])) for family in families), default=0)
    for family in families:
        found = [
            f"{what}{', '.join(names)}"
            for key, what in LISTED.items()
            if isinstance(names := family[key], list) and names
        ]
        print(f"{family['family']:{width}}  {family['cards']:2} cards  {'; '.join(found)}")
    return 0


def _card_count(family: ModelFamily) -> int:
    """Tiny configurations with which the family is compared with the reference."""
    name = f"{family.package}.card"
    return len(importlib.import_module(name).CARDS) if find_spec(name) is not None else 0
