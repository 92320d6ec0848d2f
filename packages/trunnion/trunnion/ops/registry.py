"""Defines operators with torch's dispatcher; one hardware package per dispatch key may put its kernels over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

Kernel = Callable[..., Any]


class OperatorRegistry:
    """The operators of one namespace: their references, who overrides them, and which calls were declined.

    Reference implementations stand under CompositeExplicitAutograd, so that a package's CPU, CUDA or PrivateUse1 kernel
    wins wherever it exists.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._library = torch.library.Library(namespace, "DEF")
        self._references: dict[str, Kernel] = {}
        self._owners: dict[str, str] = {}
        self._packages: dict[str, dict[str, torch.library.Library]] = {}
        self._declined: Counter[tuple[str, str]] = Counter()

    def define(self, schema: str, *, fake: Kernel) -> Callable[[Kernel], Kernel]:
        """Define `schema` with the decorated function as its reference and `fake` for meta tensors.

        Raises:
            ValueError: the operator is already defined.
        """
        name = schema.split("(", 1)[0]
        if name in self._references:
            raise ValueError(f"operator {name!r} is already defined")

        def decorate(reference: Kernel) -> Kernel:
            self._library.define(schema)
            self._library.impl(name, reference, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{self.namespace}::{name}", fake, lib=self._library)
            self._references[name] = reference
            return reference

        return decorate

    def names(self) -> tuple[str, ...]:
        """Names of all defined operators."""
        return tuple(sorted(self._references))

    def reference(self, op_name: str) -> Kernel:
        """The reference implementation of `op_name`, called without the dispatcher."""
        return self._references[op_name]

    def register(self, package: str, device_key: str, op_name: str, fn: Kernel) -> None:
        """Run `fn` for operator `op_name` on `device_key` ("CPU", "CUDA", "PrivateUse1").

        Raises:
            ValueError: unknown operator, a second kernel for the same operator and key, or a key of another package.
        """
        if op_name not in self._references:
            raise ValueError(f"unknown operator {op_name!r}; defined: {', '.join(self.names())}")
        owner = self._owners.setdefault(device_key, package)
        if owner != package:
            raise ValueError(
                f"dispatch key {device_key} belongs to package {owner!r}; {package!r} cannot register on it"
            )
        kernels = self._packages.setdefault(device_key, {})
        if op_name in kernels:
            raise ValueError(f"package {package!r} has already registered {op_name!r} on {device_key}")
        library = torch.library.Library(self.namespace, "IMPL")
        library.impl(op_name, fn, device_key)
        kernels[op_name] = library

    def owner(self, device_key: str) -> str | None:
        """The package whose kernels run on `device_key`, if there is one."""
        return self._owners.get(device_key)

    def registered(self, device_key: str) -> tuple[str, ...]:
        """Operators that have a package's kernel on `device_key`."""
        return tuple(sorted(self._packages.get(device_key, {})))

    def unregister(self, package: str) -> None:
        """Take all kernels of `package` away, so that another may own its keys."""
        for device_key in [key for key, owner in self._owners.items() if owner == package]:
            for library in self._packages.pop(device_key, {}).values():
                library._destroy()
            del self._owners[device_key]

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """On leaving, the packages that had no kernels on entering have none: what follows runs on the references."""
        before = set(self._owners.values())
        try:
            yield
        finally:
            for package in set(self._owners.values()) - before:
                self.unregister(package)

    def decline(self, op_name: str, reason: str, *args: Any, **kwargs: Any) -> Any:
        """Called by a kernel that cannot serve its arguments: count the reason, return what the reference computes."""
        self.count_declined(op_name, reason)
        return self._references[op_name](*args, **kwargs)

    def count_declined(self, op_name: str, reason: str) -> None:
        """As `decline`, of what is no operator here and falls back by itself: the products of a linear method."""
        self._declined[op_name, reason] += 1

    def declined(self) -> Mapping[tuple[str, str], int]:
        """(operator, reason) -> calls since the last `reset_declined`."""
        return dict(self._declined)

    def reset_declined(self) -> None:
        """Start counting anew."""
        self._declined.clear()


OPERATORS = OperatorRegistry("trunnion")
"""The one registry of a process: a counterpart of torch's dispatcher, which is per process too."""

define = OPERATORS.define
register = OPERATORS.register
unregister = OPERATORS.unregister
decline = OPERATORS.decline
declined = OPERATORS.declined
