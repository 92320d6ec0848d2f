"""A family that nobody knows, but for its name like one that is known, runs as `trunnion port new` scaffolds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.matrix.host_double import Chunk, HostDouble
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from trunnion.cli.main import run
from trunnion.cli.serving import open_serving_host
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.porting.structure import read_structure
from trunnion.runner.model_executor import ModelExecutor

from .conftest import load
from .full_size import PUBLISHED, full_size_headers

logging.disable_progress_bar()

HAS_LIBRARY = find_spec("trunnion_host") is not None and find_spec("trunnion_host._host") is not None

Cli = Callable[..., Any]
LIMITS = Limits(max_num_tokens=32, max_num_seqs=2, max_model_len=32, max_logits_rows=32, block_size=4)
TOKENS = [(17 * index + 5) % 131 for index in range(23)]
CLOSE = 1e-4
SCAFFOLDED = {
    "llama": "biases, a head size of its own, tied",
    "qwen2": "biases of q, k and v alone",
    "qwen3": "norms of each head",
    "mistral": "a window over all layers",
    "ministral": "windows of some layers",
    "olmo2": "norms behind, and over all heads",
    "olmo3": "windows and ropes by layer",
    "phi3": "stored fused, part of a head rotated",
    "mixtral": "experts by other names",
    "qwen3_moe": "experts",
    "qwen2_moe": "a shared expert behind a gate",
    "glm4_moe": "a dense layer before, a bias to choose experts by, a shared expert",
}
"""Family whose quick card is renamed, and what its scaffold has to get right."""


def save_renamed(family: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """The quick card of `family` with weights that matter, under a name that nobody knows."""
    cards = import_module(f"trunnion_models.{family}.card").CARDS
    card = next(card for card in cards if card.quick and not card.quantization)
    torch.manual_seed(3)
    config = AutoConfig.for_model(**{**card.config, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name:
                continue
            if tensor.dim() > 1:
                tensor.normal_(std=1.0 if "embed_tokens" in name else 1.4 / tensor.shape[-1] ** 0.5)
            else:
                tensor.add_(torch.randn_like(tensor) * 0.2)
    model.save_pretrained(folder)
    edit(folder, architectures=["FrobForCausalLM"], model_type="frob")
    return model


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@torch.inference_mode()
def logits_there(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([TOKENS]), use_cache=False).logits[0].float()
    return logits


def logits_here(folder: Path, port: Path) -> torch.Tensor:
    """A chunk, another one, and decodes."""
    executor = ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS, port=port))
    host = HostDouble(executor, 20, executor.device)
    request = host.add(TOKENS)
    rows = [host.step([Chunk(request, count)])[0] for count in (9, 10, 1, 1, 1, 1)]
    return torch.cat(rows)


def assert_equal_logits(model: PreTrainedModel, folder: Path, port: Path) -> None:
    expected, found = logits_there(model), logits_here(folder, port)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("family", SCAFFOLDED)
def test_a_known_structure_by_another_name_runs_as_scaffolded(family: str, tmp_path: Path, cli: Cli) -> None:
    folder, port = tmp_path / "model", tmp_path / "frob"
    model = save_renamed(family, folder)
    assert cli("check", str(folder)).code == 1
    made = cli("port", "new", "frob", "--from", str(folder), "--out", str(port))
    assert (made.code, made.err) == (0, "")
    assert sorted(path.name for path in port.glob("*.py")) == [
        "__init__.py", "card.py", "config.py", "model.py", "weights.py",
    ]  # fmt: skip
    checked = cli("check", str(folder), "--port", str(port), "--json")
    report = json.loads(checked.out)
    assert (checked.code, report["way"], report["family"], report["refusals"]) == (0, "port", "frob", [])
    assert report["parameters"] == model.num_parameters() + _biases_that_are_buffers(model)
    assert_equal_logits(model, folder, port)


def _biases_that_are_buffers(model: PreTrainedModel) -> int:
    return sum(tensor.numel() for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias"))


RENAMES = {
    r"^model\.embed_tokens": "tok_embeddings",
    r"^model\.norm": "ln_f",
    r"^model\.layers": "transformer.h",
    r"^lm_head": "output",
    r"self_attn\.([qkv])_proj": r"attention.w\1",
    r"self_attn\.o_proj": "attention.wo",
    r"self_attn": "attention",
    r"input_layernorm": "attention_norm",
    r"post_attention_layernorm": "ffn_norm",
    r"mlp\.gate_proj": "feed_forward.w1",
    r"mlp\.up_proj": "feed_forward.w3",
    r"mlp\.down_proj": "feed_forward.w2",
}
FIELDS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
}


def test_other_names_of_tensors_and_fields_are_understood(tmp_path: Path, cli: Cli) -> None:
    folder, port = tmp_path / "model", tmp_path / "frob"
    model = save_renamed("qwen3", folder)
    tensors = load_file(folder / "model.safetensors")
    for pattern, name in RENAMES.items():
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({FIELDS.get(name, name): value for name, value in config.items()}))
    assert "transformer.h.0.attention.wq.weight" in tensors
    assert cli("port", "new", "frob", "--from", str(folder), "--out", str(port)).code == 0
    assert_equal_logits(model, folder, port)


@pytest.mark.parametrize("family", ["qwen3", "phi3", "qwen2_moe", "mixtral"])
def test_an_index_alone_is_enough_to_scaffold_from(family: str, tmp_path: Path, cli: Cli) -> None:
    """The same files as from the weights themselves, for structures whose shapes decide nothing."""
    folder, port = tmp_path / "model", tmp_path / "frob"
    save_renamed(family, folder)
    assert cli("port", "new", "frob", "--from", str(folder), "--out", str(port)).code == 0
    index = {"weight_map": dict.fromkeys(load_file(folder / "model.safetensors"), "model-1.safetensors")}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    made = cli("port", "new", "frob", "--from", str(folder), "--out", str(tmp_path / "again"), "--json")
    found = json.loads(made.out)
    assert (made.code, len(found["check"]["refusals"]), found["check"]["tensors"]["problems"]) == (1, 1, {})
    for path in port.glob("*.py"):
        assert (tmp_path / "again" / path.name).read_text() == path.read_text()


def test_what_is_not_understood_is_listed(tmp_path: Path, cli: Cli) -> None:
    folder, port = tmp_path / "model", tmp_path / "frob"
    save_renamed("llama", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.frob_gate.weight"] = torch.zeros(3)
    tensors["model.layers.1.mlp.frob.weight"] = tensors.pop("model.layers.1.mlp.down_proj.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit(folder, residual_multiplier=0.22, frob_gates=[1, 2])
    made = cli("port", "new", "frob", "--from", str(folder), "--out", str(port), "--json")
    found = json.loads(made.out)
    assert made.code == 1
    assert found["check"]["tensors"]["problems"] == {
        "unexpected": ["model.layers.0.self_attn.frob_gate.weight", "model.layers.1.mlp.frob.weight"],
        "missing": ["model.layers.1.mlp.down_proj.weight"],
    }
    assert found["left_to_do"] == [
        "to write in model.py, FrobAttention: self_attn.frob_gate.weight",
        "to write in model.py, FrobDecoderLayer: mlp.frob.weight",
        "config.json has residual_multiplier 0.22, which nothing reads",
        "config.json has frob_gates [1, 2], which nothing reads",
    ]
    # A checkpoint with another value would be another model.
    edit(folder, residual_multiplier=0.5)
    outcome = cli("check", str(folder / "config.json"), "--port", str(port))
    assert outcome.code == 1
    assert "frob: residual_multiplier 0.5 is not supported; choices: 0.22" in outcome.out


@dataclass(frozen=True)
class Scaffold:
    """A published configuration, and what is left to write of its scaffold."""

    name: str
    unwritten: tuple[str, ...] = ()
    """Tensors of a layer's attention that nothing takes."""
    missing: tuple[str, ...] = ()
    """Tensors that the scaffold has and the checkpoint has not."""
    left: tuple[str, ...] = ()


