"""The C++ serving host behind the commands' `Host`; the only module of the command line that knows trunnion-host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trunnion.cli.host import Event, Finished, Host, HostOptions, Sampling
from trunnion.errors import UnsupportedError

if TYPE_CHECKING:
    from trunnion.vision.prompt import VisionPrompt
    from trunnion_host.serving import ServingHost

REMEDY = "pip install trunnion-host"


def library_facts() -> dict[str, Any]:
    """Where the C++ library lies and its ABI version.

    Raises:
        UnsupportedError: trunnion-host is not installed, or not built.
        ImportError, OSError: its library cannot be loaded.
    """
    _require_host()
    from trunnion_host import _serving_abi as abi

    library = abi.load(None)
    return {"library": library._name, "abi_version": library.trn_abi_version()}


def open_serving_host(options: HostOptions) -> Host:
    """Load the model.

    Raises:
        UnsupportedError: trunnion-host is not installed or not built, or the model or an option cannot be used.
    """
    _require_host()
    from trunnion_host.serving import HostConfig, InvalidError, ServingHost

    limits = options.limits
    config = HostConfig(
        model=str(options.model),
        hardware=options.hardware,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        max_num_tokens=limits.max_num_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        max_logits_rows=limits.max_logits_rows,
        block_size=limits.block_size,
        max_encoder_rows=limits.max_encoder_rows,
        tp_size=options.tp_size,
        threads=options.threads,
        kv_blocks=options.kv_blocks,
        prefix_caching=options.prefix_caching,
        show_progress=options.progress,
        overlap=options.overlap,
        trace_file=options.trace_file,
        num_drafts=options.num_drafts,
        draft_model=None if options.draft_model is None else str(options.draft_model),
        port=None if options.port is None else str(options.port),
        prefix_levels=options.prefix_levels,
        weights=options.weights,
        activations=options.activations,
    )
    try:
        return _Serving(ServingHost(config))
    except InvalidError as error:
        raise UnsupportedError(str(error)) from error


class _Serving:
    """Translates between the two vocabularies."""

    def __init__(self, host: ServingHost) -> None:
        self._host = host

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        end_ids: Sequence[int],
        *,
        vision: VisionPrompt | None = None,
    ) -> int:
        from trunnion_host.serving import Image, SamplingParams

        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            max_tokens=sampling.max_tokens,
            eos_ids=tuple(end_ids),
        )
        if vision is None or not vision.images:
            return self._host.submit(token_ids, params)
        return self._host.submit(
            token_ids,
            params,
            images=[
                Image(pixels=image.pixels, grid=image.grid, first_token=image.first_token, num_tokens=image.num_tokens)
                for image in vision.images
            ],
            positions=vision.positions.tolist(),
            position_delta=vision.position_delta,
        )

    def submit_embedding(self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None) -> int:
        return self._host.submit_embedding(token_ids, token_type_ids)

    def next_event(self, timeout: float) -> Event | None:
        event = self._host.next_event(timeout=timeout)
        if event is None:
            return None
        if not event.finished:
            return Event(request_id=event.request_id, token_id=event.token_id)
        finished = Finished(
            reason=event.reason,
            stop_id=event.stop_id,
            num_prompt_tokens=event.num_prompt_tokens,
            num_cached_tokens=event.num_cached_tokens,
            num_preemptions=event.num_preemptions,
            seed=event.seed,
            error=event.error,
            embedding=event.embedding,
        )
        return Event(request_id=event.request_id, finished=finished)

    def cancel(self, request_id: int) -> None:
        self._host.cancel(request_id)

    def stats(self) -> Mapping[str, Any]:
        return self._host.stats_dict()

    def warm_up_report(self) -> Mapping[str, Any]:
        return self._host.warm_up_report()

    def close(self) -> None:
        self._host.close()


def _require_host() -> None:
    if find_spec("trunnion_host") is None:
        raise UnsupportedError(f"the C++ serving host is not installed; {REMEDY}")
    import trunnion_host

    try:
        trunnion_host.library_path()
    except FileNotFoundError as error:
        raise UnsupportedError(str(error)) from error
