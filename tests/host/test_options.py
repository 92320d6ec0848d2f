"""Options of an executor through the serving host: they arrive, or are refused; older callers have the defaults."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import pytest
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import MAX_THREADS
from trunnion_host import _api as api
from trunnion_host import _serving_abi as abi
from trunnion_host.serving import HostConfig, InvalidError, ServingHost

from .conftest import HOST_PACKAGE

SMALL = HostConfig(
    model="null:draft=1",
    hardware="null",
    max_num_tokens=16,
    max_num_seqs=4,
    max_model_len=64,
    block_size=4,
    exit_on_fatal=False,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of two layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


def on_cpu(folder: Path, **changes: object) -> HostConfig:
    return dataclasses.replace(SMALL, model=str(folder), hardware="cpu", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_arrive(folder: Path, threads: int) -> None:
    with ServingHost(on_cpu(folder, threads=threads)) as host:
        assert host.warm_up_report()["implementations"]["threads"].startswith(f"{threads};")


def test_activations_arrive(folder: Path) -> None:
    none = "int8 by blocks, in 0 linear layers in 4 or 8 bits by groups"
    for activations, reported in (("auto", None), ("int8", none)):
        with ServingHost(on_cpu(folder, activations=activations)) as host:
            assert host.warm_up_report()["implementations"].get("activations") == reported


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"threads": -1}, r"num_threads.*-1 is outside 0 .* 1024"),
        ({"threads": MAX_THREADS + 1}, r"num_threads.*1025 is outside 0 .* 1024"),
        ({"weights": "native"}, r"weights 'native' is for \.gguf files, and .* is none; choices: auto"),
        ({"weights": "raw"}, r"unknown weights 'raw'; choices: auto, native"),
        ({"activations": "int4"}, r"unknown activations 'int4'; choices: auto, int8"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(folder: Path, changes: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidError, match=line) as caught:
        ServingHost(on_cpu(folder, **changes))
    assert "\n" not in str(caught.value)


def test_every_rank_is_told() -> None:
    config = dataclasses.replace(SMALL, tp_size=2, threads=5, weights="native", activations="int8")
    for options in (abi.host_options(config).executor, abi.worker_options(config, 1, 0, "").executor):
        assert (options.num_threads, options.weights, options.activations) == (5, b"native", b"int8")


def test_most_threads_agree() -> None:
    header = (HOST_PACKAGE / "include" / "trunnion" / "contract.h").read_text()
    assert f"#define TRN_MAX_THREADS {MAX_THREADS} " in header


class Host:
    """A host over the library without Python, made of the bytes of a caller's options."""

    def __init__(self, build: Path) -> None:
        (path,) = build.rglob("libtrunnion_host_null.so")
        self.library = abi.load(path)

    def create(self, options: bytes) -> str:
        """The error; "" if a host could be created."""
        error, handle = ctypes.create_string_buffer(512), ctypes.c_void_p()
        given = ctypes.create_string_buffer(options, len(options))
        pointer = ctypes.cast(given, ctypes.POINTER(abi.HostOptions))
        self.library.trn_host_create(pointer, ctypes.byref(handle), error, len(error))
        if handle:
            self.library.trn_host_close(handle)
        return error.value.decode()


OLDEST = api.CreateOptions.num_threads.offset
"""Where options of ABI version 5 ended."""


def older(options: abi.HostOptions) -> bytes:
    """As a caller with the header of ABI version 5 lays them out."""
    missing = ctypes.sizeof(api.CreateOptions) - OLDEST
    options.struct_size -= missing
    options.executor.struct_size, options.executor.abi_version = OLDEST, 5
    begin, end = abi.HostOptions.executor.offset + OLDEST, abi.HostOptions.worker_sockets.offset
    return bytes(options)[:begin] + bytes(options)[end:]


def test_an_older_host_has_the_defaults(build: Path) -> None:
    """Fields behind the executor's options are read where the caller has them; new ones are none of its."""
    host = Host(build)
    for num_drafts, line in ((0, ""), (3, ""), (9, "num_drafts is 9, expected 0 ... 8")):
        config = dataclasses.replace(SMALL, num_drafts=num_drafts)
        assert host.create(bytes(abi.host_options(config))) == line
        assert host.create(older(abi.host_options(config))) == line
    unread = dataclasses.replace(SMALL, threads=-7, weights="none")
    assert "num_threads" in host.create(bytes(abi.host_options(unread)))
    assert host.create(older(abi.host_options(unread))) == ""


def test_sizes_that_no_header_has_are_refused(build: Path) -> None:
    host = Host(build)
    for field, size in (("outer", -8), ("inner", -8), ("inner", 4)):
        options = abi.host_options(SMALL)
        struct = options if field == "outer" else options.executor
        struct.struct_size += size
        assert "struct_size" in host.create(bytes(options)), (field, size)


def test_hardware_without_python_refuses_choices(build: Path) -> None:
    for name, value in (("weights", "native"), ("activations", "int8")):
        config = dataclasses.replace(SMALL, **{name: value})  # type: ignore[arg-type]
        line = Host(build).create(bytes(abi.host_options(config)))
        assert f"'{value}' is not for hardware 'null'; choices: auto" in line and name in line
