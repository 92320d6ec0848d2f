"""`trunnion rerank`: how well documents answer a query, by a classifier that reads both together."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trunnion.cli.answers import catch_interrupt
from trunnion.cli.host import Finished
from trunnion.cli.messages import UsageProblem
from trunnion.cli.pooled import MAX_TOGETHER, check_length, exit_code, run_pooled
from trunnion.cli.sampling_options import blocks_needed
from trunnion.cli.session import ModelOptions, ModelPlan, OpenHost, print_figures
from trunnion.text.model_text import Task


def rerank(
    query: str, documents: Sequence[str], options: ModelOptions, *, as_json: bool, stats: bool, open_host: OpenHost
) -> int:
    """Print the documents with their scores, the best first; the exit code."""
    plan = ModelPlan(options, Task.SCORE)
    pairs = [plan.text.tokenizer.encode_pair(query, document) for document in documents]
    ids, types = [pair.ids for pair in pairs], [pair.type_ids for pair in pairs]
    for number, token_ids in enumerate(ids, start=1):
        check_length(token_ids, plan.max_model_len, f"the query with document {number}")
    num_seqs = min(len(ids), MAX_TOGETHER)
    lengths = [len(token_ids) for token_ids in ids]
    blocks = blocks_needed(lengths, options.max_num_seqs or num_seqs)
    scored: list[tuple[int, Finished]] = []
    with (
        plan.open_host(open_host, num_seqs=num_seqs, kv_blocks=blocks, num_tokens=max(lengths)) as host,
        catch_interrupt() as interrupt,
    ):
        ends = run_pooled(host, ids, interrupt, lambda index, end: scored.append((index, end)), types)
        print_figures(host, table=stats)
    for index, end in sorted(scored, key=lambda pair: -_score(pair[1])):
        print(_line(index, _score(end), documents[index], as_json=as_json))
    return exit_code(ends, interrupt)


def _score(end: Finished) -> float:
    assert end.embedding is not None, "only scores are sorted"
    if len(end.embedding) != 1:
        raise UsageProblem(f"the model gives {len(end.embedding)} scores; a reranker gives one")
    return float(end.embedding[0])


def _line(index: int, score: float, document: str, *, as_json: bool) -> str:
    if not as_json:
        return f"{score:.6g}\t{document}"
    return json.dumps({"index": index, "score": score, "document": document})
