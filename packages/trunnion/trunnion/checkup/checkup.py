"""Draws up the report: one question after the other, as far as the answers reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trunnion.checkup.facts import CheckReport, DraftFacts, TensorFacts
from trunnion.checkup.named_source import TOLD_BY_NAMES, NamedSource
from trunnion.checkup.opened import Opened, open_for_check
from trunnion.checkup.planned import group_facts, memory_facts
from trunnion.checkup.quantized import likely_names, num_parameters, quantized_layers
from trunnion.checkup.way import Found, Task, find_head, find_way
from trunnion.config import DTYPES, KV_CACHE_DTYPES, BuildContext
from trunnion.contract import Limits
from trunnion.errors import TrunnionError
from trunnion.hf_config import checkpoint_dtype
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.model import LoadsItself, ModelConfig
from trunnion.interfaces.quantization import Quantization
from trunnion.reference import ReferenceHardware
from trunnion.runner import draft
from trunnion.runner.groups import lay_out_groups
from trunnion.runner.load_model import (
    check_block_size,
    check_cache_scales,
    check_environment,
    check_reach,
    check_weights,
)
from trunnion.weights.gguf_blocks import keep_blocks
from trunnion.weights.name_map import WeightMap
from trunnion.weights.plan import LoadPlan, describe_problems, draw_up
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.quantization_of_layers import QuantizedLayers
from trunnion.weights.report import first_names

REFUSALS = (TrunnionError, ValueError, OSError)
"""What loading raises on purpose."""
NO_WEIGHTS = "there are no weights here: tensors are not accounted for"
BY_NAME = "tensors are accounted for by the names in the index alone"
GUESSED = "which layers are quantised is guessed from config.json: the tensors would tell"
BY_TRANSFORMERS = "transformers loads the tensors: they are not accounted for by the names in an index alone"
TESTED_LATER = "whether the adapter computes what transformers does shows when the weights are loaded, by a self-test"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What the checkpoint would be run with."""

    hardware: Hardware
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    weights: str = "auto"
    activations: str = "auto"
    max_model_len: int | None = None
    """None: `default_max_model_len`, or the model's limit if that is less."""
    default_max_model_len: int = 4096
    max_num_seqs: int = 1
    max_num_tokens: int = 512
    """Tokens per step; a model that needs whole prompts gets at least one of them into a step."""
    block_size: int = 16
    port: Path | None = None


def check_checkpoint(path: Path, options: CheckOptions) -> CheckReport:
    """Everything that can be said of the checkpoint at `path`; nothing that is wrong with it raises."""
    report = CheckReport(path=str(path))
    try:
        opened = open_for_check(path)
        _tell_config(report, opened, options)
        found = _tell_way(report, opened, options)
        _Checkup(report, opened, found, options).tell()
    except REFUSALS as error:
        _refuse(report, error)
    return report


def _tell_config(report: CheckReport, opened: Opened, options: CheckOptions) -> None:
    report.end_ids = list(opened.end_ids)
    report.has_chat_template = opened.has_chat_template
    if opened.problem is not None:
        report.refusals.append(opened.problem)
    elif opened.source is None:
        report.notes.append(NO_WEIGHTS)
    dtype = DTYPES[options.dtype] if options.dtype != "auto" else checkpoint_dtype(opened.config)
    report.dtype = _short(dtype)


def _tell_way(report: CheckReport, opened: Opened, options: CheckOptions) -> Found:
    found = find_way(opened, options.port)
    report.way, report.task = found.way.value, found.task.value
    report.family, report.model_class = found.family.name, found.class_name
    report.architecture = opened.config["architectures"][0]
    return found