LATENT = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
REAL = [
    Scaffold("granite-3.3-2b", left=("config.json has residual_multiplier 0.22, which nothing reads",)),
    Scaffold("qwen3-30b-a3b", left=("config.json has decoder_sparse_step 1, which nothing reads",)),
    Scaffold(
        "deepseek-v2-tiny-2layer",
        unwritten=tuple(f"self_attn.{name}.weight" for name in LATENT),
        missing=tuple(f"self_attn.{name}_proj.weight" for name in "qkv"),
        left=(
            "guessed: probably latent attention: MLAAttention of trunnion.layers.mla, as in deepseek_v2",
            "config.json has kv_lora_rank 512, which nothing reads",
        ),
    ),
]


@pytest.mark.parametrize("case", REAL, ids=["dense", "experts", "latent"])
def test_a_scaffold_of_a_real_configuration_says_what_is_left(case: Scaffold, tmp_path: Path, cli: Cli) -> None:
    """It imports and builds on meta, in full size; what it does not take is listed, and marked where it belongs."""
    folder, port = tmp_path / "published", tmp_path / "frob"
    full_size_headers(json.loads((PUBLISHED / f"{case.name}.json").read_text()), folder)
    edit(folder, architectures=["FrobForCausalLM"], model_type="frob")
    made = cli("port", "new", "frob", "--from", str(folder), "--out", str(port), "--json")
    found = json.loads(made.out)
    runs = not case.unwritten
    assert (made.code, found["check"]["runs"], found["check"]["way"]) == (0 if runs else 1, runs, "port")
    # As many layers as the configuration has, on the meta device.
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    assert [group["layers"] for group in found["check"]["groups"]] == [layers]
    expected = {
        kind: sorted(f"model.layers.{layer}.{name}" for layer in range(layers) for name in names)
        for kind, names in (("unexpected", case.unwritten), ("missing", case.missing))
        if names
    }
    problems = found["check"]["tensors"]["problems"]
    assert {kind: sorted(names) for kind, names in problems.items()} == expected
    assert set(case.left) <= set(found["left_to_do"])
    to_write = [line for line in found["left_to_do"] if line.startswith("to write")]
    assert to_write == [f"to write in model.py, FrobAttention: {', '.join(case.unwritten)}"] * (not runs)
    model = (port / "model.py").read_text()
    marks = re.findall(r"class (\w+)\(nn\.Module\):\n((?:    # .*\n)+)", model)
    assert [(name, " ".join(text.split()).replace("# ", "")) for name, text in marks] == [
        ("FrobAttention", f"To write: nothing takes {', '.join(case.unwritten)}")
    ] * (not runs)
    if not runs:
        text = cli("check", str(folder), "--port", str(port))
        assert text.code == 1 and "12 unexpected" in text.out


