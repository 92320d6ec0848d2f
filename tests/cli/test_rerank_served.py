"""`trunnion rerank` of a BERT cross-encoder, served: scores are transformers' on pairs that its tokenizer joins."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from trunnion.cli.main import run
from trunnion.cli.serving import open_serving_host

HAS_LIBRARY = find_spec("trunnion_host") is not None and find_spec("trunnion_host._host") is not None
pytestmark = pytest.mark.skipif(not HAS_LIBRARY, reason="trunnion-host is not installed")

QUERY = "Why is the sky blue?"
DOCUMENTS = (
    "Light of short wavelengths is scattered more than light of long ones.",
    "The sky is blue, why?",
    "Paint.",
    "A pivot lets one gun sit on many carriages, and turns it.",
)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("why", "the", "sky", "blue", "light", "short", "wave", "##lengths", "##ed", "pivot", "carriage", "##tered")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as published cross-encoders are: BERT's tokenizer, two types of tokens, one label."""
    folder = tmp_path_factory.mktemp("reranker")
    letters = sorted(set("".join([QUERY, *DOCUMENTS]).lower()) - {" "})
    vocabulary = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        id2label={0: "score"},
        label2id={"score": 0},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@torch.inference_mode()
def _scores_of_transformers(folder: Path, *, typed: bool) -> list[float]:
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    scores = []
    for document in DOCUMENTS:
        inputs = tokenizer(QUERY, document, return_tensors="pt")
        assert inputs["token_type_ids"].any()
        if not typed:
            inputs["token_type_ids"].zero_()
        scores.append(float(model(**inputs).logits[0, 0]))
    return scores


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_scores_are_those_of_transformers(reranker: Path, ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected, untyped = (_scores_of_transformers(reranker, typed=typed) for typed in (True, False))
    assert min(abs(one - other) for one, other in zip(expected, untyped, strict=True)) > 0.01, "types matter"
    arguments = ["--model", str(reranker), "--hardware", "cpu", "--dtype", "float32", "--tp", ranks, "--json"]
    code = run(["rerank", *arguments, QUERY, *DOCUMENTS], open_host=open_serving_host)
    out, err = capsys.readouterr()
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["score"] for line in lines] == sorted((line["score"] for line in lines), reverse=True)
    found = {line["index"]: line["score"] for line in lines}
    assert [found[index] for index in range(len(DOCUMENTS))] == pytest.approx(expected, abs=1e-4)
