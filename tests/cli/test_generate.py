"""`trunnion generate` against a scripted host: what is printed where, what the host is asked, how it ends."""

from __future__ import annotations

import errno
import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders

BOS, EOS, EOS2 = 0, 1, 2

Cli = Callable[..., Any]


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


def generate(cli: Cli, model: Path, *arguments: str, **fake: Any) -> Any:
    return cli("generate", "--model", str(model), *arguments, **fake)


def test_answer_on_stdout_and_one_line_of_figures_on_stderr(cli: Cli, model: Path) -> None:
    outcome = generate(cli, model, "Hi", script=lambda prompt: "Grüße 世界 \U0001f468\u200d\U0001f469")
    assert (outcome.code, outcome.out) == (0, "Grüße 世界 \U0001f468\u200d\U0001f469\n")
    assert outcome.err.count("\n") == 1
    for part in ("prefill 20 tokens at 40.0/s", "decode 10 tokens at 40.0/s", "3 steps", "3 execute calls", "4/9",
                 "1 preemptions"):  # fmt: skip
        assert part in outcome.err


def test_prompt_is_the_rendered_template_with_one_bos(cli: Cli, model: Path) -> None:
    request = generate(cli, model, "Hi").host.seen[0]
    assert request.prompt == "<s>[user]Hi</s>[assistant]"
    assert request.prompt_ids.count(BOS) == 1


def test_raw_sends_the_text_as_it_is(cli: Cli, model: Path) -> None:
    assert generate(cli, model, "--raw", "Hi ").host.seen[0].prompt == "Hi "


def test_end_tokens_are_the_list_of_the_generation_config(cli: Cli, model: Path) -> None:
    outcome = generate(cli, model, "Hi", script=lambda prompt: "one<|eot|>two")
    assert outcome.host.seen[0].end_ids == [EOS, EOS2]
    assert outcome.out == "one\n"


def test_several_prompts_run_together_and_print_in_order(cli: Cli, model: Path) -> None:
    outcome = generate(cli, model, "a", "b", "c", script=lambda prompt: f"<{prompt[9]}>")
    assert outcome.out == "<a>\n\n<b>\n\n<c>\n"
    assert outcome.host.options.limits.max_num_seqs == 3