class _Checkup:
    """One checkpoint, whose way is known."""

    def __init__(self, report: CheckReport, opened: Opened, found: Found, options: CheckOptions) -> None:
        self.report = report
        self.opened = opened
        self.found = found
        self.options = options
        with found.guard():
            self.config: ModelConfig = found.model_class.config_class.from_hf(opened.config)
        self.weight_map: WeightMap = found.model_class.weight_map.for_config(self.config)
        report.max_model_len = self.config.max_model_len
        asked = options.max_model_len
        self.max_model_len = asked or min(self.config.max_model_len, options.default_max_model_len)
        self._asking(check_reach, self.max_model_len, self.config.max_model_len, "model")
        self._asking(check_block_size, options.block_size, options.hardware)
        # Loading touches no device before it has seen that there is one.
        has_device = self._asking(check_environment, options.hardware)
        has_device = has_device and self._asking(options.hardware.initialize, 0)
        self.hardware = self._choosing(options.hardware) if has_device else self._without_device()

    def tell(self) -> None:
        """Raises what building the model raises."""
        report, source = self.report, self.opened.source
        plain = self._build(self.found.model_class, self.config, None)
        layers: Quantization | None = None
        if source is not None and self.hardware.weights == "native" and Path(report.path).suffix == ".gguf":
            kept, source = keep_blocks(source, self.weight_map)
            layers = kept
            report.notes.append(kept.describe())
        elif (quantization := read_quantization(self.opened.config)) is not None:
            names = list(self.opened.names) if source is None else list(source.infos)
            if not names:
                names = likely_names(plain, self.weight_map, quantization)
                report.notes.append(GUESSED)
            layers = self._layers(self.weight_map, names)
        report.parameters = num_parameters(plain)
        model = plain
        report.quantization = []
        if layers is not None:
            model = self._build(self.found.model_class, self.config, layers)
            report.quantization = quantized_layers(model, layers)
        report.weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        self._tell_plans(model)
        if isinstance(model, LoadsItself):
            self._account_by_itself(model)
        elif source is not None:
            shared = draft.modules_to_share(model, self.weight_map, source.infos) if self._is_draft else ()
            plan = draw_up(model, source, self.weight_map, shared)
            report.tensors = _tensor_facts(plan)
            if plan.problems:
                report.refusals.append(describe_problems(plan, source, type(model).__name__))
            self._asking(check_cache_scales, source.description, self.opened.config, self._ctx(None), plan.defaults)
        elif self.opened.names:
            self._account_names(model)
        report.drafts = self._heads()

    def _choosing(self, package: Hardware) -> Hardware:
        """The package with the options, those that it has, or that the checkpoint can be asked for."""
        options = self.options
        if options.weights == "native" and self.found.task is not Task.DRAFT:
            self._asking(check_weights, options.weights, Path(self.report.path))
        try:
            return package.choosing(weights=options.weights, activations=options.activations)
        except REFUSALS as error:
            _refuse(self.report, error)
            return package

    def _without_device(self) -> Hardware:
        """The package, if it answers without its device; else the reference in its place, and a note."""
        package = self.options.hardware
        try:
            package.linear_method(None, "")
        except Exception:  # it may fail in whatever way: nobody has promised it a call without a device
            self.report.notes.append(
                f"hardware {package.name!r} does not answer without its device: groups and memory are the reference's"
            )
            return ReferenceHardware()
        return package

    def _account_names(self, model: nn.Module) -> None:
        """As far as names go."""
        source = NamedSource(self.report.path, self.opened.names, model, self.weight_map)
        shared = draft.modules_to_share(model, self.weight_map, source.infos) if self._is_draft else ()
        plan = draw_up(model, source, self.weight_map, shared)
        plan.problems = {kind: names for kind, names in plan.problems.items() if kind in TOLD_BY_NAMES}
        self.report.notes.append(BY_NAME)
        self.report.tensors = _tensor_facts(plan)
        if plan.problems:
            self.report.refusals.append(describe_problems(plan, source, type(model).__name__))

    def _account_by_itself(self, model: LoadsItself) -> None:
        """In the words of its load."""
        self.report.notes.append(model.describe())
        source = self.opened.source
        if source is None:
            self.report.notes += [BY_TRANSFORMERS] if self.opened.names else []
            return
        found = model.account(source.infos)
        self.report.notes.append(TESTED_LATER)
        self.report.tensors = TensorFacts(
            used=found.used, ignored=found.ignored, tied=(), known=(), defaults=(), problems=found.problems
        )
        for kind, names in found.problems.items():
            self.report.refusals.append(f"{self.report.path}: {len(names)} tensors {kind}: {first_names(names)}")

    def _tell_plans(self, model: nn.Module) -> None:
        hardware = self.hardware
        whole = lay_out_groups(model, hardware, self._limits(1)).needs_whole_prompts
        limits = self._limits(self.max_model_len if whole else 1)
        layout = lay_out_groups(model, hardware, limits)
        self.report.groups = group_facts(layout)
        self.report.memory = memory_facts(model, hardware, limits, layout)
        self.report.on_reference = dict(hardware.on_reference())

    def _limits(self, least_tokens: int) -> Limits:
        seqs = self.options.max_num_seqs
        tokens = min(max(self.options.max_num_tokens, least_tokens, seqs), seqs * self.max_model_len)
        return Limits(
            max_num_tokens=tokens,
            max_num_seqs=seqs,
            max_model_len=self.max_model_len,
            max_logits_rows=seqs,
            block_size=self.options.block_size,
        )

    def _heads(self) -> list[DraftFacts]:
        head = None if self._is_draft else find_head(self.opened, self.found)
        if head is None:
            return []
        head_class, source = head(), self.opened.source
        name = head_class.__name__
        try:
            config = head_class.config_class.from_hf(self.opened.config)
            weight_map = head_class.weight_map.for_config(config)
            names = None if source is None else list(source.infos)
            model = self._build(head_class, config, None if names is None else self._layers(weight_map, names))
            draft.check_layers(model)
            shared = draft.modules_to_share(model, weight_map, names or ())
            own = num_parameters(model) - sum(num_parameters(model.get_submodule(module)) for module in shared)
            plan = None if source is None else draw_up(model, source, weight_map, shared)
        except REFUSALS as error:
            return [DraftFacts(head=name, parameters=None, in_checkpoint=None, reason=_line(error))]
        reason = describe_problems(plan, source, name) if plan is not None and source is not None else None
        fits = None if plan is None else not plan.problems
        return [DraftFacts(head=name, parameters=own, in_checkpoint=fits, reason=None if fits else reason)]

    def _build(self, model_class: type[Any], config: ModelConfig, layers: Quantization | None) -> nn.Module:
        """On meta; plain if there are no quantised layers."""
        with torch.device("meta"), self.found.guard():
            model: nn.Module = model_class(config, self._ctx(layers))
        return model

    def _layers(self, weight_map: WeightMap, names: Iterable[str]) -> QuantizedLayers | None:
        found = read_quantization(self.opened.config)
        return None if found is None else QuantizedLayers(found, weight_map, names)

    def _ctx(self, layers: Quantization | None) -> BuildContext:
        assert self.report.dtype is not None, "told before the way"
        return BuildContext(
            hardware=self.hardware,
            dtype=DTYPES[self.report.dtype],
            quantization=layers,
            max_model_len=self.max_model_len,
            pooling=self.opened.pooling,
            kv_cache_dtype=KV_CACHE_DTYPES.get(self.options.kv_cache_dtype),
        )

    @property
    def _is_draft(self) -> bool:
        return self.found.task is Task.DRAFT

    def _asking(self, question: Any, *arguments: Any) -> bool:
        """Note what loading would refuse here, and go on; whether it refuses nothing."""
        try:
            question(*arguments)
        except REFUSALS as error:
            _refuse(self.report, error)
            return False
        return True


def _tensor_facts(plan: LoadPlan) -> TensorFacts:
    return TensorFacts(
        used=len(plan.pieces),
        ignored=dict(plan.ignored),
        tied=list(plan.tied),
        known=list(plan.known),
        defaults=list(plan.defaults),
        problems=dict(plan.problems),
    )


def _refuse(report: CheckReport, error: Exception) -> None:
    if (line := _line(error)) not in report.refusals:
        report.refusals.append(line)


def _line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
