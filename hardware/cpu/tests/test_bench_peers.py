"""The peers' bench: what its workers answer, whose turn it is, and what is made of figures and of failures."""

from __future__ import annotations

import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

PEERS = Path(__file__).resolve().parents[1] / "bench" / "peers"
sys.path.insert(0, str(PEERS))

import checkpoints  # noqa: E402
import contest  # noqa: E402
import results  # noqa: E402
import table  # noqa: E402
import worker as worker_module  # noqa: E402
from contestants import ENGINES  # noqa: E402
from measures import COLUMNS, Call, calls  # noqa: E402
from options import parse  # noqa: E402
from page import page  # noqa: E402
from worker import Worker, WorkerError  # noqa: E402

from trunnion.weights.gguf_source import GGUFSource  # noqa: E402

FAKE = Path(__file__).resolve().parent / "fake_peer_engine.py"
LIMITS = {"threads": 2, "max_seqs": 32, "max_len": 100, "max_tokens": 1000}
StartFake = Callable[[Path], Worker]


@pytest.fixture
def start() -> Iterator[StartFake]:
    """Starts the fake engine, which is ended after the test."""
    workers = []

    def start(folder: Path) -> Worker:
        variables = {**os.environ, "PYTHONPATH": str(PEERS)}
        workers.append(Worker((sys.executable, str(FAKE)), variables, folder / "fake.log"))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def run(tmp_path: Path, start: StartFake, monkeypatch: pytest.MonkeyPatch) -> Callable[..., results.Group]:
    """Runs one group: name of an engine -> how the fake one behaves in its place."""
    monkeypatch.setattr(contest, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(contest, "CALL_SECONDS", 1.0)

    def run(behaviours: dict[str, str], rounds: int = 2, progress: Callable[[str], None] = print) -> results.Group:
        entries = [
            contest.Entry(
                engine=ENGINES[name], python="", path=Path(behaviour), row=results.Row(engine=name, weight_bytes=100)
            )
            for name, behaviour in behaviours.items()
        ]
        settings = contest.Settings(threads=2, rounds=rounds, is_quick=True, vocabulary=200, scratch=tmp_path)
        monkeypatch.setattr(contest, "_forget_pages", lambda path: None)
        found = contest.run_group(entries, settings, lambda: 1000.0, progress, lambda entry, _: start(tmp_path))
        return results.Group(model="toy", bits=16, bandwidth=found, rows=[entry.row for entry in entries])

    return run


def row(engine: str, **samples: Sequence[float]) -> results.Row:
    named = {name.replace("_", " "): list(values) for name, values in samples.items()}
    return results.Row(engine=engine, samples=named, weight_bytes=500)


class TestWorker:
    def test_answers_though_the_engine_prints(self, start: StartFake, tmp_path: Path) -> None:
        worker = start(tmp_path)
        assert worker.ask("open", 20, path="steady", limits=LIMITS) == {}
        answer = worker.ask("generate", 20, prompts=[[1], [2]], new_tokens=2)
        assert answer == {"tokens": [[4, 4], [4, 4]], "times": [[0.5, 0.6], [0.5, 0.6]]}
        assert (tmp_path / "fake.log").read_text() == "an engine may print what it likes\n"
        assert worker.peak_bytes() > 1 << 20

    def test_an_exception_is_an_answer_in_one_line(self, start: StartFake, tmp_path: Path) -> None:
        worker = start(tmp_path)
        with pytest.raises(WorkerError, match=r"^RuntimeError: nothing was opened$"):
            worker.ask("generate", 20, prompts=[[1]], new_tokens=1)
        with pytest.raises(WorkerError, match=r"^ValueError: cannot read this$") as raised:
            worker.ask("open", 20, path="unreadable", limits=LIMITS)
        assert not raised.value.is_dead
        worker.ask("open", 20, path="steady", limits=LIMITS)

    def test_one_that_dies_leaves_its_last_words(self, start: StartFake, tmp_path: Path) -> None:
        worker = start(tmp_path)
        worker.ask("open", 20, path="dies", limits=LIMITS)
        with pytest.raises(WorkerError, match=r"^ended with exit code 7: the last words$") as raised:
            worker.ask("generate", 20, prompts=[[1]] * 32, new_tokens=1)
        assert raised.value.is_dead

    def test_one_that_hangs_is_killed(self, start: StartFake, tmp_path: Path) -> None:
        worker = start(tmp_path)
        worker.ask("open", 20, path="hangs", limits=LIMITS)
        begin = time.monotonic()
        with pytest.raises(WorkerError, match=r"^no answer to 'generate' within 0 s$") as raised:
            worker.ask("generate", 0.3, prompts=[[1]], new_tokens=1)
        worker.close()
        assert raised.value.is_dead
        assert time.monotonic() - begin < worker_module.END_SECONDS

    @pytest.mark.parametrize(("behaviour", "timeout"), [("hangs", 1.0), ("dies", 20.0)])
    def test_what_it_started_ends_with_it(
        self, start: StartFake, tmp_path: Path, behaviour: str, timeout: float
    ) -> None:
        worker = start(tmp_path)
        worker.ask("open", 20, path=behaviour, limits=LIMITS)
        with pytest.raises(WorkerError):
            worker.ask("generate", timeout, prompts=[[1]] * 32, new_tokens=1)
        worker.close()
        words = (tmp_path / "fake.log").read_text().split()
        assert not _is_running(int(words[words.index("left") + 1]))

    def test_one_that_reads_nothing_is_killed(self, tmp_path: Path) -> None:
        worker = Worker((sys.executable, "-c", "import time; time.sleep(60)"), os.environ, tmp_path / "log")
        with pytest.raises(WorkerError, match=r"^no answer to 'generate' within 0 s$"):
            worker.ask("generate", 0.3, prompts=[[1] * 1_000_000])
        worker.close()

    def test_one_that_answers_no_more_is_killed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_module, "END_SECONDS", 0.2)
        code = "import os, time; os.close(1); time.sleep(60)"
        worker = Worker((sys.executable, "-c", code), os.environ, tmp_path / "log")
        with pytest.raises(WorkerError, match=r"^ended with signal 9: no word$"):
            worker.ask("generate", 20)
        worker.close()


