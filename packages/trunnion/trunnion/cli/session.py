"""A model ready to answer: its text side, its host, and requests that fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trunnion.cli.answers import Answer, default_interrupt
from trunnion.cli.figures import figures_line, figures_table, slow_paths
from trunnion.cli.host import Host, HostOptions, Sampling
from trunnion.cli.images import Prompt, Prompts, takes_images
from trunnion.cli.messages import UsageProblem, note
from trunnion.cli.sampling_options import BLOCK_SIZE, LARGEST, SamplingOptions, resolve_max_model_len
from trunnion.cli.threads import excess
from trunnion.config import ACTIVATIONS, DTYPES, KV_CACHE_DTYPES, MAX_THREADS, WEIGHTS
from trunnion.contract import Limits
from trunnion.hf_config import read_config
from trunnion.ops.registry import declined
from trunnion.reference.host_threads import default_threads, usable_cores
from trunnion.registry import hardware_names, max_positions, model_families
from trunnion.text.model_text import ModelText, Task, load_model_text, resolve_model
from trunnion.text.stop_strings import StopStrings

OpenHost = Callable[[HostOptions], Host]
DEFAULT_NUM_TOKENS = 512
MAX_PROCESSES = 64
MAX_DRAFTS = 8


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of the model and its host, as given; None means a default."""

    model: str
    hardware: str
    dtype: str
    max_model_len: int | None
    kv_blocks: int | None
    threads: int | None
    tp: int
    max_num_seqs: int | None
    max_num_tokens: int | None
    prefix_caching: bool
    encoder_rows: int | None = None
    overlap: bool = False
    trace_file: Path | None = None
    drafts: int = 0
    draft_model: Path | None = None
    port: Path | None = None
    kv_cache_dtype: str = "auto"
    prefix_levels: int = 0
    weights: str = "auto"
    activations: str = "auto"

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise UsageProblem(f"unknown --dtype {self.dtype!r}; choices: auto, {', '.join(DTYPES)}")
        if self.kv_cache_dtype != "auto" and self.kv_cache_dtype not in KV_CACHE_DTYPES:
            choices = ", ".join(KV_CACHE_DTYPES)
            raise UsageProblem(f"unknown --kv-cache-dtype {self.kv_cache_dtype!r}; choices: auto, {choices}")
        for name, choices in (("weights", WEIGHTS), ("activations", ACTIVATIONS)):
            if (given := getattr(self, name)) not in choices:
                raise UsageProblem(f"unknown --{name} {given!r}; choices: {', '.join(choices)}")
        for name in ("kv_blocks", "threads", "tp", "max_num_seqs", "max_num_tokens", "encoder_rows"):
            value = getattr(self, name)
            least = 2 if name == "kv_blocks" else 1
            most = {"threads": MAX_THREADS, "tp": MAX_PROCESSES}.get(name, LARGEST)
            if value is not None and not least <= value <= most:
                bound = f"at least {least}" if value < least else f"at most {most}"
                raise UsageProblem(f"--{name.replace('_', '-')} must be {bound}, got {value}")
        if not 0 <= self.drafts <= MAX_DRAFTS:
            raise UsageProblem(f"--drafts must be 0 (off) ... {MAX_DRAFTS}, got {self.drafts}")
        if self.draft_model is not None and not self.drafts:
            raise UsageProblem(f"--draft-model {self.draft_model} without --drafts K: how many tokens is it to guess?")
        if not 0 <= self.prefix_levels <= LARGEST:
            raise UsageProblem(f"--prefix-levels must be 0 (off) ... {LARGEST}, got {self.prefix_levels}")
        if self.drafts and self.overlap:
            raise UsageProblem(f"--drafts {self.drafts} with --overlap: what is accepted decides the next step's rows")


class Session:
    """Submits prompts to a host and remembers nothing of them."""

    def __init__(self, text: ModelText, host: Host, sampling: Sampling, stop: tuple[str, ...]) -> None:
        self.text = text
        self.host = host
        self.sampling = sampling
        self.stop = stop

    def ask(self, prompt: Prompt) -> Answer:
        """Start one request."""
        try:
            request_id = self.host.submit(prompt.token_ids, self.sampling, self.text.end_ids, vision=prompt.vision)
        except ValueError as error:
            raise UsageProblem(str(error)) from error
        return Answer(request_id, self.text.tokenizer.detokenizer(), StopStrings(self.stop))

    def print_figures(self, *, table: bool) -> None:
        print_figures(self.host, table=table)


def print_figures(host: Host, *, table: bool) -> None:
    """What the run cost, on stderr: a line, or all counters."""
    stats = host.stats()
    if table:
        print(figures_table(stats), file=sys.stderr)
        for line in slow_paths(stats, host.warm_up_report(), declined()):
            note(line)
    note(figures_line(stats))


