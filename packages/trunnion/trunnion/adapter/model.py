"""A decoder of transformers as a `CausalLM`: one row of tokens of all requests, positions given, no cache inside."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from trunnion import registry
from trunnion.adapter import activations, attention, experts, parallel, ropes
from trunnion.adapter.account import account
from trunnion.adapter.flat_cache import FlatCache
from trunnion.adapter.latent import Handed
from trunnion.adapter.loading import load
from trunnion.adapter.positions import Positions
from trunnion.adapter.swaps import Swaps
from trunnion.adapter.trial import find_way
from trunnion.adapter.way import InstalledWay, Way
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.weights.name_map import WeightMap

if TYPE_CHECKING:
    from trunnion.interfaces.model import TensorAccount
    from trunnion.weights.checkpoint import Checkpoint
    from trunnion.weights.report import WeightReport
    from trunnion.weights.source import TensorInfo

CACHE_ARGUMENTS = ("cache", "past_key_values")
WITHOUT_LIMIT = 2048
"""Longest request where a configuration names no length."""


@dataclass(frozen=True, kw_only=True)
class AdaptedConfig:
    """What the executor asks of a configuration, read by transformers."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    rope_reach: int | None
    tie_word_embeddings: bool
    published: Mapping[str, Any]

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens: ropes may go beyond `max_position_embeddings`."""
        return max(self.max_position_embeddings, self.rope_reach or 0)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> AdaptedConfig:
        """Read a `config.json`; UnsupportedError names what keeps transformers' class from running here."""
        text = read_config(config).get_text_config(decoder=True)
        missing = [name for name in ("vocab_size", "hidden_size") if not isinstance(getattr(text, name, None), int)]
        if missing:
            raise UnsupportedError(f"{text.model_type}: its configuration has no {', '.join(missing)}")
        longest = getattr(text, "max_position_embeddings", None)
        return cls(
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            num_hidden_layers=getattr(text, "num_hidden_layers", 0),
            max_position_embeddings=longest if isinstance(longest, int) and longest > 0 else WITHOUT_LIMIT,
            rope_reach=ropes.reach(text),
            tie_word_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
            published=dict(config),
        )


