"""`trunnion compare` finds nothing where nothing is wrong, and the module at fault where one is."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from trunnion.ops.registry import OPERATORS
from trunnion_models.gemma2.model import Gemma2DecoderLayer
from trunnion_models.llama.model import LlamaAttention
from trunnion_models.qwen3.model import Qwen3Attention

logging.disable_progress_bar()

Cli = Callable[..., Any]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}


def save(model_type: str, folder: Path) -> str:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return str(folder)


def strictly(text: str) -> Any:
    """JSON as others read it: without NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "qwen3_moe", "qwen3_next", "stablelm"])
def test_a_model_that_is_right_has_no_difference(model_type: str, tmp_path: Path, cli: Cli) -> None:
    outcome = cli("compare", save(model_type, tmp_path / model_type), "--json")
    found = strictly(outcome.out)
    assert (outcome.code, found["first_different"]) == (0, None)
    rows = {row["module"]: row for row in found["modules"]}
    assert {"layers.0.input_layernorm", "layers.2", "logits"} <= rows.keys()
    layers = [rows[f"layers.{number}"] for number in range(SIZES["num_hidden_layers"])]
    # A residual that a layer is given beside its input is part of it.
    assert all(row[what] <= found["tolerance"] for row in layers for what in ("relative", "given"))


@pytest.mark.parametrize(
    ("way", "against", "names"),
    [
        ("port", "hf", ("port (trunnion_models.llama.model.LlamaForCausalLM) on cpu", "transformers 5.")),
        ("port", "adapter", ("port (", "adapter (trunnion.adapter.model.AdaptedCausalLM) on reference")),
        ("adapter", "hf", ("adapter (", "transformers 5.")),
        ("adapter", "port", ("adapter (", "port (")),
        ("port", "port", ("port (", "port (trunnion_models.llama.model.LlamaForCausalLM) on reference")),
        ("hf", "adapter", ("transformers 5.", "adapter (")),
    ],
)
def test_either_side_may_be_any(way: str, against: str, names: tuple[str, str], tmp_path: Path, cli: Cli) -> None:
    outcome = cli("compare", save("llama", tmp_path / "llama"), "--way", way, "--against", against, "--json")
    found = strictly(outcome.out)
    assert (outcome.code, found["first_different"]) == (0, None)
    assert found["here"].startswith(names[0]) and found["there"].startswith(names[1])
    errors = {row["module"]: row["relative"] for row in found["modules"]}
    # The adapter has modules of its own beside transformers', by names that may be those of layers.
    assert errors.keys() >= {"layers.0", "layers.1", "layers.2", "layers.2.mlp.down_proj"}
    assert max(errors.values()) <= found["tolerance"]


def test_the_adapter_does_not_say_that_there_is_no_port_where_there_is(tmp_path: Path, cli: Cli) -> None:
    outcome = cli("compare", save("llama", tmp_path / "llama"), "--way", "adapter", "--against", "port")
    assert "adapter: in the place of the port of LlamaForCausalLM; the module of transformers" in outcome.err
    assert "no port of" not in outcome.err


@pytest.fixture
def swapped_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Qwen3's second layer the norm of queries is that of keys."""
    forward = Qwen3Attention.forward

    def swapped(self: Any, *args: Any) -> torch.Tensor:
        own = self._modules
        if self.attn.prefix.split(".")[2] != "1":
            return forward(self, *args)
        own["q_norm"], own["k_norm"] = own["k_norm"], own["q_norm"]
        try:
            return forward(self, *args)
        finally:
            own["q_norm"], own["k_norm"] = own["k_norm"], own["q_norm"]

    monkeypatch.setattr(Qwen3Attention, "forward", swapped)


@pytest.mark.usefixtures("swapped_norms")
@pytest.mark.parametrize("against", ["hf", "adapter"])
def test_norms_of_queries_and_keys_that_are_swapped(against: str, tmp_path: Path, cli: Cli) -> None:
    page, tensors = tmp_path / "depth.html", tmp_path / "both.safetensors"
    folder = save("qwen3", tmp_path / "qwen3")
    outcome = cli("compare", folder, "--against", against, "--html", str(page), "--save", str(tensors))
    assert outcome.code == 1
    assert "first difference: layers.1.self_attn," in outcome.out
    assert "\n> layers.1.self_attn " in outcome.out
    assert "\nlook at: the rope (base, which pairs, how" in outcome.out
    found = load_file(tensors)
    assert found.keys() == {"here", "there", "here.given", "there.given"}
    assert found["here"].shape == (33, SIZES["hidden_size"])
    torch.testing.assert_close(found["here.given"], found["there.given"])
    assert (found["here"] - found["there"]).abs().max() > 0.01
    with safe_open(tensors, "pt") as file:
        assert file.metadata() == {"module": "layers.1.self_attn"}


