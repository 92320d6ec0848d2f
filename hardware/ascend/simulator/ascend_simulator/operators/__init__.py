"""Rules of operators, by family: what each computes, in torch on the CPU, and the public text that says so."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from ascend_simulator.rules import Rule, Rules


def all_rules() -> Mapping[str, Rule]:
    """Operator -> its rule.

    Raises:
        ValueError: two rules are declared for one operator.
    """
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for declared in vars(importlib.import_module(module.name)).values():
            for rule in declared if isinstance(declared, Rules) else ():
                if rule.name in found:
                    raise ValueError(f"two rules are declared for {rule.name}")
                found[rule.name] = rule
    return found
