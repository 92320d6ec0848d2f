"""`trunnion check` says of a checkpoint what creating an executor of it does, and reads nothing but headers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from tests.unit.gguf_toys import write_model
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from trunnion import registry
from trunnion.checkup.checkup import CheckOptions, check_checkpoint
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import TrunnionError, UnsupportedError
from trunnion.reference import ReferenceHardware
from trunnion.runner.model_executor import ModelExecutor

from .full_size import PUBLISHED, full_size_headers

logging.disable_progress_bar()

Cli = Callable[..., Any]
LIMITS = Limits(max_num_tokens=8, max_num_seqs=2, max_model_len=24, max_logits_rows=2)
SECONDS = 5.0
SAVED = [
    ("llama", False),
    ("llama", True),
    ("gemma3", False),
    ("deepseek_v2", False),
    ("qwen3_moe", False),
    ("olmo3", False),
    ("phi3", False),
    ("qwen3_next", False),
]
"""Families, and whether they are quantised: windows, latents, experts, stored in parts and fused, recurrent layers."""


def save_quick(family: str, folder: Path, **changes: Any) -> Path:
    """The quick card of `family`, saved by transformers with random weights."""
    cards = import_module(f"trunnion_models.{family}.card").CARDS
    card = next(card for card in cards if card.quick and not card.quantization)
    config = AutoConfig.for_model(**{**card.config, **changes})
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def quantise(folder: Path) -> None:
    """MLPs in FP8 with a scale per tensor, as AutoFP8 writes them."""
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    ignored = [f"model.layers.{layer}.self_attn" for layer in range(config["num_hidden_layers"])]
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ignored}
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("gate_proj.weight", "up_proj.weight", "down_proj.weight"))]:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = torch.ones(())
    save_file(tensors, path, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def options(**changes: Any) -> CheckOptions:
    sizes = {"max_model_len": LIMITS.max_model_len, "max_num_seqs": LIMITS.max_num_seqs}
    return CheckOptions(hardware=registry.hardware("cpu"), max_num_tokens=LIMITS.max_num_tokens, **sizes | changes)


def create(folder: Path) -> ModelExecutor:
    return ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS))


@pytest.mark.parametrize(("family", "quantised"), SAVED, ids=[f"{name}{'-fp8' * fp8}" for name, fp8 in SAVED])
def test_what_is_said_is_what_an_executor_has(family: str, quantised: bool, tmp_path: Path) -> None:
    folder = save_quick(family, tmp_path / family)
    if quantised:
        quantise(folder)
    begin = time.process_time()
    report = check_checkpoint(folder, options())
    assert time.process_time() - begin < SECONDS
    assert report.refusals == []
    executor = create(folder)
    profile, spec, loaded = executor.memory_profile(), executor.kv_cache_spec(), executor.weight_report
    assert report.model_class is not None and report.model_class.endswith(f".{type(executor.model).__name__}")
    assert report.memory is not None and report.tensors is not None and report.groups is not None
    memory = (report.memory.activations, report.memory.graphs, report.memory.workspaces)
    assert memory == (profile.activations, profile.graphs, profile.workspaces)
    assert report.weight_bytes == loaded.bytes_loaded
    assert report.tensors.used == loaded.num_used
    assert {reason: tuple(names) for reason, names in report.tensors.ignored.items()} == loaded.ignored
    num_blocks = [1 + LIMITS.max_num_seqs * group.max_blocks_per_seq for group in spec.groups]
    executor.allocate_kv_cache(num_blocks)
    assert executor._caches is not None
    held = sum(tensor.nbytes for layers in executor._caches for layer in layers for tensor in layer.values())
    assert report.memory.caches == held
    config = AutoConfig.from_pretrained(folder)
    assert sum(group.layers for group in report.groups) == config.get_text_config().num_hidden_layers
    schemes = {row.scheme for row in report.quantization or ()}
    assert schemes == (
        {"unquantised", "float8_e4m3fn, scales per tensor; activations in float8_e4m3fn, per token"}
        if quantised
        else set()
    )


def _drop_a_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))


def _add_a_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.layers.0.adapter.weight": torch.zeros(3)}))


def _lose_a_shard(folder: Path) -> None:
    names = list(load_file(folder / "model.safetensors"))
    places = dict.fromkeys(names[:3], "model-00002.safetensors") | dict.fromkeys(names[3:], "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _reshape_a_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(5)}))


def _rename(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["FrobForCausalLM"]}))


def _unread_quantisation(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    settings = {"quantization_config": {"quant_method": "frob4"}}
    (folder / "config.json").write_text(json.dumps(config | settings))


BROKEN: Mapping[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (_drop_a_tensor, r"1 missing: model\.layers\.1\.self_attn\.k_proj\.weight$"),
    "unexpected": (_add_a_tensor, r"1 unexpected: model\.layers\.0\.adapter\.weight$"),
    "shard": (_lose_a_shard, r"the index names model-00002\.safetensors, which is missing"),
    "shape": (_reshape_a_tensor, r"1 of a wrong shape: model\.norm\.weight \[5\]"),
    "architecture": (_rename, r"unknown architecture 'FrobForCausalLM' .*supported: .*LlamaForCausalLM"),
    "quantisation": (_unread_quantisation, r"quant_method 'frob4'"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_refused_is_what_creating_refuses_in_the_same_words(fault: str, tmp_path: Path, cli: Cli) -> None:
    folder = save_quick("llama", tmp_path / "llama")
    do, said = BROKEN[fault]
    do(folder)
    with pytest.raises(TrunnionError, match=said) as caught:
        create(folder)
    outcome = cli("check", str(folder), "--json", "--max-model-len", "24")
    report = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (1, "")
    assert report["runs"] is False and report["refusals"] == [str(caught.value)]
    assert report["way"] == ("refused" if fault == "architecture" else "port")
    # What is wrong with the weights does not hide what the configuration says.
    assert (report["memory"] is None) == (fault in ("architecture", "quantisation"))
    lines = cli("check", str(folder), "--max-model-len", "24").out.splitlines()
    assert lines[-1] == f"runs            no, refused: {caught.value}"


@pytest.mark.parametrize("family", ["llama-fp8", "gemma3", "deepseek_v2", "qwen3_moe", "phi3", "qwen3_next", "gpt_oss"])
def test_an_index_alone_is_accounted_for_by_names(family: str, tmp_path: Path, cli: Cli) -> None:
    """What a first look downloads: a configuration and an index."""
    folder = save_quick(family.removesuffix("-fp8"), tmp_path / family)
    if family.endswith("-fp8"):
        quantise(folder)
    names = list(load_file(folder / "model.safetensors"))
    whole = check_checkpoint(folder, options())
    assert whole.refusals == [] and whole.tensors is not None
    (folder / "model.safetensors").unlink()

    def look(tensors: list[str]) -> tuple[list[str], dict[str, Any]]:
        index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        report = json.loads(cli("check", str(folder), "--json", "--max-model-len", "24").out)
        return report["refusals"], report["tensors"]

    (missing_shard,), tensors = look(names)
    assert "the index names model-00001-of-00001.safetensors, which is missing" in missing_shard
    assert (tensors["used"], tensors["problems"]) == (whole.tensors.used, {})
    _, tensors = look([*names[1:], "model.layers.1.frob.weight"])
    # A stack of experts is missing in all its parts.
    assert tensors["problems"]["unexpected"] == ["model.layers.1.frob.weight"]
    assert tensors["problems"]["missing"]


FULL_SIZE = ["llama-3.2-1b", "gemma2-9b", "wizardlm-2-8x22b-mixtral", "qwen3-30b-a3b", "smollm3-3b", "olmo3.1-32b"]


@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_checkpoint_of_full_size_is_accounted_for_in_seconds(name: str, tmp_path: Path, cli: Cli) -> None:
    full_size_headers(json.loads((PUBLISHED / f"{name}.json").read_text()), tmp_path / name)
    begin = time.process_time()
    outcome = cli("check", str(tmp_path / name), "--json")
    assert time.process_time() - begin < SECONDS
    report = json.loads(outcome.out)
    assert (outcome.code, report["refusals"]) == (0, [])
    assert report["tensors"]["problems"] == {}


def test_an_adapted_checkpoint_of_full_size_is_accounted_for_in_seconds(tmp_path: Path, cli: Cli) -> None:
    """By transformers, on the meta device; experts are stored one by one, and stacked when they are loaded."""
    config = {**AutoConfig.for_model("olmoe").to_dict(), "architectures": ["OlmoeForCausalLM"]}
    full_size_headers(config, tmp_path / "olmoe")
    begin = time.process_time()
    outcome = cli("check", str(tmp_path / "olmoe"), "--json")
    assert time.process_time() - begin < SECONDS
    report = json.loads(outcome.out)
    assert (outcome.code, report["way"], report["refusals"]) == (0, "adapter", [])
    assert report["tensors"]["used"] > 100 and report["tensors"]["problems"] == {}
    assert "by a self-test" in report["notes"][-1]


def _drop(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))


@pytest.mark.parametrize(
    ("do", "kind", "name"),
    [
        (_drop, "missing", "model.layers.1.self_attn.k_proj.weight"),
        (_add_a_tensor, "unexpected", "model.layers.0.adapter.weight"),
    ],
    ids=["missing", "unexpected"],
)
def test_what_an_adapted_checkpoint_lacks_is_said_as_its_load_says_it(
    do: Callable[[Path], Any], kind: str, name: str, tmp_path: Path
) -> None:
    folder = save_adapted("stablelm", tmp_path)
    assert check_checkpoint(folder, options()).refusals == []
    do(folder)
    report = check_checkpoint(folder, options())
    assert report.tensors is not None and report.tensors.problems == {kind: [name]}
    with pytest.raises(TrunnionError) as caught:
        create(folder)
    assert report.refusals == [str(caught.value)]


def test_a_tensor_of_another_shape_keeps_an_adapted_checkpoint_from_running(tmp_path: Path) -> None:
    folder = save_adapted("stablelm", tmp_path)
    _reshape_a_tensor(folder)
    report = check_checkpoint(folder, options())
    assert report.refusals == [f"{folder}: 1 tensors of a wrong shape: model.norm.weight"]


def test_tensors_of_an_adapted_checkpoint_are_counted_as_its_load_counts_them(tmp_path: Path) -> None:
    folder = save_adapted("gpt2", tmp_path)
    change(folder, lambda tensors: tensors.update({"transformer.h.0.attn.bias": torch.zeros(1)}))
    report, executor = check_checkpoint(folder, options()), create(folder)
    assert report.tensors is not None and report.refusals == []
    assert report.tensors.used == executor.weight_report.num_used
    assert {reason: tuple(names) for reason, names in report.tensors.ignored.items()} == executor.weight_report.ignored
    assert report.tensors.ignored


def save_adapted(model_type: str, folder: Path) -> Path:
    """A tiny model of a family that has no port."""
    sizes = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = AutoConfig.for_model(model_type, **sizes, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def test_a_draft_that_goes_by_a_decoders_name_is_checked_as_a_draft(tmp_path: Path, cli: Cli) -> None:
    """The authors' own EAGLE-3 checkpoints are named LlamaForCausalLM."""
    published = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 131,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    }  # fmt: skip
    draft = tmp_path / "config.json"
    draft.write_text(json.dumps(published | {"draft_vocab_size": 61}))
    report = json.loads(cli("check", str(draft), "--json").out)
    assert (report["task"], report["family"]) == ("draft_model of its target", "eagle3")
    assert report["refusals"] == []
    with pytest.raises(UnsupportedError, match="this 'LlamaForCausalLM' is a draft with a checkpoint of its own"):
        registry.model_class(published | {"draft_vocab_size": 61})
    draft.write_text(json.dumps(published))
    assert json.loads(cli("check", str(draft), "--json").out)["family"] == "llama"