def test_a_rope_of_another_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    build = LlamaAttention.__init__

    def rebased(self: Any, config: Any, rotary_emb: Any, ctx: Any, prefix: str) -> None:
        other = dataclasses.replace(rotary_emb.rope, rope_theta=500.0)
        is_second = prefix.split(".")[2] == "1"
        build(self, config, type(rotary_emb)(other, 16, 64, ctx=ctx) if is_second else rotary_emb, ctx, prefix)

    monkeypatch.setattr(LlamaAttention, "__init__", rebased)
    outcome = cli("compare", save("llama", tmp_path / "llama"))
    assert outcome.code == 1
    assert "first difference: layers.1.self_attn," in outcome.out


def test_a_residual_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    forward = Gemma2DecoderLayer.forward

    def forgetful(self: Any, positions: Any, hidden_states: Any, residual: Any) -> Any:
        made, kept = forward(self, positions, hidden_states, residual)
        is_second = self.self_attn.attn.prefix.split(".")[2] == "1"
        return made, torch.zeros_like(kept) if is_second else kept

    monkeypatch.setattr(Gemma2DecoderLayer, "forward", forgetful)
    outcome = cli("compare", save("gemma2", tmp_path / "gemma2"))
    assert outcome.code == 1
    assert "first difference: layers.1," in outcome.out
    assert "\nlook at: residuals" in outcome.out


def test_outputs_that_are_no_numbers_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    forward = LlamaAttention.forward
    monkeypatch.setattr(LlamaAttention, "forward", lambda self, *args: forward(self, *args) * torch.nan)
    outcome = cli("compare", save("llama", tmp_path / "llama"), "--json")
    found = strictly(outcome.out)
    assert (outcome.code, found["first_different"]) == (1, "layers.0.self_attn")
    assert {row["module"]: row["relative"] for row in found["modules"]}["layers.0.self_attn"] is None


def test_prompts_are_requests_of_one_step(model: Path, cli: Cli) -> None:
    save("llama", model)
    outcome = cli(
        "compare", str(model), "--prompt", "sky", "--prompt", "is it blue?", "--json", "--save", str(model / "o")
    )
    found = strictly(outcome.out)
    assert (outcome.code, list(map(len, found["requests"])), found["first_different"]) == (0, [3, 11], None)
    # Where nothing differs, the logits are kept.
    assert load_file(model / "o")["there"].shape == (14, SIZES["vocab_size"])
    assert cli("compare", str(model), "--prompt", "").err == "trunnion: prompt '' has no tokens\n"


def test_nothing_of_a_hardware_package_stays(tmp_path: Path, cli: Cli) -> None:
    before = OPERATORS.registered("CPU")
    assert cli("compare", save("llama", tmp_path / "llama")).code == 0
    assert OPERATORS.registered("CPU") == before


