"""The executor of the contract: binds a loaded model's groups, and runs one forward per `execute`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch

from trunnion.config import ExecutorConfig
from trunnion.contract import (
    BatchCounts,
    EncoderItem,
    Field,
    ForwardBatch,
    ForwardOutput,
    KVCacheSpec,
    LayerCaches,
    MemoryProfile,
    OutputKind,
    WarmUpReport,
)
from trunnion.errors import BatchRefused
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.hardware import Fence, Hardware
from trunnion.interfaces.kv_events import KVEventGate, KVEvents, KVEventSlots
from trunnion.interfaces.model import (
    CausalLM,
    DraftModel,
    LoadsItself,
    MultiModal,
    PoolingModel,
    num_token_types,
    output_kind,
)
from trunnion.interfaces.runner import Bucket, Mode, RunnerCounters
from trunnion.reference.memory_profile import profile_encoder
from trunnion.reference.runner import EagerRunner
from trunnion.runner import draft
from trunnion.runner.encoder_pool import EncoderPool
from trunnion.runner.groups import BoundGroups
from trunnion.runner.hidden_states import HiddenStates
from trunnion.runner.input_buffers import NUM_BUFFER_SETS, BufferSet, InputBuffers
from trunnion.runner.kv_caches import allocate_caches, check_caches
from trunnion.runner.load_model import LoadedModel, load_model


class ModelExecutor:
    """One model on one device of one rank. Made by `create`; every call comes from the thread that made it.

    The order of calls is the contract's: `create`, then the questions, `bind_kv_cache` or `allocate_kv_cache` once,
    `warm_up`, then `execute` once per step, `close`.
    """

    def __init__(self, config: ExecutorConfig, loaded: LoadedModel, target: ModelExecutor | None = None) -> None:
        model, hardware, device = loaded.model, loaded.hardware, loaded.device
        kinds = isinstance(model, CausalLM), isinstance(model, PoolingModel)
        assert sum(kinds) == 1, f"{type(model).__name__} is not one of CausalLM and PoolingModel"
        assert isinstance(model, DraftModel) == (target is not None), "a draft has a target"
        self.config = config
        self.limits = config.limits
        self.weight_report = loaded.weight_report
        self.vocab_size = loaded.config.vocab_size
        self.output_kind = output_kind(model)
        self.output_width = model.embedding_size if isinstance(model, PoolingModel) else self.vocab_size
        """Columns of an output row."""
        self.num_position_axes: int = getattr(model, "num_position_axes", 1)
        self.encoder_patch_dim = model.encoder_patch_dim if isinstance(model, MultiModal) else 0
        """Columns of an image's patches; 0 = the model takes no images."""
        self.num_token_types = num_token_types(model)
        """Types of tokens are below it; 0 = the model takes none."""
        self.hardware = hardware
        self.parallel = loaded.parallel
        self.breaks = loaded.breaks
        self.model = model
        self._target = target
        self.hidden_size = loaded.config.hidden_size
        num_tokens, place = config.limits.max_num_tokens, (loaded.dtype, device)
        width = self.hidden_size * max(1, len(loaded.aux_layers))
        keeps = config.keep_hidden or target is not None
        self.hidden = HiddenStates(num_tokens, width, *place) if keeps else None
        """Hidden states of the last step, by the row of its tokens, for a draft; None where they are not kept."""
        self._writes_hidden = bool(loaded.aux_layers)
        """The model does, between its layers; else what it returns is kept."""
        if self._writes_hidden and self.hidden is not None:
            draft.bind_aux_hidden_states(model, loaded.aux_layers, self.hidden.rows)
        self._shared_modules = loaded.shared_modules
        self._encoder_pool: EncoderPool | None = None
        if isinstance(model, MultiModal) and config.limits.max_encoder_rows:
            self._encoder_pool = EncoderPool(
                model, config.limits.max_encoder_rows, loaded.config.hidden_size, dtype=loaded.dtype, device=device
            )
        self._gate = KVEventGate()
        self._kv_events: KVEvents | None = None
        self._groups = BoundGroups(model, hardware, device, config.limits, loaded.breaks, self._gate)
        self._device = device
        groups, why_eager = self._groups.groups, model.why_eager if isinstance(model, LoadsItself) else None
        self._runner = (
            hardware.create_runner(model, groups, config.limits, loaded.breaks)
            if why_eager is None
            else EagerRunner(model, groups, config.limits, why_eager)
        )
        self._runner.shows_progress = config.progress
        self._runner.tuning_seconds = config.tuning_seconds
        self._inputs = InputBuffers(
            config.limits,
            self._groups.cache_spec,
            self.required_fields(),
            self.output_width,
            device,
            static=self._runner.static_inputs,
            on_host=hardware.uses_host_memory,
            num_position_axes=self.num_position_axes,
            prefix_levels=self.accepts_prefix_levels,
            token_types=self.num_token_types > 0,
            hidden_states=None if target is None else HiddenStates(num_tokens, self.hidden_size, *place),
            target_states=target.hidden.rows if target is not None and target.hidden is not None else None,
            encoder_pool=None if self._encoder_pool is None else self._encoder_pool.rows,
            staging=config.staging,
        )
        self._cut: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._caches: list[LayerCaches] | None = None
        self._steps = 0
        self._in_flight: list[tuple[int, Fence] | None] = [None] * NUM_BUFFER_SETS

    @classmethod
    def create(
        cls, config: ExecutorConfig, hardware: Hardware | None = None, share_with: ModelExecutor | None = None
    ) -> ModelExecutor:
        """Load the model that `config` names, on the package it names or on a given instance of that package.

        Args:
            share_with: of a draft, the executor of its target.

        Raises:
            UnsupportedError, ConfigError, WeightsError, ValueError: one line that names what is wrong.
        """
        return cls(config, load_model(config, hardware, share_with), share_with)

    # Questions the host asks before it allocates.

    def kv_cache_spec(self) -> KVCacheSpec:
        """The cache groups the host must provide."""
        return self._groups.cache_spec

    @property
    def device(self) -> torch.device:
        """Where weights and caches lie."""
        return self._device

    @property
    def synchronous(self) -> bool:
        """Whether `execute` returns when the step is done, so that there is nothing to `wait` for."""
        return self.hardware.synchronous

    def required_fields(self) -> Field:
        """Metadata the backends read beyond the required fields; the host builds exactly these."""
        fields = self._groups.required_fields
        fields |= Field.REQUIRED if self._target is None else Field.HIDDEN_INDICES
        return fields | (Field.REQUIRED if self._encoder_pool is None else Field.ENCODER_INDICES)

    @property
    def accepts_prefix_levels(self) -> bool:
        """Whether a group makes use of what the host says of shared leading blocks."""
        return self._groups.accepts_prefix_levels

    @property
    def needs_whole_prompts(self) -> bool:
        """Whether all tokens of a request must come in one step: a token sees those after it, and nothing is cached."""
        return self._groups.needs_whole_prompts

    def memory_profile(self) -> MemoryProfile:
        """Upper bounds in bytes, caches not included, and neither what a draft shares with its target."""
        profile = self.hardware.memory_profile(self.model, self.limits)
        shared = draft.shared_bytes(self.model, self._shared_modules)
        kept = sum(states.nbytes for states in (self.hidden, self._inputs.hidden_states) if states is not None)
        encoding = 0
        if self._encoder_pool is not None:
            kept += self._encoder_pool.rows.nbytes
            encoding = profile_encoder(self.model, self.limits.max_encoder_rows)
        return dataclasses.replace(
            profile,
            weights=profile.weights - shared,
            activations=profile.activations + encoding,
            workspaces=profile.workspaces + kept,
        )

    @property
    def counters(self) -> RunnerCounters:
        """What the runner did so far: replays, eager steps with reasons, plans, padding."""
        return self._runner.counters

    def input_buffers(self) -> Sequence[BufferSet]:
        """The lent buffer sets; they live until `close`."""
        return self._inputs.sets

    @property
    def sampled_ids(self) -> torch.Tensor | None:
        """[max_logits_rows] int32 on the device: what the host samples there for the next step; None otherwise."""
        return self._inputs.sampled_ids

    # Caches.

    def allocate_kv_cache(self, num_blocks: Sequence[int]) -> None:
        """Allocate zeroed caches of `num_blocks[group]` blocks (states) on the device and bind them.

        Raises:
            ValueError: not one count per group, or a count below 2 (block 0 is reserved).
        """
        self.bind_kv_cache(allocate_caches(self._groups.cache_spec, num_blocks, self._device))

    def bind_kv_cache(self, caches: list[LayerCaches]) -> None:
        """Bind the caches, once. `caches[group][layer][name]` is `[num_blocks, *shape]`, contiguous, on the device.

        Raises:
            ValueError: bound before, or a tensor is missing or of the wrong shape, dtype, device or layout.
        """
        if self._caches is not None:
            raise ValueError("the KV cache is bound already; it is bound once")
        check_caches(self._groups.cache_spec, caches, self._device)
        self._groups.bind_kv_cache(caches)
        self._caches = caches

    def bind_kv_events(self, slots: KVEventSlots) -> None:
        """Bind the slots of the host's events, once; steps whose counts say `has_kv_events` find theirs there.

        Raises:
            ValueError: bound before, or not one slot per buffer set and cache layer.
        """
        if self._kv_events is not None:
            raise ValueError("KV events are bound already; they are bound once")
        num_layers = sum(len(group.layers) for group in self._groups.cache_spec.groups)
        found = [len(addresses) for addresses in slots.addresses]
        if found != [num_layers] * NUM_BUFFER_SETS:
            raise ValueError(f"expected {num_layers} slots for each of {NUM_BUFFER_SETS} buffer sets, got {found}")
        self._kv_events = self.hardware.kv_events(slots)

    # Steps.

    def warm_up(self) -> WarmUpReport:
        """JIT, autotune and capture; leaves no trace in the caches. Reports what will run eager or on the reference.

        Raises:
            ValueError: no caches are bound.
            RuntimeError: graphs take more than `memory_profile` has told the host, who has given the rest away.
        """
        if self._caches is None:
            raise ValueError("bind_kv_cache or allocate_kv_cache comes before warm_up")
        problems = [problem for problem in self.hardware.check_environment() if not problem.fatal]
        report = WarmUpReport(
            on_reference={**self._groups.on_reference, **self.hardware.on_reference()},
            missing={problem.what: f"{problem.found}; needed: {problem.needed}" for problem in problems},
        )
        started = time.perf_counter()
        self.parallel.collectives.join()
        self._runner.warm_up(report, self._inputs)
        promised = self.memory_profile().graphs
        if report.bytes > promised:
            raise RuntimeError(f"graphs take {report.bytes} bytes, memory_profile promised at most {promised}")
        if self._encoder_pool is not None:
            report.eager["images"] = "encoded one by one by the model's Python, before the step that needs them"
        report.seconds = time.perf_counter() - started
        return report

    def execute(self, batch: ForwardBatch, buffer_set: int = 0) -> ForwardOutput:
        """One forward of a batch that lies in the host's own tensors or in the lent ones of `buffer_set`.

        Values are the host library's to check; shapes, dtypes and devices are checked here.

        Raises:
            BatchRefused: the batch breaks the contract; caches are as they were.
        """
        self._check_free(buffer_set)
        self._check_counts(batch.counts)
        self._check_items(batch.encoder_items)
        self._inputs.sets[buffer_set].adopt(batch)
        return self._run(buffer_set, batch.counts, batch.encoder_items)

    def execute_set(self, buffer_set: int, encoder_items: Sequence[EncoderItem] = ()) -> ForwardOutput:
        """One forward of what the host has written to the lent buffers: the path of every step.

        Args:
            encoder_items: images to encode in this step.

        Raises:
            BatchRefused: the set's last step is in flight; `wait` for its fence before the set is filled again.
        """
        self._check_free(buffer_set)
        self._check_items(encoder_items)
        return self._run(buffer_set, self._inputs.sets[buffer_set].read_counts(), encoder_items)

    def wait(self, fence: int) -> None:
        """Block until the step of `fence` is done."""
        if fence > self._steps:
            raise ValueError(f"fence {fence} was never returned; the last one is {self._steps}")
        for buffer_set, pending in enumerate(self._in_flight):
            if pending is not None and pending[0] <= fence:
                pending[1].wait()
                self._in_flight[buffer_set] = None

    def close(self) -> None:
        """Leave the group of ranks, which a draft leaves to its target, and drop what was captured."""
        self._cut.clear()
        self._runner.close()
        if self._target is None:
            self.parallel.collectives.close()

    def _run(self, buffer_set: int, counts: BatchCounts, items: Sequence[EncoderItem]) -> ForwardOutput:
        if self._caches is None:
            raise BatchRefused("execute comes after bind_kv_cache")
        if counts.num_prefixes:
            self._drop_empty_levels(buffer_set, counts)
        if counts.has_token_types and not self.num_token_types:
            raise BatchRefused(
                f"has_token_types: {counts.has_token_types}, expected 0: this model does not take token types"
            )
        bucket = self._runner.select(counts)
        if counts.has_kv_events:
            self._check_events(bucket)
        if counts.num_prefixes and bucket.mode is Mode.FULL:
            raise RuntimeError(f"the runner chose {bucket} for a step with prefix levels: a graph does not read them")
        if items and self._encoder_pool is not None:
            self._encoder_pool.encode(items)
            self._runner.counters.encodes += len(items)
        step = self._inputs.stage(buffer_set, counts, bucket)
        if self._target is not None:
            self._take_hidden(step)
        if counts.has_kv_events:
            hidden, rows = self._run_between_events(buffer_set, step, bucket)
        else:
            hidden, rows = self._runner.run(step, bucket)
        if counts.num_prefixes:
            self._runner.counters.prefix_level_steps += 1
        self._runner.counters.token_type_steps += counts.has_token_types
        if self.hidden is not None and not self._writes_hidden:
            self.hidden.keep(hidden)
        self._runner.counters.padded_tokens += bucket.num_tokens - counts.num_tokens
        output = self._inputs.output_rows(buffer_set, counts.num_logits)
        if counts.num_logits:
            self._runner.write_rows(self._cut_rows(rows, counts.num_logits), output)
        self._steps += 1
        behind = self.hardware.record_fence(buffer_set)
        if behind is not None:
            self._in_flight[buffer_set] = (self._steps, behind)
        if self.output_kind is OutputKind.POOLED:
            return ForwardOutput(pooled=output, fence=self._steps)
        return ForwardOutput(logits=output, fence=self._steps)

    def _take_hidden(self, step: StepInputs) -> None:
        """Give a draft's tokens the hidden states they ask for, of the target's last step or of the draft's own."""
        assert self._target is not None and self._inputs.hidden_states is not None, "a draft has both"
        if self._runner.combines and not step.counts.hidden_source:
            self._runner.run_combine(step)
            return
        source = self.hidden if step.counts.hidden_source else self._target.hidden
        assert source is not None and step.device.hidden_indices is not None, "a draft asks for hidden_indices"
        self._inputs.hidden_states.take(source, step.device.hidden_indices)

    def _cut_rows(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        """The leading rows of what the runner returned; a replay returns the tensor it returned before."""
        if rows.shape[0] == count:
            return rows
        if not self._runner.static_inputs:
            return rows[:count]
        whole, cut = self._cut.get(count, (None, None))
        if cut is None or whole is not rows:
            cut = rows[:count]
            self._cut[count] = (rows, cut)
        return cut

    def _check_items(self, items: Sequence[EncoderItem]) -> None:
        if not items:
            return
        if not self.encoder_patch_dim:
            raise BatchRefused(f"encoder_items: there are {len(items)}, and this model takes no images")
        if self._encoder_pool is None:
            raise BatchRefused(f"encoder_items: there are {len(items)}, and there is no pool (max_encoder_rows is 0)")
        self._encoder_pool.check(items)

    def _run_between_events(
        self, buffer_set: int, step: StepInputs, bucket: Bucket
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`Runner.run` of a step whose layers wait for the host, and tell it what they have written."""
        assert self._kv_events is not None, "_check_events has seen them"
        with self._gate.step(self._kv_events, buffer_set):
            outputs = self._runner.run(step, bucket)
        self._runner.counters.kv_event_steps += 1
        return outputs

    def _drop_empty_levels(self, buffer_set: int, counts: BatchCounts) -> None:
        """Levels in which no range shares anything are none."""
        if not self.accepts_prefix_levels:
            raise BatchRefused(
                f"num_prefixes: {counts.num_prefixes}, expected 0: no group of this executor accepts prefix levels"
            )
        if not self._inputs.sets[buffer_set].shares_blocks(counts):
            counts.num_prefixes = 0

    def _check_events(self, bucket: Bucket) -> None:
        if self._kv_events is None:
            raise BatchRefused("kv_events: no slots are bound, so that no layer could find its events")
        if bucket.mode is Mode.FULL:
            raise RuntimeError(f"the runner chose {bucket} for a step with KV events: in a graph no layer can wait")

    def _check_free(self, buffer_set: int) -> None:
        pending = self._in_flight[buffer_set]
        if pending is not None:
            raise BatchRefused(f"buffer set {buffer_set} is in use until fence {pending[0]}: wait for it first")

    def _check_counts(self, counts: BatchCounts) -> None:
        bounds = {
            "num_tokens": self.limits.max_num_tokens,
            "num_reqs": self.limits.max_num_seqs,
            "num_logits": self.limits.max_logits_rows,
            "max_seq_len": self.limits.max_model_len,
            "max_query_len": self.limits.max_num_tokens,
            "num_decodes": counts.num_reqs,
            "decode_query_len": self.limits.max_decode_query_len,
            "hidden_source": 0 if self._target is None else 1,
            "num_prefixes": counts.num_reqs,
            "has_token_types": 1,
        }
        for name, bound in bounds.items():
            value = getattr(counts, name)
            if not 0 <= value <= bound:
                raise BatchRefused(f"{name}: {value} is outside 0 ... {bound}")
