"""The report of a checkup for people: a word on the left, what there is to say of it on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trunnion.checkup.facts import CheckReport, DraftFacts, GroupFacts, MemoryFacts, QuantizedFacts, TensorFacts
from trunnion.weights.report import first_names

WIDTH = 15


def report_lines(report: CheckReport) -> list[str]:
    """`report`, and at its end whether the checkpoint runs."""
    lines: list[str] = []
    for title, texts in _sections(report):
        for number, text in enumerate(texts):
            lines.append(f"{title if number == 0 else '':<{WIDTH}} {text}")
    return lines


def _sections(report: CheckReport) -> Iterator[tuple[str, list[str]]]:
    yield "checkpoint", [report.path, *report.notes]
    if report.way is None:
        yield "way", ["refused"]
    else:
        yield "way", [f"{report.way}: family {report.family}, {report.model_class}"]
        yield "for", [f"{report.architecture}: {report.task}"]
    if report.dtype is not None:
        yield "dtype", [report.dtype]
    if report.parameters is not None and report.weight_bytes is not None:
        yield "parameters", [f"{report.parameters:,}, {_size(report.weight_bytes)}"]
    if report.quantization is not None:
        yield "quantisation", _quantization(report.quantization) or ["none"]
    if report.groups is not None:
        yield "attention", [_group(group) for group in report.groups]
    if report.max_model_len is not None:
        yield "max_model_len", [f"{report.max_model_len:,}"]
    if report.memory is not None:
        yield "memory", _memory(report.memory)
    if report.end_ids is not None:
        yield "end ids", [", ".join(map(str, report.end_ids)) or "none: outputs end at their longest"]
    if report.tensors is not None:
        yield "tensors", list(_tensors(report.tensors))
    if report.drafts is not None:
        yield "draft heads", [_draft(draft) for draft in report.drafts] or ["none"]
    if report.dtype is not None:
        yield "chat template", [_template(report)]
    if report.on_reference is not None:
        yield "on reference", _on_reference(report)
    yield "runs", [f"no, refused: {reason}" for reason in report.refusals] or ["yes"]


def _quantization(rows: Sequence[QuantizedFacts]) -> list[str]:
    layers: dict[str, list[str]] = {}
    for row in rows:
        layers.setdefault(row.scheme, []).append(f"{row.layers} ({row.count})")
    return [f"{scheme}: {', '.join(names)}" for scheme, names in layers.items()]


def _group(group: GroupFacts) -> str:
    window = "" if group.window is None else f" of {group.window:,}"
    caches = f"; {group.bytes_per_token:,} bytes a token" if group.bytes_per_token else ""
    caches += f", {_size(group.bytes_per_request)} a request" if group.bytes_per_request else ""
    return f"{group.kind}{window}: {group.layers} layers, {group.shape}{caches}"


def _memory(memory: MemoryFacts) -> list[str]:
    parts = ("weights", "activations", "graphs", "workspaces", "caches")
    listed = ", ".join(f"{part} {_size(getattr(memory, part))}" for part in parts)
    return [
        f"{_size(memory.total)} at most on {memory.hardware}; requests: {memory.max_num_seqs} of "
        f"{memory.max_model_len:,} tokens; tokens a step: {memory.max_num_tokens:,}",
        listed,
    ]


def _tensors(tensors: TensorFacts) -> Iterator[str]:
    fits = "" if tensors.problems else ", none missing, none unexpected"
    yield f"{tensors.used} used{fits}"
    for reason, names in sorted(tensors.ignored.items()):
        yield f"{len(names)} ignored ({reason}): {first_names(list(names))}"
    if tensors.tied:
        yield f"{len(tensors.tied)} that repeat a tied parameter: {first_names(list(tensors.tied))}"
    if tensors.known:
        yield f"{len(tensors.known)} that are compared and not loaded: {first_names(list(tensors.known))}"
    if tensors.defaults:
        yield f"{len(tensors.defaults)} scalars with a default, not there: {first_names(list(tensors.defaults))}"
    for kind, names in tensors.problems.items():
        yield f"{len(names)} {kind}: {first_names(list(names))}"


def _draft(draft: DraftFacts) -> str:
    size = "" if draft.parameters is None else f" ({draft.parameters:,} parameters of its own)"
    there = {True: "in the checkpoint", False: "not in the checkpoint", None: "may be in the checkpoint"}
    if draft.reason is not None and draft.in_checkpoint is None:
        return f"{draft.head}: {draft.reason}"
    return f"{draft.head}{size}: {there[draft.in_checkpoint]}"


def _template(report: CheckReport) -> str:
    if report.has_chat_template is None:
        return "no tokenizer.json here, which trunnion generate and chat need"
    return "yes" if report.has_chat_template else "none: trunnion generate --raw"


def _on_reference(report: CheckReport) -> list[str]:
    groups = [f"{group.kind} attention: {group.on_reference}" for group in report.groups or () if group.on_reference]
    by_reason: dict[str, list[str]] = {}
    for name, reason in (report.on_reference or {}).items():
        by_reason.setdefault(reason, []).append(name)
    operators = [f"{len(names)} operators ({reason}): {first_names(names)}" for reason, names in by_reason.items()]
    return [*groups, *operators] or ["nothing"]


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