def test_the_next_commands_are_those_that_help(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "model"
    save_renamed("llama", folder)
    runs = cli("port", "new", "frob", "--from", str(folder), "--out", str(tmp_path / "runs")).out.splitlines()
    assert [line[16:].split()[1] for line in runs[-2:]] == ["compare", "generate"] and runs[-2].startswith("next ")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"model.layers.0.mlp.frob.weight": torch.zeros(3)}, folder / "model.safetensors", {"format": "pt"}
    )
    left = cli("port", "new", "frob", "--from", str(folder), "--out", str(tmp_path / "left")).out.splitlines()
    assert left[-4] == f"next            grep -n 'To write:' {tmp_path / 'left'}/model.py    what is marked"
    assert left[-3].split()[:2] == ["trunnion", "check"]
    assert "# To write: nothing takes mlp.frob.weight" in (tmp_path / "left" / "model.py").read_text()


@pytest.mark.skipif(not HAS_LIBRARY, reason="trunnion-host is not installed")
@pytest.mark.parametrize("tp", [1, 2])
def test_a_scaffold_is_served_by_every_rank(
    tp: int, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`generate --port`: greedy tokens are those of transformers, on one process and on two."""
    folder, port = tmp_path / "weights", tmp_path / "ports" / "frob"
    there = save_renamed("qwen3", folder, vocab_size=259)
    (model / "config.json").unlink()
    (model / "generation_config.json").unlink()
    for file in folder.glob("*.json"):
        file.rename(model / file.name)
    (folder / "model.safetensors").rename(model / "model.safetensors")
    prompt = "a few words"

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments), open_host=open_serving_host)
        return code, *capsys.readouterr()

    assert call("port", "new", "frob", "--from", str(model), "--out", str(port))[0] == 0
    options = ["--model", str(model), "--raw", "--max-tokens", "12", "--json", "--tp", str(tp), prompt]
    code, _, err = call("generate", *options)
    assert (code, err.count("\n")) == (2, 1) and "unknown architecture 'FrobForCausalLM'" in err
    code, out, err = call("generate", "--port", str(port), *options)
    assert code == 0, err
    token_ids = json.loads(out)["token_ids"]
    ids = load(model).encode(prompt).ids
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(there(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    assert token_ids == ids[-12:]


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("exaone4", "config.json has sliding_window_pattern 2, which nothing reads"),
        ("gemma2", "config.json has final_logit_softcapping 3.0, which nothing reads"),
        ("gemma3", "config.json has query_pre_attn_scalar 20, which nothing reads"),
        ("granite", "config.json has residual_multiplier 0.7, which nothing reads"),
        ("ministral3", "guessed: rope: llama_4_scaling_beta 0.5 is not read, and may change the result"),
        ("smollm3", "config.json has no_rope_layers [1, 0], which nothing reads"),
    ],
    ids=["exaone4", "gemma2", "gemma3", "granite", "ministral3", "smollm3"],
)
def test_what_would_come_out_wrong_is_said(family: str, said: str, tmp_path: Path, cli: Cli) -> None:
    """All tensors have a place, and the model is another one."""
    folder, port = tmp_path / "model", tmp_path / "frob"
    model = save_renamed(family, folder)
    made = json.loads(cli("port", "new", "frob", "--from", str(folder), "--out", str(port), "--json").out)
    assert made["check"]["refusals"] == []
    assert said in made["left_to_do"]
    expected = logits_there(model)
    assert (logits_here(folder, port) - expected).abs().max() > 0.1 * expected.abs().max()


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _known(folder: Path) -> None:
    edit(folder, architectures=["LlamaForCausalLM"])


def _no_layers(folder: Path) -> None:
    save_file({"a.weight": torch.zeros(3)}, folder / "model.safetensors", {"format": "pt"})


MISTAKES: Mapping[str, tuple[Callable[[Path], Any], list[str], str]] = {
    "no-folder": (lambda folder: None, ["frob", "--from", "/no/such/model"], "--from '/no/such/model' is no folder"),
    "no-name": (lambda folder: None, ["Frob-2"], "family 'Frob-2' is no name of a Python package"),
    "there": (lambda folder: None, ["frob", "--out", "MODEL"], "there is something already; name another folder"),
    "no-weights": (_no_weights, ["frob"], "no safetensors file"),
    "known": (_known, ["frob"], "architecture 'LlamaForCausalLM' has a port already: family llama"),
    "no-layers": (_no_layers, ["frob"], "no list of layers among 1 tensors (a.weight, ...)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(mistake: str, tmp_path: Path, cli: Cli) -> None:
    folder, port = tmp_path / "model", tmp_path / "frob"
    save_renamed("llama", folder)
    do, arguments, said = MISTAKES[mistake]
    do(folder)
    arguments = [word.replace("MODEL", str(folder)) for word in arguments]
    more = [] if "--from" in arguments else ["--from", str(folder)]
    more += [] if "--out" in arguments else ["--out", str(port)]
    outcome = cli("port", "new", *arguments, *more)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert said in outcome.err
    assert not port.exists()


def test_towers_beside_the_text_are_left_out() -> None:
    text = {"model.language_model.layers.0.mlp.up_proj.weight": (4, 4), "model.language_model.norm.weight": (4,)}
    tower = {f"model.vision_tower.encoder.layers.{index}.norm1.weight": (4,) for index in range(9)}
    found = read_structure({**text, **tower})
    assert found.layers_path == "model.layers" and found.num_layers == 1
    assert sorted(found.unknown) == sorted(tower)