@pytest.mark.parametrize("there", [True, False])
def test_a_head_that_drafts_is_found_where_it_lies(there: bool, tmp_path: Path) -> None:
    folder = save_quick("glm4_moe", tmp_path / "glm", num_nextn_predict_layers=1)
    config = json.loads((folder / "config.json").read_text())
    count, size = config["num_hidden_layers"], config["hidden_size"]

    def add_head(tensors: dict[str, torch.Tensor]) -> None:
        """A layer behind the last one, as the published files have it."""
        last, head = f"model.layers.{count - 1}.", f"model.layers.{count}."
        layer = {name.replace(last, head): tensor.clone() for name, tensor in tensors.items() if name.startswith(last)}
        norms = {f"{head}{name}.weight": torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
        shared = {
            f"{head}embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
            f"{head}shared_head.head.weight": tensors["lm_head.weight"].clone(),
        }
        tensors.update(layer | norms | shared | {f"{head}eh_proj.weight": torch.ones(size, 2 * size)})

    if there:
        change(folder, add_head)
    report = check_checkpoint(folder, options())
    assert report.refusals == []
    assert report.drafts is not None
    (head,) = report.drafts
    assert (head.head, head.in_checkpoint) == ("Glm4MoeMTP", there)
    assert head.reason is None if there else head.reason is not None and " missing: " in head.reason


def test_a_configuration_alone_is_checked_as_far_as_it_goes(tmp_path: Path, cli: Cli) -> None:
    folder = save_quick("llama", tmp_path / "llama")
    whole = json.loads(cli("check", str(folder), "--json", "--max-model-len", "24").out)
    alone = json.loads(cli("check", str(folder / "config.json"), "--json", "--max-model-len", "24").out)
    assert alone["notes"] == ["there are no weights here: tensors are not accounted for"]
    assert alone["tensors"] is None and whole["tensors"] is not None
    same = ("runs", "parameters", "weight_bytes", "groups", "memory", "max_model_len", "dtype", "model_class")
    assert {key: alone[key] for key in same} == {key: whole[key] for key in same}


def test_a_template_and_end_tokens_are_told(model: Path, cli: Cli) -> None:
    report = json.loads(cli("check", str(model), "--json").out)
    assert (report["has_chat_template"], report["end_ids"]) == (True, [1, 2])
    (model / "tokenizer_config.json").write_text("{}")
    assert "\nchat template   none: trunnion generate --raw\n" in cli("check", str(model)).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/no/such/model"], "'/no/such/model' does not exist; give a folder"),
        (["MODEL", "--hardware", "tpu"], "unknown hardware 'tpu'; installed: "),
        (["MODEL", "--dtype", "int3"], "unknown --dtype 'int3'; choices: auto, bfloat16"),
        (["MODEL", "--weights", "raw"], "unknown --weights 'raw'; choices: auto, native"),
        (["MODEL", "--activations", "int4"], "unknown --activations 'int4'; choices: auto, int8"),
        (["MODEL", "--max-num-seqs", "0"], "--max-num-seqs must be from 1 to"),
        (["MODEL", "--port", "/no/such/port"], "port /no/such/port: no such folder"),
    ],
)
def test_a_mistake_in_an_option_is_one_line_and_exit_2(arguments: list[str], said: str, model: Path, cli: Cli) -> None:
    outcome = cli("check", *(str(model) if word == "MODEL" else word for word in arguments))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith(f"trunnion: {said}")