def read_config(config: Mapping[str, Any]) -> PretrainedConfig:
    """What transformers reads in a `config.json`.

    Raises:
        UnsupportedError: no causal model of transformers, code of the checkpoint's own, or a value it refuses.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type, names = config.get("model_type"), config.get("architectures") or []
    if config.get("auto_map"):
        raise UnsupportedError(f"{model_type}: the checkpoint brings its own code (auto_map), which is not run")
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedError(f"model_type {model_type!r} is not in transformers")
    try:
        found = CONFIG_MAPPING[model_type].from_dict(PretrainedConfig._decode_special_floats(dict(config)))
    except Exception as error:
        raise UnsupportedError(f"{model_type}: transformers refuses it: {' '.join(str(error).split())[:200]}") from None
    mapping = AutoModelForCausalLM._model_mapping
    if type(found) not in mapping:
        raise UnsupportedError(f"{model_type} has no causal language model in transformers")
    expected = mapping[type(found)].__name__
    if expected not in names:
        raise UnsupportedError(
            f"architecture {names[:1]} is not transformers' causal model of {model_type}, {expected}"
        )
    return found


class AdaptedCausalLM(nn.Module):
    """The class of transformers that a configuration names, on our groups.

    Built on the meta device like a port; `attach` fills it with a loaded module. Its weights are transformers' affair.

    Raises:
        UnsupportedError: neither the class nor its modules one by one, nor requests one by one, can run: it keeps state
            elsewhere than in transformers' cache, or asks the device for values.
    """

    config_class: ClassVar[type[AdaptedConfig]] = AdaptedConfig
    weight_map: ClassVar[WeightMap] = WeightMap()

    def __init__(self, config: AdaptedConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        attention.register()
        experts.register()
        self.config = config
        try:
            self._build(read_config(config.published), ctx)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.why_adapted}; adapter: {error}") from error

    def _build(self, hf_config: PretrainedConfig, ctx: BuildContext) -> None:
        if ctx.quantization is not None:
            raise UnsupportedError("it takes unquantised checkpoints")
        self._handed = Handed()
        self._dense: dict[str, torch.Tensor] = {}
        """Weights that latent attention reads, as they were loaded."""
        self._longest = ctx.max_model_len or self.config.max_model_len
        self._ctx = ctx
        self.rope_notes: list[str] = []
        self.module: PreTrainedModel = AutoModelForCausalLM.from_config(hf_config, dtype=ctx.dtype)
        size = ctx.parallel.size
        self._cuts = parallel.find_cuts(self.module, size) if size > 1 else []
        # Nothing is reduced where nothing is computed.
        alone = ParallelGroup(rank=ctx.parallel.rank, size=size)
        parallel.cut_over_ranks(self.module, self._cuts, replace(ctx, parallel=alone), torch.device("meta"))
        self._prepare()
        self._unbuilt = self.module
        self._ways = self._find_ways()
        self.use(next(self._ways))

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, progress: bool) -> WeightReport:
        """See `LoadsItself`."""
        return load(self, checkpoint, dtype=dtype, device=device, progress=progress)

    def describe(self) -> str:
        """See `LoadsItself`; what the self-test may still change is the way."""
        return self.way.describe()

    @property
    def why_eager(self) -> str | None:
        """See `LoadsItself`."""
        return self.way.why_eager

    @property
    def widest_row(self) -> int:
        """See `LoadsItself`."""
        return experts.widest_row(self.module)

    def account(self, infos: Mapping[str, TensorInfo]) -> TensorAccount:
        """See `LoadsItself`."""
        return account(self.make_whole(), infos, self._ctx.dtype)

    @property
    def why_adapted(self) -> str:
        """That there is no port, or that this takes its place."""
        name = self.config.published["architectures"][0]
        has_port = any(name in family.architectures for family in registry.model_families())
        return f"in the place of the port of {name}" if has_port else f"no port of {name}"

    def make_whole(self) -> PreTrainedModel:
        """Transformers' module, on meta, with nothing changed or cut."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(read_config(self.config.published), dtype=self._ctx.dtype)

    @property
    def is_alone(self) -> bool:
        """Whether it runs on one rank."""
        return self._ctx.parallel.size == 1

    @contextmanager
    def as_published(self) -> Iterator[PreTrainedModel]:
        """The module as transformers runs it, whole, with attention, experts and layers of its own, until `settle`."""
        self._installed.remove()
        self.swaps.remove()
        self._choose("eager", "eager", self._whole)
        try:
            yield self._whole
        finally:
            self._choose(attention.NAME, experts.NAME, self._whole)
            self.swaps.install()
            self._install()

    @property
    def way(self) -> Way:
        """How it runs."""
        return self._installed.way

    def use(self, way: Way) -> None:
        """Run this way from here on. Its layers are new: who binds this model's layers to groups does so after this.

        Raises:
            UnsupportedError: the layers cannot be made.
        """
        if hasattr(self, "_installed"):
            self._installed.remove()
        self._installed = InstalledWay(way, self._ctx, self._handed)
        self.layers = self._installed.layers()
        self._install()

    def next_way(self) -> Way:
        """Another way, where the one before will not do; UnsupportedError if there is none."""
        module = self.module
        self._installed.remove()
        self._take(self._unbuilt)
        try:
            return next(self._ways)
        finally:
            self._take(module)
            self._install()

    def attach(self, module: PreTrainedModel, device: torch.device) -> None:
        """Take a module of the same configuration, with its weights in place; of several ranks this one's parts."""
        self._installed.remove()
        self._whole = module
        if self._cuts:
            self._hold_ropes(module)
            module = parallel.without_weights(module)
            parallel.cut_over_ranks(module, self._cuts, self._ctx, device)
            parallel.place(module, device)
        self._take(module.to(device))
        self._dense = {name: self.module.get_submodule(name).weight for name in self._installed.latent_linears()}
        self.swaps = Swaps(self._decoder[0], self._ctx)
        self.swaps.install()
        self._install()

    def _find_ways(self) -> Iterator[Way]:
        """Flat or split, then whole; UnsupportedError if there is none, or none is left."""
        layers = self.module.config.get_text_config(decoder=True).per_layer_config
        number_of_states = max((getattr(each, "number_of_conv_states", 1) for each in layers), default=1)
        within = [name for name, _ in self.module.named_modules() if name.startswith(f"{self._path}.")]
        reasons: list[str] = []
        for is_whole, candidates in ((False, within), (True, [self._path])):
            self._is_whole = is_whole
            self._choose(attention.NAME, experts.NAME)
            try:
                found = find_way(
                    self.module,
                    self.forward,
                    candidates,
                    self._ctx.dtype,
                    number_of_states,
                    self._handed,
                    at_once=is_whole,
                )
            except UnsupportedError as error:
                reasons.append(f"{'whole' if is_whole else 'split'}: {error}")
                continue
            yield Way(
                findings=found,
                is_whole=is_whole,
                why_not_before=reasons[-1] if reasons else None,
                number_of_states=number_of_states,
                num_qo_heads=max((getattr(each, "num_attention_heads", 1) for each in layers), default=1),
            )
        raise UnsupportedError("; ".join(reasons) or "there is no other way")

    def _install(self) -> None:
        self._is_whole = self.way.is_whole
        self._choose(attention.NAME, experts.NAME)
        self._installed.install(self.module)
        self._installed.take_sinks(self.module)
        if self._dense:
            self._installed.take_latent_weights(self._dense)

    def _take(self, module: PreTrainedModel) -> None:
        self.module = module
        self._prepare()

    def settle(self) -> None:
        """Let go of what the self-test alone needs."""
        self._whole = self.module
        self.swaps.settle()

    def notes(self) -> list[str]:
        """How it runs: lines for the load's report."""
        cut = [parallel.note(self._cuts, self._ctx.parallel.size)] if self._cuts else []
        return [*experts.notes(self.module), *self.swaps.notes(), *self.rope_notes, *cut]

    def _prepare(self) -> None:
        activations.make_exact(self.module)
        self._hold_ropes(self.module)
        self._path, decoder = _decoder(self.module)
        # The warning reads tokens, which waits for the device.
        decoder.__dict__["warn_if_padding_and_no_attention_mask"] = _nothing
        taken = inspect.signature(decoder.forward).parameters
        self._positions = Positions(decoder)
        self._cache_argument = next((name for name in CACHE_ARGUMENTS if name in taken), None)
        taken = inspect.signature(self.module.forward).parameters
        self._head_cache = [name for name in (self._cache_argument,) if name in taken]
        # In tuples, so that nothing is registered a second time.
        self._decoder = (decoder,)
        self._done = _Done(decoder)
        self._head = (_with_submodule(self.module, self._path.split("."), self._done),)

    def _hold_ropes(self, module: PreTrainedModel) -> None:
        self.rope_notes = ropes.hold(module, self._longest, self._ctx.dtype) or self.rope_notes

    def _choose(self, attention_name: str, experts_name: str, whole: PreTrainedModel | None = None) -> None:
        """`set_attn_implementation` passes over classes that do not say they support others."""
        for module in (whole or self.module).modules():
            own = getattr(module, "config", None)
            if hasattr(own, "_attn_implementation_internal"):
                own._attn_implementation_internal = attention_name
                own._experts_implementation_internal = experts_name

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `CausalLM.forward`."""
        if not input_ids.shape[0]:
            # A step of nobody: modules of transformers reshape to what zero elements do not tell.
            return self.module.get_input_embeddings().weight.new_empty(0, self.config.hidden_size)
        if hasattr(self, "_installed"):
            self._installed.begin()
        given: dict[str, Any] = {"use_cache": self._cache_argument is not None}
        if self._cache_argument is not None:
            given[self._cache_argument] = FlatCache(self._handed)
        if inputs_embeds is None:
            given["input_ids"] = input_ids.unsqueeze(0)
        else:
            given["inputs_embeds"] = inputs_embeds.unsqueeze(0)
        with self._positions.at(positions, counts_itself=self._is_whole) as told:
            output = self._decoder[0](**given, **told, return_dict=True)
        self._done.output_class = type(output)
        return output.last_hidden_state.squeeze(0)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`: the module's own forward, behind a decoder that is done."""
        if not hidden.shape[0]:
            return hidden.new_empty(0, self.config.vocab_size)
        self._done.hidden = hidden.unsqueeze(0)
        rows = torch.zeros(1, hidden.shape[0], dtype=torch.int32, device=hidden.device)
        # Without a cache, masks are made of positions whose values are read, which waits for the device.
        caches = {name: FlatCache(Handed()) for name in self._head_cache}
        output = self._head[0](input_ids=rows, use_cache=False, return_dict=True, **caches)
        logits: torch.Tensor = output.logits.squeeze(0)
        return logits