def _without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("model_type", "arguments", "said"),
    [
        ("", [], r"nothing: no such model folder"),
        ("llama", ["--dtype", "int3"], r"unknown --dtype 'int3'; choices: auto, bfloat16, float32, float16"),
        ("llama", ["--way", "vllm"], r"unknown --way 'vllm'; choices: port, adapter, hf"),
        ("llama", ["--against", "vllm"], r"unknown --against 'vllm'; choices: port, adapter, hf"),
        ("llama", ["--hardware", "tpu"], r"unknown hardware 'tpu'; installed: .*cpu"),
        ("llama", ["--hardware", "away"], r"device: found none, away needs one"),
        ("llama", ["--port", "/no/such/port"], r"port /no/such/port: no such folder"),
        ("llama", ["--way", "adapter", "--port", "x"], r"--port x: neither side is a port, but adapter and hf"),
        ("llama", ["--html", "/no/such/folder/x.html"], r"--html /no/such/folder/x.html: there is no folder /no/such"),
        ("llama", ["--prompt", "sky"], r"tokenizer.json"),
        ("stablelm", ["--way", "port"], r"unknown architecture 'StableLmForCausalLM' .*; supported: "),
        ("stablelm", ["--against", "port"], r"unknown architecture 'StableLmForCausalLM' .*; supported: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_of_the_user_is_one_line(
    model_type: str, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    package = tmp_path / "trunnion_away"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hardware.py").write_text(
        "from trunnion.interfaces.hardware import EnvironmentProblem\n"
        "from trunnion.reference import ReferenceHardware\n"
        "class HARDWARE(ReferenceHardware):\n"
        "    name, device_type = 'away', 'xla'\n"
        "    def check_environment(self):\n"
        "        return [EnvironmentProblem(what='device', found='none', needed='one', fatal=True)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = save(model_type, tmp_path / model_type) if model_type else str(tmp_path / "nothing")
    outcome = cli("compare", folder, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.search(said, outcome.err.splitlines()[-1]), outcome.err
    assert outcome.err.splitlines()[-1].startswith("trunnion: ")


def test_what_the_adapter_refuses_is_refused_with_its_reason(tmp_path: Path, cli: Cli) -> None:
    folder = Path(save("llama", tmp_path / "llama"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}))
    outcome = cli("compare", str(folder), "--way", "adapter")
    said = f"{folder}: the adapter was asked for; adapter: llama: the checkpoint brings its own code"
    assert outcome.code == 2
    assert outcome.err.startswith(f"trunnion: {said}")


def test_weights_that_transformers_would_leave_at_random_are_refused(tmp_path: Path, cli: Cli) -> None:
    folder = Path(save("llama", tmp_path / "llama"))
    _without_a_tensor(folder)
    outcome = cli("compare", str(folder), "--way", "hf", "--against", "adapter")
    assert outcome.code == 2
    assert "transformers finds no tensors for 1 parameters: model.norm.weight" in outcome.err


def test_an_error_in_a_port_is_named_by_its_line(tmp_path: Path, cli: Cli) -> None:
    folder, port = Path(save("llama", tmp_path / "llama")), tmp_path / "frob"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["FrobForCausalLM"]}))
    assert cli("port", "new", "frob", "--from", str(folder), "--out", str(port)).code == 0
    right = cli("compare", str(folder), "--port", str(port))
    assert right.code == 0 and right.out.startswith(f"port ({port}.FrobForCausalLM) on cpu against transformers 5.")
    assert "look at" not in right.out
    # A folder is imported once per process.
    edited = tmp_path / "edited"
    shutil.copytree(port, edited)
    model, before = (port / "model.py").read_text(), "        hidden_states = self.embed_tokens"
    assert model.count(before) == 1
    (edited / "model.py").write_text(model.replace(before, f"        1 / 0\n{before}"))
    outcome = cli("compare", str(folder), "--port", str(edited))
    line = model.split(before)[0].count("\n") + 1
    said = f"port {edited}: ZeroDivisionError: division by zero ({edited / 'model.py'}:{line})"
    assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"trunnion: {said}")


def _on_a_terminal(command: list[str]) -> str:
    """What a command writes to standard error, where that is a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                found += (read := os.read(ours, 65536))
            except OSError:
                break
            if not read:
                break
    os.close(ours)
    assert process.returncode == 0
    return found.decode()


def test_a_bar_counts_layers_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trunnion", "compare", save("llama", tmp_path / "llama")]
    shown = _on_a_terminal(command)
    for side in ("port", "hf"):
        assert re.search(rf"\r{side}: .*\d/3 ", shown), shown
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\r" not in quiet.stderr and "%" not in quiet.stderr


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: the page was not opened")
@pytest.mark.usefixtures("swapped_norms")
def test_a_browser_plots_the_error_over_the_depth(tmp_path: Path, cli: Cli) -> None:
    page = tmp_path / "depth.html"
    outcome = cli("compare", save("qwen3", tmp_path / "qwen<3>"), "--json", "--html", str(page))
    modules = [row["module"] for row in strictly(outcome.out)["modules"]]
    found = _open(page.as_uri(), tmp_path)
    assert re.search(r'<p id="verdict" class="differs">first difference: layers\.1\.self_attn,', found)
    dots = re.findall(
        r'<a href="#(row-\d+)"><circle class="(\w+)" cx="([\d.]+)" cy="([\d.]+)" r="\d"><title>(\S+):', found
    )
    assert [name for *_, name in dots] == modules
    assert [name for _, kind, *_, name in dots if kind == "first"] == ["layers.1.self_attn"]
    height = {name: float(down) for _, _, _, down, name in dots}
    allowed = float(re.search(r'<line class="allowed" [^>]*y1="([\d.]+)"', found)[1])  # type: ignore[index]
    # Higher on the page is less far down.
    assert height["layers.0"] > allowed > height["layers.1.self_attn"] and height["logits"] < allowed
    across = [float(across) for _, _, across, _, _ in dots]
    assert across == sorted(across)
    line = re.search(r'<polyline class="depth" points="([^"]+)"', found)
    assert line is not None and len(line[1].split()) == SIZES["num_hidden_layers"]
    table = dict(re.findall(r'<tr id="(row-\d+)" class="[^"]*"><td>([^<]+)</td>', found))
    assert [table[row] for row, *_ in dots] == modules
    assert re.search(r'class="first over"><td>layers\.1\.self_attn</td>', found)
    assert "qwen&lt;3&gt;" in found


def _open(address: str, folder: Path) -> str:
    """The document as a headless browser has it."""
    switches = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    command = [str(BROWSER), *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