class ModelPlan:
    """The text side of a model: texts can be read and checked before the weights are."""

    def __init__(self, options: ModelOptions, task: Task) -> None:
        self.options = options
        if options.hardware not in hardware_names():
            installed = ", ".join(hardware_names()) or "none"
            raise UsageProblem(f"unknown hardware {options.hardware!r}; installed: {installed}")
        # Said before anything of the model is read: what the port is, and whether it clashes.
        model_families(options.port)
        self.text = load_model_text(resolve_model(options.model), options.port)
        if self.text.task is not task:
            raise UsageProblem(f"{self.text.path} {self.text.task.value}")
        if options.encoder_rows is not None and not takes_images(self.text.path, options.port):
            raise UsageProblem(f"--encoder-rows {options.encoder_rows} is for models with a vision tower")
        self.max_model_len = resolve_max_model_len(options.max_model_len, self._max_position())

    def _max_position(self) -> int | None:
        """Of the model, or of a draft that reaches less far."""
        reaches = [self.text.max_position]
        if self.options.draft_model is not None:
            reaches.append(max_positions(read_config(self.options.draft_model), port=self.options.port))
        return min((reach for reach in reaches if reach is not None), default=None)

    @contextmanager
    def open_host(
        self, open_host: OpenHost, *, num_seqs: int, kv_blocks: int, num_tokens: int = 0, encoder_rows: int = 0
    ) -> Iterator[Host]:
        """Load the model; what is given are defaults that options override, `num_tokens` at least the usual one."""
        options = self.options
        max_num_seqs = options.max_num_seqs or num_seqs
        rows = max_num_seqs * (1 + options.drafts)
        max_num_tokens = options.max_num_tokens or max(DEFAULT_NUM_TOKENS, num_tokens, rows)
        if max_num_tokens < max_num_seqs:
            raise UsageProblem(f"--max-num-tokens {max_num_tokens} is below the {max_num_seqs} requests of a step")
        # No step can be larger, and buffers are sized from it.
        max_num_tokens = min(max_num_tokens, max_num_seqs * self.max_model_len)
        if options.threads is not None and (warning := excess(options.threads, options.tp, usable_cores())):
            note(warning)
        host_options = HostOptions(
            model=self.text.path,
            hardware=options.hardware,
            dtype=options.dtype,
            limits=Limits(
                max_num_tokens=max_num_tokens,
                max_num_seqs=max_num_seqs,
                max_model_len=self.max_model_len,
                max_logits_rows=min(rows, max_num_tokens),
                block_size=BLOCK_SIZE,
                max_encoder_rows=options.encoder_rows or encoder_rows,
            ),
            kv_blocks=options.kv_blocks or kv_blocks,
            prefix_caching=options.prefix_caching,
            threads=options.threads or max(1, default_threads() // options.tp),
            tp_size=options.tp,
            progress=sys.stderr.isatty(),
            overlap=options.overlap,
            trace_file=options.trace_file,
            num_drafts=options.drafts,
            draft_model=options.draft_model,
            port=None if options.port is None else options.port.expanduser().resolve(),
            kv_cache_dtype=options.kv_cache_dtype,
            prefix_levels=options.prefix_levels,
            weights=options.weights,
            activations=options.activations,
        )
        with default_interrupt():
            host = open_host(host_options)
        try:
            if options.prefix_levels and (why := host.stats()["prefix_levels_off_reason"]):
                note(f"note: --prefix-levels {options.prefix_levels} on {options.hardware!r} changes nothing: {why}")
            yield host
        finally:
            with default_interrupt():
                host.close()


class SessionPlan(ModelPlan):
    """The text side of a session, and how it samples."""

    def __init__(self, options: ModelOptions, sampling: SamplingOptions) -> None:
        super().__init__(options, Task.GENERATE)
        # A decoder that nobody knows is refused here, before the model is loaded.
        self.text.tokenizer.detokenizer()
        self.prompts = Prompts(self.text, options.port)
        self.sampling = sampling.resolve(self.text.sampling)
        self.stop = sampling.stop
        if self.text.sampling.not_applied:
            asked = ", ".join(f"{key} {value}" for key, value in self.text.sampling.not_applied.items())
            note(f"note: generation_config.json asks for {asked}, which is not applied")

    def check_length(self, token_ids: Sequence[int], what: str) -> None:
        """A prompt must leave room for one token."""
        if not token_ids:
            raise UsageProblem(f"{what} is empty")
        if len(token_ids) >= self.max_model_len:
            raise UsageProblem(
                f"{what} has {len(token_ids)} tokens; --max-model-len is {self.max_model_len}, the answer included"
            )

    def request_length(self, token_ids: Sequence[int]) -> int:
        """Tokens that a request can reach, with room to draft at its end."""
        ahead = 2 * self.options.drafts
        return min(len(token_ids) + self.sampling.max_tokens + ahead, self.max_model_len)

    @contextmanager
    def open(self, open_host: OpenHost, *, num_seqs: int, kv_blocks: int, encoder_rows: int = 0) -> Iterator[Session]:
        """As `open_host`, with what a session needs."""
        with self.open_host(open_host, num_seqs=num_seqs, kv_blocks=kv_blocks, encoder_rows=encoder_rows) as host:
            yield Session(self.text, host, self.sampling, self.stop)
