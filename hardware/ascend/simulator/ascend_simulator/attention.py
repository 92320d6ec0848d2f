"""What the fused attention computes, and what its documents refuse: prefill and decode in one.

Follows the documents of CANN's aclnnFusedInferAttentionScoreV3 and of torch_npu's operator over it; what a document
refuses is refused when the workspace is asked for, as CANN does, with the sentence's limit in the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

WORKSPACE_BYTES = 16 << 10
"""Not nothing, so that a caller who brings none is found."""
LAYOUTS = {
    "BSH": ("BSH", "BSH"),
    "BSND": ("BSND", "BSND"),
    "BNSD": ("BNSD", "BNSD"),
    "BNSD_BSND": ("BNSD", "BSND"),
    "TND": ("TND", "TND"),
    "TND_NTD": ("TND", "NTD"),
    "NTD_TND": ("NTD", "TND"),
}
"""Name -> layouts of the query and of the output, of those that are modelled."""
RAGGED = ("TND", "NTD")
ALL_MASK, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = 1, 2, 3, 4
COMPRESSED_MASK = 2048
MAX_GROUP = 64
LATENT_SIZE = 512
MAX_LATENT_ROWS = 16


@dataclass(frozen=True)
class Call:
    """The arguments of one call, as far as they are modelled."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    query_lengths: Sequence[int] | None
    kv_lengths: Sequence[int] | None
    block_table: torch.Tensor | None
    query_rope: torch.Tensor | None
    key_rope: torch.Tensor | None
    num_heads: int
    num_kv_heads: int
    scale: float
    pre_tokens: int
    next_tokens: int
    layout: str
    sparse_mode: int
    block_size: int
    wants_lse: bool
    out: torch.Tensor
    lse: torch.Tensor
    sinks: torch.Tensor | None = None

    @property
    def query_layout(self) -> str:
        return LAYOUTS[self.layout][0]

    @property
    def is_ragged(self) -> bool:
        return self.query_layout in RAGGED

    @property
    def batch(self) -> int:
        return len(self.query_lengths or ()) if self.is_ragged else self.query.shape[0]

    def query_spans(self) -> list[tuple[int, int]]:
        """First row and end of each request's queries; lengths of ragged layouts are sums."""
        if self.is_ragged:
            ends = list(self.query_lengths or ())
            return list(zip([0, *ends[:-1]], ends, strict=True))
        rows = self.query.shape[2] if self.query_layout == "BNSD" else self.query.shape[1]
        # In a decode, "actual_seq_lengths is not valid": every request has its one row.
        lengths = _each(self.query_lengths, self.batch) if rows > 1 and self.query_lengths else [rows] * self.batch
        return [(0, length) for length in lengths]

    def kv_spans(self) -> list[tuple[int, int]]:
        """First and end of each request's keys: sums only where keys lie one request after the other."""
        if self.is_ragged and self.block_table is None:
            ends = list(self.kv_lengths or ())
            return list(zip([0, *ends[:-1]], ends, strict=True))
        if self.kv_lengths is None:
            rows = self.key.shape[2] if self.query_layout == "BNSD" else self.key.shape[1]
            return [(0, rows)] * self.batch
        return [(0, length) for length in _each(self.kv_lengths, self.batch)]


def _each(lengths: Sequence[int], batch: int) -> list[int]:
    """A single length is that of every request; of too many the first count."""
    return [lengths[0]] * batch if len(lengths) == 1 else list(lengths[:batch])


def check(call: Call) -> None:
    """What the documents refuse.

    Raises:
        ValueError: with the argument, and the limit that it is outside of.
    """
    if call.layout not in LAYOUTS:
        raise ValueError(f"input_layout {call.layout!r} is not modelled; modelled are {', '.join(LAYOUTS)}")
    if call.num_heads % call.num_kv_heads or call.num_heads // call.num_kv_heads > MAX_GROUP:
        raise ValueError(
            f"num_heads {call.num_heads} must be a multiple of num_key_value_heads {call.num_kv_heads}, "
            f"{MAX_GROUP} times it at most"
        )
    if (call.query_rope is None) != (call.key_rope is None):
        raise ValueError("query_rope and key_rope are given both or neither")
    if call.sinks is not None and not call.is_ragged:
        raise ValueError(f"learnable_sink is for ragged layouts, not {call.layout}")
    if call.is_ragged:
        _check_ragged(call)
    elif call.kv_lengths is not None and 1 < len(call.kv_lengths) < call.batch:
        raise ValueError(f"actual_seq_lengths_kv has {len(call.kv_lengths)} lengths for {call.batch} requests")
    if call.block_table is not None:
        _check_paged(call)
    _check_mask(call)


