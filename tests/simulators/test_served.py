"""The serving host over the simulated device: 200 steady decodes, watched on the thread that runs them."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import DeviceMonitor
from tests.matrix.hf_images import make_images
from trunnion_sim.hardware import SimHardware
from trunnion_sim.runner import GraphRunner

from trunnion import registry
from trunnion.vision.positions import mrope_positions
from trunnion_host.serving import HostConfig, Image, SamplingParams, ServingHost
from trunnion_models.card import Card

from .rig import MAX_ENCODER_ROWS
from .test_steady_state import MODEL_CODE, STEPS, FramesOf

FIRST_STEP = 12
"""By then the prompts are cached, and what is kept per batch size is there."""
LAST_STEP = FIRST_STEP + STEPS
FIRST_UNWATCHED, LAST_UNWATCHED = LAST_STEP + 20, LAST_STEP + 20 + STEPS
"""Watching makes objects of its own, so that the interpreter's are counted over steps that are not watched."""
BATCH = 3
SECONDS = 60.0
"""To submit them all."""
MAX_MODEL_LEN = 512


class StepWatch:
    """Stands behind each step on the host's own thread, and watches the steps between two of them."""

    def __init__(self, hardware: SimHardware) -> None:
        self.monitor = DeviceMonitor()
        self.frames = FramesOf(MODEL_CODE)
        self.runner: GraphRunner | None = None
        self.steps = 0
        self.submitted = threading.Event()
        """Steps wait for it: on a busy machine a prompt would come when steps are watched already."""
        self.before = self.after = (0, 0, 0)
        self.blocks = 0
        self._create_runner = hardware.create_runner

    def create_runner(self, *args: object) -> GraphRunner:
        """Stands in for the package's own, to keep what it made."""
        self.runner = self._create_runner(*args)
        return self.runner

    def record_fence(self, buffer_set: int) -> None:
        """Called once a step, last of all."""
        assert self.submitted.wait(SECONDS), "no request was submitted after the first"
        self.steps += 1
        if self.steps == FIRST_STEP:
            self.before = self._counts()
            self.monitor.__enter__()
            self.frames.__enter__()
        if self.steps == LAST_STEP:
            self.frames.__exit__()
            self.monitor.__exit__(None, None, None)
            self.after = self._counts()
        if self.steps == FIRST_UNWATCHED:
            self.blocks = sys.getallocatedblocks()
        if self.steps == LAST_UNWATCHED:
            self.blocks = sys.getallocatedblocks() - self.blocks

    def _counts(self) -> tuple[int, int, int]:
        assert self.runner is not None, "the host has made its runner"
        counters = self.runner.counters
        return counters.replays, sum(counters.eager.values()), counters.plans


def test_200_served_decodes_are_200_replays(
    card: Card, checkpoint: Callable[[Card], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing eager, every group planned once per step, nothing allocated by anyone, no wait, no frame of the model."""
    if card.pooling is not None:
        pytest.skip("a pooling model decodes nothing")
    serve_and_watch(card, checkpoint, monkeypatch, overlap=False)


def test_overlapped_steps_cost_as_little(
    llama: Card, checkpoint: Callable[[Card], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning the next step while one runs changes none of it; what overlaps does not depend on the model."""
    serve_and_watch(llama, checkpoint, monkeypatch, overlap=True)


def submit(host: ServingHost, card: Card, index: int, sampling: SamplingParams) -> int:
    """Three tokens, with the card's first image behind the first of them if it has any."""
    if not card.images:
        return host.submit([3 + index, 7, 11], sampling)
    image = next(image for sequence in make_images(card) for image in sequence)
    tokens = [3 + index, *[card.config["image_token_id"]] * image.num_tokens, 7, 11]
    merge = card.config["vision_config"]["spatial_merge_size"]
    positions, delta = mrope_positions(len(tokens), [(1, image.grid)], merge)
    shown = Image(pixels=image.pixels.numpy(), grid=image.grid, first_token=1, num_tokens=image.num_tokens)
    return host.submit(tokens, sampling, images=[shown], positions=positions.tolist(), position_delta=delta)


def serve_and_watch(
    card: Card, checkpoint: Callable[[Card], Path], monkeypatch: pytest.MonkeyPatch, *, overlap: bool
) -> None:
    """Decode three requests through the host, and hold what was seen of 200 steps against what they may cost."""
    longer = {"max_position_embeddings": MAX_MODEL_LEN}
    config = {**card.config, **longer}
    if "text_config" in card.config:
        config = {**card.config, "text_config": {**card.config["text_config"], **longer}}
    card = dataclasses.replace(card, name=f"{card.name}-served", config=config, max_model_len=MAX_MODEL_LEN)
    hardware = registry.load_hardware_from(Path(__file__).parent / "trunnion_sim")
    assert isinstance(hardware, SimHardware)
    watch = StepWatch(hardware)
    monkeypatch.setattr(hardware, "record_fence", watch.record_fence)
    monkeypatch.setattr(hardware, "create_runner", watch.create_runner)
    limits = {"max_num_tokens": 16, "max_num_seqs": 4, "max_model_len": MAX_MODEL_LEN, "block_size": card.block_size}
    limits["max_encoder_rows"] = MAX_ENCODER_ROWS if card.images else 0
    with ServingHost(
        HostConfig(model=str(checkpoint(card)), hardware="sim", dtype="float32", overlap=overlap, **limits)
    ) as host:
        sampling = SamplingParams(max_tokens=LAST_UNWATCHED + 8, temperature=1.0, seed=5)
        requests = [submit(host, card, index, sampling) for index in range(BATCH)]
        watch.submitted.set()
        for request in requests:
            # Events are dropped as they come: this thread's objects would count as the steps'.
            reasons = {event.reason for event in host.stream(request)}
            assert "length" in reasons
        stats = host.stats()
        assert stats.eager_steps == 0
        assert stats.images_encoded == (BATCH if card.images else 0)
    groups = len(watch.runner.groups) if watch.runner is not None else 0
    done = tuple(after - before for after, before in zip(watch.after, watch.before, strict=True))
    assert done == (STEPS, 0, STEPS * groups)
    assert not watch.frames.seen
    assert not watch.monitor.allocations
    assert not watch.monitor.waits
    # Some objects come and go with the step; a leak of one per step would be 200.
    assert watch.blocks < STEPS // 4