def test_prompt_from_stdin(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    assert generate(cli, model).host.seen[0].prompt == "<s>[user]two\nlines</s>[assistant]"


@pytest.mark.parametrize("stop", ["END", "é!", "D o"])
def test_stop_string_across_tokens_is_never_shown(cli: Cli, model: Path, stop: str) -> None:
    outcome = generate(cli, model, "Hi", "--stop", stop, "--stop", "never", script=lambda prompt: "text END é! END of")
    assert outcome.out == "text END é! END of".split(stop)[0] + "\n"
    assert outcome.host.sent < len("text END é! END of".encode()), "the request was cancelled"


def test_half_a_stop_string_is_shown_at_the_end(cli: Cli, model: Path) -> None:
    assert generate(cli, model, "Hi", "--stop", "END", script=lambda prompt: "text EN").out == "text EN\n"


def test_answer_cut_within_a_character_ends_in_a_replacement(cli: Cli, model: Path) -> None:
    outcome = generate(cli, model, "Hi", "--max-tokens", "3", script=lambda prompt: "a世界")
    assert outcome.out == "a\ufffd\n"


def test_json_is_one_object_per_prompt(cli: Cli, model: Path) -> None:
    outcome = generate(
        cli, model, "--json", "--seed", "5", "--stop", "!", "--max-tokens", "6", "a", "b", "c",
        script=lambda prompt: {"a": "é", "b": "b! more", "c": "long enough"}[prompt[9]],
    )  # fmt: skip
    first, second, third = map(json.loads, outcome.out.splitlines())
    assert [answer["text"] for answer in (first, second, third)] == ["é", "b", "long e"]
    assert [answer["finish_reason"] for answer in (first, second, third)] == ["stop", "stop", "length"]
    assert (first["stop_id"], first["stop_string"], second["stop_string"]) == (EOS2, None, "!")
    assert (first["prompt"], first["seed"], len(first["token_ids"])) == ("a", 5, 2)
    assert first["num_prompt_tokens"] == len(outcome.host.seen[0].prompt_ids)


def test_sampling_comes_from_the_model_and_options_override_it(cli: Cli, model: Path) -> None:
    write(
        model / "generation_config.json",
        {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": EOS, "repetition_penalty": 1.1},
    )
    outcome = generate(cli, model, "Hi")
    sampling = outcome.host.seen[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.6, 50, 0.9, 0.0)
    assert "repetition_penalty 1.1" in outcome.err
    given = ["--temperature", "0", "--top-k", "7", "--top-p", "0.5", "--min-p", "0.1", "--seed", "3"]
    sampling = generate(cli, model, "Hi", *given).host.seen[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed) == (0, 7, 0.5, 0.1, 3)


def test_temperature_of_a_greedy_model_is_ignored(cli: Cli, model: Path) -> None:
    write(model / "generation_config.json", {"temperature": 0.6, "do_sample": False})
    assert generate(cli, model, "Hi").host.seen[0].sampling.temperature == 0.0


def test_host_is_created_as_asked(cli: Cli, model: Path) -> None:
    options = generate(
        cli, model, "Hi", "--kv-blocks", "33", "--threads", "2", "--dtype", "float32", "--max-model-len", "100",
        "--no-prefix-cache", "--max-num-seqs", "4", "--max-num-tokens", "64", "--trace", "steps.json", "--overlap",
        "--weights", "native", "--activations", "int8",
    ).host.options  # fmt: skip
    assert (options.weights, options.activations) == ("native", "int8")
    assert (options.trace_file, options.overlap) == (Path("steps.json"), True)
    assert (options.kv_blocks, options.threads, options.dtype, options.prefix_caching) == (33, 2, "float32", False)
    assert options.tp_size == 1
    limits = options.limits
    assert (limits.max_model_len, limits.max_num_seqs, limits.max_num_tokens, limits.max_logits_rows) == (100, 4, 64, 4)


def test_a_draft_model_is_named_and_shortens_requests(cli: Cli, model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    write(draft / "config.json", {"max_position_embeddings": 48})
    options = generate(cli, model, "Hi", "--drafts", "2", "--draft-model", str(draft)).host.options
    assert (options.draft_model, options.num_drafts, options.limits.max_model_len) == (draft, 2, 48)
    assert generate(cli, model, "Hi", "--drafts", "2").host.options.draft_model is None


def test_drafts_widen_the_limits(cli: Cli, model: Path) -> None:
    options = generate(cli, model, "One", "Two", "--drafts", "3").host.options
    limits = options.limits
    assert (options.num_drafts, limits.max_num_seqs, limits.max_logits_rows) == (3, 2, 8)
    options = generate(cli, model, "One", "Two", "--drafts", "3", "--max-num-tokens", "6").host.options
    assert (options.limits.max_num_tokens, options.limits.max_logits_rows) == (6, 6)
    for given, words in (
        (["--drafts", "9"], "--drafts must be 0 (off) ... 8, got 9"),
        (["--drafts", "-1"], "--drafts must be 0 (off) ... 8, got -1"),
        (["--drafts", "2", "--overlap"], "--drafts 2 with --overlap"),
        (["--draft-model", "here"], "--draft-model here without --drafts K"),
        (["--draft-model", "nowhere", "--drafts", "2"], "nowhere: no such model folder"),
        (["--prefix-levels", "-1"], "--prefix-levels must be 0 (off) ... "),
    ):
        outcome = cli("generate", "--model", str(model), "Hi", *given)
        assert outcome.code == 2 and words in outcome.err


def test_threads_are_divided_over_processes(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    for tp, threads in ((1, 6), (2, 3), (4, 1), (8, 1)):
        options = generate(cli, model, "Hi", "--tp", str(tp)).host.options
        assert (options.tp_size, options.threads) == (tp, threads)
    assert generate(cli, model, "Hi", "--tp", "2", "--threads", "5").host.options.threads == 5


def test_stats_prints_every_counter(cli: Cli, model: Path) -> None:
    err = generate(cli, model, "Hi", "--stats").err
    facts = dict(line.split(maxsplit=1) for line in err.splitlines() if len(line.split()) == 2)
    assert facts["prefill_seconds"] == "0.5000" and facts["replays"] == "2"
    assert facts["gil_wait_us_per_step"] == "2.0000" and facts["plan_us_per_step"] == "10000.0000"
    assert facts["bucket_waste_percent"] == "25.0000", "10 of 20 + 10 + 10 rows"


def test_stats_prints_what_ran_slowly_and_why(cli: Cli, model: Path) -> None:
    err = generate(cli, model, "Hi", "--stats").err.splitlines()
    assert err[-4:-1] == [
        "eager, 1 steps: too wide",
        "may run eager, mixed: no graph",
        "on the reference, rms_norm: no kernel",
    ]
    assert "2 replays, 1 eager" in err[-1]
    assert "too wide" not in generate(cli, model, "Hi").err


def test_interrupt_cancels_prints_what_there_is_and_exits_130(cli: Cli, model: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    outcome = generate(
        cli, model, "a", "b", "--stop", "zz", "--max-tokens", "400", script=lambda prompt: "x" * 300, interrupt_after=5
    )
    assert outcome.code == 130
    assert outcome.out.strip() in ("xxxxx", "xxxxxx"), "what the second had said when it was stopped"
    assert all(request.cancelled for request in outcome.host.seen)
    assert "0 in use now" in outcome.err
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_of_one_answer_shows_its_beginning(cli: Cli, model: Path) -> None:
    outcome = generate(cli, model, "a", script=lambda prompt: "x" * 300, interrupt_after=5)
    assert outcome.code == 130
    assert outcome.out in ("xxxxx\n", "xxxxxx\n")


def test_error_of_a_request_is_one_line_and_exit_1(cli: Cli, model: Path) -> None:
    outcome = generate(cli, model, "a", error="the device is gone")
    assert (outcome.code, outcome.out) == (1, "\n")
    assert "trunnion: the device is gone" in outcome.err


MISTAKES: dict[str, tuple[list[str], str]] = {
    "temperature": (["--temperature", "-1", "x"], "--temperature must be from 0 to 100, got -1"),
    "temperature_text": (["--temperature", "warm", "x"], "--temperature"),
    "top_p": (["--top-p", "0", "x"], "--top-p must be above 0 up to 1, got 0"),
    "top_p_nan": (["--top-p", "nan", "x"], "--top-p"),
    "min_p": (["--min-p", "1.5", "x"], "--min-p must be from 0 to 1, got 1.5"),
    "top_k": (["--top-k", "-1", "x"], "--top-k must be at least 0"),
    "max_tokens": (["--max-tokens", "0", "x"], "--max-tokens must be at least 1"),
    "seed": (["--seed", "-1", "x"], "--seed"),
    "stop": (["--stop", "", "x"], "--stop must not be empty"),
    "kv-cache-dtype": (["--kv-cache-dtype", "int8", "x"], "unknown --kv-cache-dtype 'int8'; choices: auto, fp8_e4m3"),
    "dtype": (["--dtype", "float8", "x"], "unknown --dtype 'float8'; choices: auto, bfloat16, float32, float16"),
    "weights": (["--weights", "raw", "x"], "unknown --weights 'raw'; choices: auto, native"),
    "activations": (["--activations", "int4", "x"], "unknown --activations 'int4'; choices: auto, int8"),
    "hardware": (["--hardware", "tpu", "x"], "unknown hardware 'tpu'; installed: "),
    "threads": (["--threads", "0", "x"], "--threads must be at least 1"),
    "tp": (["--tp", "0", "x"], "--tp must be at least 1"),
    "many_processes": (["--tp", "100000", "x"], "--tp must be at most 64, got 100000"),
    "many_threads": (["--threads", "100000", "x"], "--threads must be at most 1024, got 100000"),
    "kv_blocks": (["--kv-blocks", "1", "x"], "--kv-blocks must be at least 2"),
    "kv_blocks_32_bits": (["--kv-blocks", "4294967305", "x"], "--kv-blocks must be at most 2147483647"),
    "max_tokens_32_bits": (["--max-tokens", "4294967296", "x"], "--max-tokens must be from 1 to 2147483647"),
    "top_k_32_bits": (["--top-k", "4294967297", "x"], "--top-k must be from 0 to 2147483647"),
    "max_model_len": (["--max-model-len", "1000", "x"], "--max-model-len 1000 is above the model's limit of 512"),
    "max_num_tokens": (["--max-num-tokens", "1", "x", "y"], "--max-num-tokens 1 is below"),
    "long_prompt": (["--max-model-len", "20", "a long prompt"], "the prompt has "),
    "long_second": (["--max-model-len", "40", "a", "x" * 50], "prompt 2 has "),
    "empty": ([""], "the prompt is empty"),
    "blank": (["a", " \n"], "prompt 2 is empty"),
    "not_utf8": (["a", "ab\udcff"], "prompt 2 is not UTF-8 at character 2"),
    "option": (["--no-such-option", "x"], "--no-such-option"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_and_exit_2(cli: Cli, model: Path, name: str) -> None:
    arguments, message = MISTAKES[name]
    outcome = generate(cli, model, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1 and message in outcome.err
    assert outcome.host is None, "nothing was loaded"


def test_a_prompt_leaves_room_for_one_token(cli: Cli, model: Path) -> None:
    length = len(generate(cli, model, "Hi").host.seen[0].prompt_ids)
    assert generate(cli, model, "--max-model-len", str(length), "Hi").code == 2
    assert generate(cli, model, "--max-model-len", str(length + 1), "Hi").code == 0


def test_an_unknown_decoder_is_refused_before_the_model_is_loaded(cli: Cli, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(model / "tokenizer.json"))
    outcome = cli("generate", "--model", str(model), "a")
    assert (outcome.code, outcome.host) == (2, None)
    assert "unknown decoder 'WordPiece' in the tokenizer" in outcome.err


def test_no_chat_template_names_raw(cli: Cli, model: Path) -> None:
    write(model / "tokenizer_config.json", {})
    outcome = generate(cli, model, "Hi")
    assert outcome.code == 2 and "--raw" in outcome.err
    assert generate(cli, model, "--raw", "Hi").code == 0


def _rename(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / name)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda model: _rename(model, "pytorch_model.bin"), "pickle (pytorch_model.bin)"),
        (lambda model: _rename(model, "consolidated.00.pth"), "save_pretrained"),
        (lambda model: _rename(model, "x.gguf"), "name one of them: x.gguf"),
        (lambda model: (model / "model.safetensors").unlink(), "no *.safetensors"),
        (lambda model: (model / "config.json").unlink(), "no config.json"),
        (lambda model: (model / "config.json").write_text("{"), "not JSON"),
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json"),
        (
            lambda model: write(model / "generation_config.json", {"do_sample": True, "temperature": "hot"}),
            "generation_config.json: temperature must be a number, got 'hot'",
        ),
    ],
    ids=[
        "pickle_bin",
        "pickle_pth",
        "gguf_inside",
        "no_weights",
        "no_config",
        "bad_config",
        "no_tokenizer",
        "bad_generation",
    ],
)
def test_unusable_model_is_one_line_and_exit_2(cli: Cli, model: Path, break_it: Any, message: str) -> None:
    break_it(model)
    outcome = generate(cli, model, "Hi")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


def test_buffers_are_no_larger_than_the_largest_step(cli: Cli, model: Path) -> None:
    limits = generate(
        cli, model, "a", "b", "--max-model-len", "50", "--max-num-tokens", "2000000000"
    ).host.options.limits
    assert limits.max_num_tokens == 100


def test_model_without_a_name_is_not_this_folder(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    outcome = cli("generate", "--model", "", "Hi")
    assert outcome.code == 2 and "model '' does not exist" in outcome.err


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_closed_streams_are_empty_ones(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setattr(sys, closed, None)
    assert generate(cli, model, "Hi").code == 0
    monkeypatch.setattr(sys, "stdin", None)
    assert generate(cli, model).code == 2


def test_stdin_that_is_not_utf8_is_one_line_and_exit_2(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff\xfe"), encoding="utf-8"))
    outcome = generate(cli, model)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "the prompt is not UTF-8 at character 2" in outcome.err


@pytest.mark.parametrize("name", ["absent", "weights.pt", "notes.txt"])
def test_path_that_is_no_model_is_one_line_and_exit_2(cli: Cli, tmp_path: Path, name: str) -> None:
    if name != "absent":
        (tmp_path / name).touch()
    outcome = cli("generate", "--model", str(tmp_path / name), "Hi")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert name in outcome.err


def test_reader_that_has_gone_ends_the_run_quietly(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    outcome = generate(cli, model, "Hi")
    assert (outcome.code, outcome.err) == (1, "")
    assert all(request.cancelled for request in outcome.host.seen)
