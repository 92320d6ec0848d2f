"""`trunnion rerank` against a scripted host: what is asked, what is printed in which order, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

Cli = Callable[..., Any]


@pytest.fixture
def reranker(model: Path) -> Path:
    """The tiny model folder as a cross-encoder's: pairs are joined by two ends, as RoBERTa's are."""
    return _as_reranker(model, "<s> $A </s> </s> $B </s>")


def _as_reranker(model: Path, pair: str) -> Path:
    config = {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta"}
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 514, "pad_token_id": 1}))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.save(str(model / "tokenizer.json"))
    return model


def rerank(cli: Cli, model: Path, *arguments: str, **fake: Any) -> Any:
    return cli("rerank", "--model", str(model), *arguments, **{"width": 1, **fake})


def test_documents_are_joined_with_the_query_and_sorted(cli: Cli, reranker: Path) -> None:
    outcome = rerank(cli, reranker, "sky?", "a", "long document", "bb")
    assert outcome.code == 0
    # The scripted score is the number of tokens: of the query, the document, and four around them.
    assert outcome.out.splitlines() == ["21\tlong document", "10\tbb", "9\ta"]
    assert outcome.host.seen[0].prompt == "<s>sky?</s></s>a</s>"
    assert outcome.host.seen[0].types is None


def test_json_says_which_document(cli: Cli, reranker: Path) -> None:
    lines = rerank(cli, reranker, "--json", "q", "a", "bb").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"index": 1, "score": 7.0, "document": "bb"},
        {"index": 0, "score": 6.0, "document": "a"},
    ]


def test_positions_begin_behind_the_padding_token(cli: Cli, reranker: Path) -> None:
    assert rerank(cli, reranker, "q", "a" * 507).host.options.limits.max_model_len == 512
    outcome = rerank(cli, reranker, "q", "a" * 508)
    assert (outcome.code, outcome.host) == (2, None)
    assert "the query with document 1 has 513 tokens; --max-model-len is 512" in outcome.err


def test_types_of_a_pair_are_passed_on(cli: Cli, model: Path) -> None:
    outcome = rerank(cli, _as_reranker(model, "<s> $A </s> $B:1 </s>:1"), "sky?", "a", "bb")
    assert [request.types for request in outcome.host.seen] == [[0] * 6 + [1] * 2, [0] * 6 + [1] * 3]


def test_a_folder_whose_model_is_given_no_types_gives_none(cli: Cli, model: Path) -> None:
    folder = _as_reranker(model, "<s> $A </s> $B:1 </s>:1")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for names, given in ((["input_ids", "attention_mask"], None), (["input_ids", "token_type_ids"], [0, 0, 0, 1, 1])):
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_input_names": names}))
        assert rerank(cli, folder, "q", "a").host.seen[0].types == given


def test_types_that_the_model_does_not_take_are_one_line_and_exit_2(cli: Cli, model: Path) -> None:
    refusal = "token_type_ids are given, and this model does not take token types"
    outcome = rerank(cli, _as_reranker(model, "<s> $A </s> $B:1 </s>:1"), "q", "a", refusal=refusal)
    assert (outcome.code, outcome.out) == (2, "")
    assert refusal in outcome.err


def test_a_classifier_of_several_labels_is_no_reranker(cli: Cli, reranker: Path) -> None:
    outcome = rerank(cli, reranker, "q", "a", width=3)
    assert outcome.code == 2
    assert "the model gives 3 scores; a reranker gives one" in outcome.err


@pytest.mark.parametrize("command", [["generate", "a"], ["chat"], ["embed", "a"]], ids=["generate", "chat", "embed"])
def test_a_classifier_does_nothing_else(cli: Cli, reranker: Path, command: list[str]) -> None:
    outcome = cli(command[0], "--model", str(reranker), *command[1:])
    assert (outcome.code, outcome.out) == (2, "")
    assert "is a classifier (its architecture): use trunnion rerank" in outcome.err


def test_a_language_model_does_not_rerank(cli: Cli, model: Path) -> None:
    outcome = rerank(cli, model, "q", "a")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is a language model" in outcome.err