class _Done(nn.Module):
    """Stands for a decoder whose hidden states are known; whatever else is asked of it, the decoder says."""

    def __init__(self, decoder: PreTrainedModel) -> None:
        super().__init__()
        self._decoder = (decoder,)  # in a tuple, so that nothing is registered a second time
        self.hidden: torch.Tensor | None = None
        self.output_class: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_decoder"][0], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        hidden, self.hidden = self.hidden, None
        return self.output_class(last_hidden_state=hidden)


def _decoder(module: PreTrainedModel) -> tuple[str, PreTrainedModel]:
    """The path and the module of what stands before the head."""
    decoder = module.get_decoder()
    if decoder is module or not isinstance(decoder, PreTrainedModel):
        # A head may go by the name of a decoder, and a class may have none that transformers finds.
        inner = [child for child in module.children() if isinstance(child, PreTrainedModel)]
        if len(inner) != 1:
            raise UnsupportedError(f"{type(module).__name__} has no decoder apart from its head")
        decoder = inner[0]
    return next(name for name, each in module.named_modules() if each is decoder), decoder


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _with_submodule(module: nn.Module, path: list[str], other: nn.Module) -> Any:
    """A copy of `module`, with the same parameters, in which `other` stands at `path`."""
    if not path:
        return other
    made = copy.copy(module)
    made._modules = {**module._modules, path[0]: _with_submodule(module._modules[path[0]], path[1:], other)}  # type: ignore[arg-type]
    return made