def _check_ragged(call: Call) -> None:
    if call.query_lengths is None or call.kv_lengths is None:
        raise ValueError(f"layout {call.layout} needs actual_seq_lengths and actual_seq_lengths_kv")
    tokens = call.query.shape[0 if call.query_layout == "TND" else 1]
    ends = list(call.query_lengths)
    if ends != sorted(ends) or not ends or ends[-1] != tokens:
        raise ValueError(f"actual_seq_lengths of layout {call.layout} are sums up to {tokens} tokens, not {ends}")
    if len(call.kv_lengths) != len(ends):
        raise ValueError(f"actual_seq_lengths_kv has {len(call.kv_lengths)} lengths for {len(ends)} requests")
    if call.block_table is None and list(call.kv_lengths) != sorted(call.kv_lengths):
        raise ValueError(f"actual_seq_lengths_kv of layout {call.layout} without pages are sums: {call.kv_lengths}")
    for name, part in (("query", call.query), ("key", call.key), ("value", call.value), ("out", call.out)):
        if not part.is_contiguous():
            raise ValueError(f"{name} of layout {call.layout} has strides {part.stride()}, and must be contiguous")
    if call.query.shape[-1] == LATENT_SIZE:
        _check_latent(call)
    else:
        _check_head_sizes(call)
    if call.sinks is not None:
        _check_sinks(call)


def _check_head_sizes(call: Call) -> None:
    """As CheckInputShapeWhenLayoutIsTND of prompt_flash_attention_tiling.cpp, which ragged calls are sent to."""
    kv_heads = 1 if call.block_table is None else call.num_kv_heads
    query, key, value = (part.shape[-1] for part in (call.query, call.key, call.value))
    if call.block_table is not None and call.key.dim() == 3:
        key, value = key // kv_heads, value // kv_heads
    is_same = query == key == value and value in (64, 128)
    if not is_same and (query, key, value) not in ((192, 192, 128), (192, 192, 192)):
        raise ValueError(f"sizes of heads in layout {call.layout} are 64, 128 or 192, not {query}, {key} and {value}")
    if call.query.dtype != torch.bfloat16:
        raise ValueError(f"layout {call.layout} is for bfloat16, not {call.query.dtype}")
    if call.block_table is not None:
        if call.sparse_mode not in (0, RIGHT_DOWN_CAUSAL, BAND) or (call.sparse_mode == 0 and call.mask is not None):
            raise ValueError(f"layout {call.layout} with pages takes sparse_mode 0 without a mask, 3 or 4")
        if not any(call.kv_lengths or ()):
            raise ValueError("no request has a key: there is no block to read")


def _check_latent(call: Call) -> None:
    """As fused_infer_attention_score_tiling_check_feature.cpp, which calls with heads of 512 are sent to."""
    longest = max(end - first for first, end in call.query_spans())
    if longest > MAX_LATENT_ROWS:
        raise ValueError(f"a request has {longest} queries; of latents there are up to {MAX_LATENT_ROWS}")
    if call.query_rope is None or call.query_rope.shape[-1] != 64 or call.block_table is None:
        raise ValueError("heads of 512 are latents in pages, with 64 rotated numbers beside them")
    if call.num_kv_heads != 1 or call.num_heads not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(
            f"latents have 1 KV head and 1, 2, 4 ... 128 others, not {call.num_kv_heads}, {call.num_heads}"
        )
    if call.block_size not in (16, 128):
        raise ValueError(f"latents lie in blocks of 16 or 128 tokens, not of {call.block_size}")


def _check_sinks(call: Call) -> None:
    assert call.sinks is not None, "called for sinks"
    size = call.out.shape[-1]
    if size not in (64, 128) or call.sinks.dtype != torch.bfloat16 or tuple(call.sinks.shape) != (call.num_heads,):
        raise ValueError(
            f"learnable_sink is bfloat16 [{call.num_heads}] for heads of 64 or 128, not {call.sinks.dtype} "
            f"{list(call.sinks.shape)} for heads of {size}"
        )