def test_choices_that_a_checkpoint_or_a_hardware_has_not_are_refused(tmp_path: Path, cli: Cli) -> None:
    folder = save_quick("llama", tmp_path / "llama")
    outcome = cli("check", str(folder), "--weights", "native")
    assert outcome.code == 1 and "no, refused: weights 'native' is for .gguf files, and " in outcome.out
    assert cli("check", str(folder), "--activations", "int8").code == 0
    for name, value in (("weights", "native"), ("activations", "int8")):
        report = check_checkpoint(folder, CheckOptions(hardware=ReferenceHardware(), **{name: value}))
        assert f"{name} '{value}' is not for hardware 'reference'; choices: auto" in report.refusals


def test_blocks_that_run_as_they_lie_are_told_with_their_memory(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "toy.gguf"
    write_model(path, "llama", Type.Q4_0, tied=True, others={"layers.0.mlp.up_proj": Type.Q5_0})
    dense = json.loads(cli("check", str(path), "--json").out)
    outcome = cli("check", str(path), "--weights", "native", "--json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["runs"], report["parameters"]) == (0, True, dense["parameters"])
    (said,) = report["notes"]
    assert said.startswith("13 of 15 matrices run in the blocks they are stored in; the rest (1 Q4_0, 1 Q5_0)")
    assert said.endswith("model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight")
    kept = [entry for entry in report["quantization"] if entry["scheme"].startswith("Q4_0, blocks of 32 as they lie")]
    assert {entry["layers"]: entry["count"] for entry in kept} == {
        "model.embed_tokens": 1,
        "model.layers.*.mlp.down_proj": 2,
        "model.layers.*.mlp.gate_up_proj": 1,
        "model.layers.*.self_attn.o_proj": 2,
        "model.layers.*.self_attn.qkv_proj": 2,
    }
    # 18 bytes for 32 values of 4 bytes, but for the layer that is dense.
    assert report["weight_bytes"] < dense["weight_bytes"] / 2
    refused = check_checkpoint(path, CheckOptions(hardware=ReferenceHardware(), weights="native"))
    assert refused.refusals == ["weights 'native' is not for hardware 'reference'; choices: auto"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_hardware_that_is_not_here_is_refused_and_asked_all_the_same(
    answers: bool, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a package that needs its device to answer, the reference stands in."""
    name = f"away{answers}".lower()
    package = tmp_path / f"trunnion_{name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hardware.py").write_text(
        "from trunnion.interfaces.hardware import EnvironmentProblem\n"
        "from trunnion.reference import ReferenceHardware\n"
        "class HARDWARE(ReferenceHardware):\n"
        f"    name, device_type = {name!r}, {'xpu' if answers else 'mps'!r}\n"
        "    def check_environment(self):\n"
        "        return [EnvironmentProblem(what='device', found='none', needed='one', fatal=True)]\n"
        "    def initialize(self, index):\n"
        "        raise AssertionError('there is no device')\n"
        "    def linear_method(self, scheme, prefix):\n"
        f"        return super().linear_method(scheme, prefix) if {answers} else self.soc\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = save_quick("llama", tmp_path / "llama")
    outcome = cli("check", str(folder), "--hardware", name, "--json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["refusals"]) == (1, [f"device: found none, {name} needs one"])
    assert report["memory"]["hardware"] == (name if answers else "reference")
    notes = [] if answers else [f"hardware '{name}' does not answer without its device: groups and memory are the"]
    assert [note.partition(" reference")[0] for note in report["notes"]] == notes


def test_a_length_beyond_the_positions_is_refused(tmp_path: Path, cli: Cli) -> None:
    folder = save_quick("llama", tmp_path / "llama")
    outcome = cli("check", str(folder), "--max-model-len", "65")
    assert outcome.code == 1
    assert "refused: max_model_len 65 is above the 64 tokens that the model's positions reach" in outcome.out
