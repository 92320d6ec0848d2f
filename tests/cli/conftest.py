"""A tiny model folder (tokenizer, template, configuration, no weights) and a host that answers from a script."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trunnion.cli.host import Event, Finished, HostOptions, Sampling
from trunnion.cli.main import run
from trunnion.ops.registry import OPERATORS

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BOS, EOS, EOS2 = 0, 1, 2


@pytest.fixture(scope="module", autouse=True)
def kernels_stay_in_their_file() -> Iterator[None]:
    """Hardware that one file of tests initialises runs none of the next one's operators."""
    with OPERATORS.borrowed():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Byte-level tokenizer without merges: every byte of the text is one token."""
    folder = tmp_path / "model"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": BOS, "</s>": EOS, "<|eot|>": EOS2} | {char: 3 + i for i, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|eot|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    write(
        folder / "config.json",
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 512},
    )
    write(folder / "generation_config.json", {"eos_token_id": [EOS, EOS2]})
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def pooling_model(model: Path) -> Path:
    """The tiny model folder, with what makes it a pooling model."""
    types = ["", "1_Pooling", "2_Normalize"]
    names = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in zip(types, names, strict=True)
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    write(model / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    return model


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value))


def load(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@dataclass
class Request:
    prompt: str
    prompt_ids: list[int]
    sampling: Sampling
    end_ids: list[int]
    reply: list[int]
    sent: int = 0
    cancelled: bool = False
    embeds: bool = False
    types: list[int] | None = None
    vision: Any = None


@dataclass
class FakeHost:
    """Answers each prompt with `script(prompt text)`; the last request's tokens come first."""

    options: HostOptions
    tokenizer: Tokenizer
    script: Callable[[str], str]
    interrupt_after: int | None = None
    """Send this process SIGINT once so many tokens were sent."""
    error: str = ""
    refusal: str = ""
    """What submit_embedding raises."""
    width: int = 2
    """Columns of a vector: the first is the number of tokens, the others 0.5."""
    requests: dict[int, Request] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    sent: int = 0
    closed: bool = False

    def submit(
        self, token_ids: Sequence[int], sampling: Sampling, end_ids: Sequence[int], *, vision: Any = None
    ) -> int:
        assert not self.closed
        ids = list(token_ids)
        prompt = self.tokenizer.decode(ids, skip_special_tokens=False)
        reply = self.tokenizer.encode(self.script(prompt)).ids
        request = Request(prompt, ids, sampling, list(end_ids), reply, vision=vision)
        self.seen.append(request)
        self.requests[len(self.seen)] = request
        return len(self.seen)

    def submit_embedding(self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None) -> int:
        if self.refusal:
            raise ValueError(self.refusal)
        request_id = self.submit(token_ids, Sampling(max_tokens=1), [])
        self.requests[request_id].embeds = True
        self.requests[request_id].types = None if token_type_ids is None else list(token_type_ids)
        return request_id

    def next_event(self, timeout: float) -> Event | None:
        if not self.requests:
            return None
        id = max(self.requests)
        request = self.requests[id]
        if self.error:
            return self._finish(id, "error", None)
        if request.cancelled:
            return self._finish(id, "cancelled", None)
        if request.embeds:
            self.sent += 1
            if self.sent == self.interrupt_after:
                os.kill(os.getpid(), signal.SIGINT)
            return self._finish(id, "stop", None, embedding=self._vector(request))
        if request.sent == request.sampling.max_tokens:
            return self._finish(id, "length", None)
        token = request.reply[request.sent] if request.sent < len(request.reply) else request.end_ids[-1]
        if token in request.end_ids:
            return self._finish(id, "stop", token)
        request.sent += 1
        self.sent += 1
        if self.sent == self.interrupt_after:
            os.kill(os.getpid(), signal.SIGINT)
        return Event(request_id=id, token_id=token)

    def _vector(self, request: Request) -> list[float]:
        return [float(len(request.prompt_ids)), *[0.5] * (self.width - 1)]

    def _finish(self, id: int, reason: str, stop_id: int | None, embedding: Sequence[float] | None = None) -> Event:
        request = self.requests.pop(id)
        seed = request.sampling.seed if request.sampling.seed is not None else 77
        return Event(
            request_id=id,
            finished=Finished(
                reason=reason, stop_id=stop_id, num_prompt_tokens=len(request.prompt_ids), num_cached_tokens=0,
                num_preemptions=0, seed=seed, error=self.error, embedding=embedding,
            ),
        )  # fmt: skip

    def cancel(self, request_id: int) -> None:
        self.requests[request_id].cancelled = True

    def stats(self) -> dict[str, Any]:
        return {
            "steps": 3, "execute_calls": 3, "prefill_tokens": 20, "decode_tokens": 10, "prefill_seconds": 0.5,
            "decode_seconds": 0.25, "blocks_total": 9, "blocks_used": len(self.requests), "blocks_peak": 4,
            "preemptions": 1, "replays": 2, "eager_steps": 1, "padded_tokens": 10, "plan_calls": 3,
            "plan_seconds": 0.03, "python_seconds": 0.6, "gil_wait_seconds": 0.000006, "eager": {"too wide": 1},
        }  # fmt: skip

    def warm_up_report(self) -> dict[str, Any]:
        return {"captured": ["1 tokens"], "eager": {"mixed": "no graph"}, "on_reference": {"rms_norm": "no kernel"}}

    def close(self) -> None:
        self.closed = True


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    host: FakeHost


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(model: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process against a fake host; options of the fake by keyword."""

    def invoke(*arguments: str, script: Callable[[str], str] = lambda prompt: "ok", **fake: Any) -> Outcome:
        hosts: list[FakeHost] = []

        def open_host(options: HostOptions) -> FakeHost:
            hosts.append(FakeHost(options, load(model), script, **fake))
            return hosts[-1]

        code = run(list(arguments), open_host=open_host)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        for host in hosts:
            assert host.closed, "the host is closed whatever happens"
            assert all(request.cancelled for request in host.requests.values()), "no request is left running"
        return Outcome(code, out, err, hosts[0] if hosts else None)  # type: ignore[arg-type]

    return invoke