def _check_paged(call: Call) -> None:
    assert call.block_table is not None, "called for paged caches"
    if call.kv_lengths is None:
        raise ValueError("a block_table needs actual_seq_lengths_kv")
    if call.block_table.dim() != 2 or call.block_table.shape[0] != call.batch:
        raise ValueError(f"block_table must be [{call.batch}, blocks], not {list(call.block_table.shape)}")
    is_decode = all(end - first == 1 for first, end in call.query_spans())
    unit, least = (16, 16) if is_decode or call.is_ragged else (128, 128)
    most = 1024 if call.is_ragged else 512
    if call.block_size % unit or not least <= call.block_size <= most:
        raise ValueError(f"block_size {call.block_size} must be a multiple of {unit} within [{least}, {most}]")
    blocks = max((-(-(end - first) // call.block_size) for first, end in call.kv_spans()), default=0)
    if call.block_table.shape[1] < blocks:
        raise ValueError(f"block_table has {call.block_table.shape[1]} blocks a request; the longest needs {blocks}")
    if call.key.dim() == 4 and call.query_layout in ("BSH", "BSND"):
        raise ValueError(f"layout {call.layout} takes a cache [blocks, block_size, H], not {list(call.key.shape)}")
    if call.key.dim() not in (3, 4):
        raise ValueError(f"a cache of {call.key.dim()} dimensions is not modelled, only of 3 or 4")


def _check_mask(call: Call) -> None:
    if call.sparse_mode not in range(5):
        raise ValueError(f"sparse_mode {call.sparse_mode} is none of 0 to 4")
    if call.sparse_mode == ALL_MASK and call.mask is None:
        raise ValueError("sparse_mode 1 needs an atten_mask")
    is_decode = not call.is_ragged and call.query_spans()[:1] == [(0, 1)] and call.query_rope is None
    if call.sparse_mode >= LEFT_UP_CAUSAL and not is_decode:
        wanted = (COMPRESSED_MASK, COMPRESSED_MASK)
        if call.mask is None or tuple(call.mask.shape[-2:]) != wanted:
            found = None if call.mask is None else list(call.mask.shape)
            raise ValueError(f"sparse_mode {call.sparse_mode} needs an atten_mask of {list(wanted)}, not {found}")
    if call.mask is not None and call.mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        raise ValueError(f"atten_mask is bool, int8 or uint8, not {call.mask.dtype}")


def attend(call: Call) -> None:
    """Write the attention of every request, and the logarithms of its sums of exponentials."""
    lse_rows: list[torch.Tensor] = []
    for place, (query, out) in enumerate(_rows(call)):
        if query.shape[1] == 0:
            lse_rows.append(query.new_zeros(query.shape[:2], dtype=torch.float32))
            continue
        key, value = _keys(call, place)
        hidden = _hidden(call, place, query.shape[1], key.shape[1])
        group = call.num_heads // call.num_kv_heads
        scores = torch.einsum("nsd,ntd->nst", query.float(), key.float().repeat_interleave(group, 0)) * call.scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        lse = torch.logsumexp(scores, -1)
        if call.sinks is not None:
            lse = torch.logaddexp(lse, call.sinks.float()[:, None])
        weights = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
        out.copy_(torch.einsum("nst,ntd->nsd", weights, value.float().repeat_interleave(group, 0)))
        lse_rows.append(lse)
    if call.wants_lse and lse_rows:
        call.lse.copy_((torch.cat(lse_rows, 1).transpose(0, 1) if call.is_ragged else torch.stack(lse_rows))[..., None])


def _rows(call: Call) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Queries [N, S, D] and where their outputs [N, S, Dv] go, of each request."""
    out_layout = LAYOUTS[call.layout][1]
    for place, (first, end) in enumerate(call.query_spans()):
        query = _request(call.query, call.query_layout, call.num_heads, place, first, end)
        if call.query_rope is not None:
            rope = _request(call.query_rope, call.query_layout, call.num_heads, place, first, end)
            query = torch.cat((query, rope), -1)
        out = _request(call.out, out_layout, call.num_heads, place, first, end)
        # What lies beyond a request's length is nobody's: it is written with zeros.
        if not call.is_ragged:
            _request(call.out, out_layout, call.num_heads, place, end, None).zero_()
        yield query, out


def _request(tensor: torch.Tensor, layout: str, heads: int, place: int, first: int, end: int | None) -> torch.Tensor:
    """The view [N, S, D] of one request's rows."""
    rows = slice(first, end)
    if layout == "TND":
        return tensor[rows].transpose(0, 1)
    if layout == "NTD":
        return tensor[:, rows]
    if layout == "BNSD":
        return tensor[place, :, rows]
    split = tensor[place].unflatten(-1, (heads, -1)) if layout == "BSH" else tensor[place]
    return split[rows].transpose(0, 1)


def _keys(call: Call, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [KV_N, T, D] of one request."""
    first, end = call.kv_spans()[place]
    parts = [call.key, call.value] if call.key_rope is None else [call.key, call.value, call.key_rope]
    if call.block_table is None:
        key, value, *rope = (_request(part, call.query_layout, call.num_kv_heads, place, first, end) for part in parts)
    else:
        key, value, *rope = (_gathered(call, part, place, end) for part in parts)
    return torch.cat((key, *rope), -1) if rope else key, value


def _gathered(call: Call, cache: torch.Tensor, place: int, length: int) -> torch.Tensor:
    """The first `length` tokens of a paged cache [blocks, block_size, H] or [blocks, KV_N, block_size, D]."""
    assert call.block_table is not None, "called for paged caches"
    blocks = call.block_table[place, : -(-length // call.block_size)].long()
    if length and not bool(((blocks >= 0) & (blocks < cache.shape[0])).all()):
        raise IndexError(f"block_table of request {place} names blocks {blocks.tolist()} of {cache.shape[0]}")
    pages = cache[blocks]
    pages = pages.unflatten(-1, (call.num_kv_heads, -1)) if cache.dim() == 3 else pages.transpose(1, 2)
    return pages.flatten(0, 1)[:length].transpose(0, 1)


def _hidden(call: Call, place: int, rows: int, keys: int) -> torch.Tensor | None:
    """[S, T], True where a query does not see a key; None where it sees all."""
    is_decode = not call.is_ragged and rows == 1 and call.query_rope is None
    if is_decode and call.sparse_mode >= LEFT_UP_CAUSAL:
        return None
    row, key = torch.arange(rows)[:, None], torch.arange(keys)[None]
    if call.sparse_mode >= LEFT_UP_CAUSAL:
        _check_compressed(call.mask)
    if call.sparse_mode == LEFT_UP_CAUSAL:
        return key > row
    shift = keys - rows
    if call.sparse_mode == RIGHT_DOWN_CAUSAL:
        return key > row + shift
    if call.sparse_mode == BAND:
        return (key < row + shift - call.pre_tokens) | (key > row + shift + call.next_tokens)
    if call.mask is None:
        return None
    mask = call.mask.bool()
    if mask.dim() == 2:
        own = mask[place : place + 1] if rows == 1 and mask.shape[0] == call.batch else mask
    else:
        own = mask[place if mask.shape[0] > 1 else 0].reshape(mask.shape[-2:])
    hidden = own[:rows, :keys]
    if call.sparse_mode == ALL_MASK or is_decode:
        return hidden
    return hidden | (key < row - call.pre_tokens) | (key > row + call.next_tokens)


def _check_compressed(mask: torch.Tensor | None) -> None:
    """Causal modes read a mask of 2048 x 2048 that hides what lies above the diagonal; its corners are looked at."""
    assert mask is not None, "checked when the workspace was asked for"
    corner = mask.reshape(mask.shape[-2:])[:64, :64].bool()
    if not torch.equal(corner, torch.ones_like(corner).triu(1)) or bool(mask.reshape(mask.shape[-2:])[-1].any()):
        raise ValueError("atten_mask of this sparse_mode must hide what lies above its diagonal, and nothing else")


def workspace(call: Call) -> int:
    """Check, and say how many bytes of workspace the call needs."""
    check(call)
    return WORKSPACE_BYTES