def _is_running(process: int) -> bool:
    """Whether there is such a process, and not only the record of one that has ended."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


class TestRates:
    def test_a_decode_counts_while_every_row_decodes(self) -> None:
        call = Call(name="decode 2", batch=2, prompt_len=4, new_tokens=3)
        # From 2, when the second row has begun, to 5, when the first has ended: two tokens of each.
        assert call.rate([[1, 3, 5], [2, 4, 5, 6]]) == pytest.approx(4 / 3)

    def test_a_prefill_counts_its_prompt(self) -> None:
        assert Call(name="prefill", batch=1, prompt_len=100, new_tokens=1).rate([[0.5]]) == 200

    def test_prompts_are_new_each_round_and_the_same_for_all(self) -> None:
        call = calls(is_quick=True)[1]
        assert call.prompts(1, 500) == call.prompts(1, 500) != call.prompts(2, 500)
        assert len(call.prompts(1, 500)) == call.batch == 8


class TestGroup:
    def test_engines_take_turns_and_round_0_does_not_count(self, run: Callable[..., results.Group]) -> None:
        told: list[str] = []
        group = run({"trunnion": "steady", "transformers": "other"}, progress=told.append)
        turns = [text.rpartition(" ")[2] for text in told if text.startswith("round")]
        assert turns == ["trunnion", "transformers"] * 4 + ["transformers", "trunnion"] * 4 + turns[:2] * 4
        assert group.bandwidth == [1000.0] * 2
        ours, other = group.rows
        assert ours.samples["decode 8"] == pytest.approx([80.0, 80.0])
        assert ours.samples["prefill 1024"] == pytest.approx([2048.0, 2048.0])
        assert ours.samples["memory"][0] > 1 << 20
        assert "start warm" not in ours.samples
        assert (ours.agreement, other.agreement) == ((2, 32), (32, 32))
        assert group.share_of_limit(ours) == pytest.approx(10 / (1000 / 100))

    def test_a_failed_call_leaves_the_others(self, run: Callable[..., results.Group]) -> None:
        group = run({"trunnion": "steady", "vllm": "no-room"}, rounds=1)
        failed = group.rows[1]
        assert failed.failures == {"decode 8": "MemoryError: no room for 8"}
        assert {*failed.samples} == {"start cold", "decode 1", "decode 32", "prefill 1024", "memory"}
        assert "vllm, decode 8: MemoryError: no room for 8" in table.table(group)

    @pytest.mark.parametrize(
        ("behaviour", "reason"),
        [
            ("unreadable", "did not start: ValueError: cannot read this"),
            ("dies", "ended with exit code 7: the last words"),
            ("hangs", "did not start: no answer to 'generate' within 1 s"),
        ],
    )
    def test_one_that_is_out_has_a_row_with_the_reason(
        self, run: Callable[..., results.Group], behaviour: str, reason: str
    ) -> None:
        group = run({"trunnion": "steady", "vllm": behaviour}, rounds=1)
        failed = group.rows[1]
        assert failed.failures == {"": reason}
        assert f"  vllm: {reason}" in table.table(group).splitlines()
        assert {*group.rows[0].samples} == {*COLUMNS} - {"start warm"}
        assert reason.replace("'", "&#x27;") in page([group], {})


class TestVerdicts:
    def test_more_is_better_of_rates_and_less_of_costs(self) -> None:
        ours = row("trunnion", decode_1=[30], decode_8=[30], start_warm=[2], memory=[4e9])
        rival, third = row("vllm", decode_1=[20], decode_8=[40], start_warm=[8], memory=[2e9]), row("x", decode_1=[15])
        group = results.Group(model="toy", bits=4, bandwidth=[10_000.0], rows=[rival, ours, third])
        assert group.verdict("decode 1") == "won, 1.50 x vllm"
        assert group.verdict("decode 8") == "lost, 0.75 x vllm"
        assert group.verdict("start warm") == "won, 4.00 x vllm"
        assert group.verdict("memory") == "lost, 0.50 x vllm"
        assert group.verdict("decode 32") == "not measured"
        text = table.table(group)
        assert "30.0" in text
        assert "4.00 GB" in text
        assert "150%" in text

    def test_rounds_are_compared_with_themselves(self) -> None:
        """The machine is a tenth as fast in the second round; in the third only for ours."""
        ours, rival = row("trunnion", decode_1=[100, 10, 10]), row("vllm", decode_1=[50, 5, 20])
        group = results.Group(model="toy", bits=4, bandwidth=[1.0], rows=[ours, rival])
        assert group.verdict("decode 1") == "won, 2.00 x vllm"

    def test_without_a_rival_nothing_is_won(self) -> None:
        group = results.Group(model="toy", bits=4, bandwidth=[1.0], rows=[row("trunnion", decode_1=[1])])
        assert group.verdict("decode 1") == "no rival"

    def test_an_engine_that_does_not_idle_is_named(self) -> None:
        busy = row("vllm", decode_1=[1])
        busy.idle_share = 0.5
        group = results.Group(model="toy", bits=4, bandwidth=[1.0], rows=[busy])
        assert "vllm: used 50% of a core while others were measured" in table.table(group)

    def test_json_gives_the_same_group(self) -> None:
        group = results.Group(model="toy", bits=4, bandwidth=[1.0], rows=[row("trunnion", decode_1=[1])])
        group.rows[0].agreement = (3, 32)
        text = json.dumps({"groups": [{**vars(group), "rows": [vars(one) for one in group.rows]}]})
        assert results.groups_from(json.loads(text)) == [group]


class TestCheckpoints:
    def test_llama_cpps_file_holds_the_same_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As trunnion reads it, whose reading is held against llama.cpp's converter."""
        model = tiny_model()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setitem(checkpoints._MODELS, "toy", lambda: model)  # type: ignore[arg-type]
        path, size = checkpoints.checkpoint("toy", "BF16.gguf")
        source = GGUFSource(path)
        assert source.hf_config()["rope_theta"] == 5e5
        found = dict(source.tensors(source.infos))
        assert found.keys() == model.tensors.keys()
        for name, expected in model.tensors.items():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=0, check_dtype=False)
        # Norms are kept in float32.
        assert size == sum(tensor.numel() * (4 if tensor.ndim == 1 else 2) for tensor in model.tensors.values())
        before = path.stat().st_mtime_ns
        assert checkpoints.checkpoint("toy", "BF16.gguf") == (path, size)
        assert path.stat().st_mtime_ns == before


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("--peers", "vlm"), "no peer vlm; choices: all, transformers, vllm, llama.cpp, openvino"),
            (("--peers", "all", "--widths", "2"), "no width 2; choices: all, 16, 8, 4"),
            (("--peers", "all", "--models", "gpt"), "no model gpt; choices: all, smollm2, qwen3-0.6b"),
            (("--peers", "all", "--threads", "0"), "--threads is 0, expected at least 1"),
            (("--peers", "all", "--add"), "--add needs --json"),
        ],
    )
    def test_bad_words_are_refused_with_the_choices(
        self, arguments: Sequence[str], expected: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            parse(arguments, "")
        assert expected in capsys.readouterr().err

    def test_every_engine_has_versions(self) -> None:
        versions = tomllib.loads((Path(__file__).resolve().parents[3] / "ci" / "versions.toml").read_text())
        assert ["trunnion", *versions["peers"]["cpu"]] == list(ENGINES)

    def test_all_is_every_engine_and_ours_is_first(self) -> None:
        found = parse(["--peers", "all", "--python", "vllm=a=b", "--missing", "openvino=no wheel"], "")
        assert found.peers == ["trunnion", "transformers", "vllm", "llama.cpp", "openvino"]
        assert (found.python, found.missing) == ({"vllm": "a=b"}, {"openvino": "no wheel"})
        assert parse(["--peers", "vllm", "--quick", "--rounds", "5"], "").rounds == 1


def tiny_model() -> checkpoints.Model:
    """Of one layer, with as many heads for queries as not for keys."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e5,
    }
    shapes = {
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64),
        "mlp.gate_proj": (96, 64),
        "mlp.up_proj": (96, 64),
        "mlp.down_proj": (64, 96),
        "input_layernorm": (64,),
        "post_attention_layernorm": (64,),
    }
    torch.manual_seed(0)
    tensors = {f"model.layers.0.{name}.weight": torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    tensors |= {checkpoints.EMBEDDING: torch.randn(300, 64).bfloat16(), "model.norm.weight": torch.ones(64).bfloat16()}
    return checkpoints.Model(config=config, tensors=tensors, vocabulary=checkpoints._made_up_vocabulary(300))
