"""Around the attention call: writing a KV cache, reading it back, building index lists, merging results.

All of them are exact, run on the current stream, never wait for the device, and write only into the tensors they
return; those may be given (for CUDA graphs) or are made at their largest possible size. What index data says is never
an error: a slot outside the cache is skipped, an entry that has no slot becomes -1. include/pasa/ops.h has every rule.

Integer tensors are int32; positions and slots may be int64. An index list comes in one of the two forms that
`pasa.attend` takes: ragged (indices and indptr) or rectangular (rows filled up with -1, and lengths).
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import _native
from ._native import Status, Tensor, fail
from ._problem import format_code
from ._tensor import arrays_of

if TYPE_CHECKING:
    import numpy
    import torch

    Array = Union[numpy.ndarray, torch.Tensor]

__all__ = [
    "Lists",
    "cache_gather",
    "cache_write",
    "list_combine",
    "list_compressed",
    "list_dense",
    "list_topk",
    "list_window",
    "merge",
    "slots",
    "token_counts",
]

POWER_OF_TWO_SCALES = 1


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def _tensors(*names: str) -> list[tuple[str, Any]]:
    return [(name, Tensor) for name in names]


def _integers(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names]


_SIZE = ("struct_size", c_size_t)
Cache = _struct("Cache", ("format", c_int), *_tensors("kv", "kv_scales"), *_integers("block_size"))
Paging = _struct("Paging", *_tensors("block_table"), *_integers("block_size", "num_blocks", "base"), ("ring", c_int32))
ListsStruct = _struct("ListsStruct", *_tensors("indices", "indptr", "lengths"))
Queries = _struct("Queries", *_tensors("positions", "token_to_req", "is_valid"))
_CACHE, _PAGING, _LISTS, _QUERIES = ("cache", Cache), ("paging", Paging), ("lists", ListsStruct), ("queries", Queries)
_FLAGS = ("flags", c_uint32)

CacheWriteArgs = _struct("CacheWriteArgs", _SIZE, _CACHE, *_tensors("k", "slot_mapping"), _FLAGS)
CacheGatherArgs = _struct(
    "CacheGatherArgs",
    _SIZE,
    _CACHE,
    *_tensors("out", "slots", "seq_lens", "gather_lens", "block_table"),
    *_integers("offset"),
    _FLAGS,
)
SlotsArgs = _struct(
    "SlotsArgs", _SIZE, *_tensors("positions", "token_to_req"), _PAGING, *_integers("ratio"), *_tensors("slots")
)
TokenCountsArgs = _struct(
    "TokenCountsArgs",
    _SIZE,
    *_tensors("positions"),
    *_integers("window", "compress_ratio", "topk", "width"),
    *_tensors("n_window", "n_compressed"),
)
ListDenseArgs = _struct(
    "ListDenseArgs", _SIZE, *_tensors("indices", "lengths"), *_integers("num_rows"), ("has_num_rows", c_int32), _LISTS
)
ListTopkArgs = _struct("ListTopkArgs", _SIZE, *_tensors("topk_indices", "token_to_req", "is_valid"), _PAGING, _LISTS)
ListCombineArgs = _struct(
    "ListCombineArgs",
    _SIZE,
    *_tensors("topk_indices", "query_start_loc", "seq_lens", "gather_lens"),
    *_integers("window", "ratio", "topk", "rows_per_request", "compressed_rows"),
    _LISTS,
)
ListCompressedArgs = _struct("ListCompressedArgs", _SIZE, _QUERIES, _PAGING, *_integers("ratio", "width"), _LISTS)
ListWindowArgs = _struct("ListWindowArgs", _SIZE, _QUERIES, _PAGING, *_integers("window"), _LISTS)
MergeArgs = _struct("MergeArgs", _SIZE, *_tensors("out_a", "out_b", "lse_a", "lse_b", "attn_sink", "out", "lse"))


class Lists(NamedTuple):
    """Index lists as `pasa.attend` takes them: kv_indices, kv_indptr (ragged only), kv_lengths (rectangular)."""

    indices: Array  #: int32 [n] or [T, W]
    indptr: Array | None  #: int32 [T+1]; entries of indices beyond indptr[T] are unspecified
    lengths: Array | None  #: int32 [T]


@functools.lru_cache(maxsize=None)
def _field(struct: type[ctypes.Structure], path: str) -> int:
    """Offset of a field such as "paging.block_table"."""
    offset = 0
    for name in path.split("."):
        offset += getattr(struct, name).offset
        struct = dict(struct._fields_)[name]
    return offset


def _call(name: str, struct: type[ctypes.Structure], arrays, like: Array, tensors: dict, scalars: dict) -> None:
    """Fills a struct by paths and calls the library's pasa_<name> on the current stream of `like`."""
    packed = bytearray(ctypes.sizeof(struct))
    args = struct.from_buffer(packed)
    args.struct_size = len(packed)
    for path, value in scalars.items():
        if not -(2**63) <= value < 2**63:
            raise fail(Status.RANGE, f"{path} is {value}, expected 64 bits")
        *outer, last = path.split(".")
        setattr(functools.reduce(getattr, outer, args), last, value)
    words = memoryview(packed).cast("Q")
    for path, tensor in tensors.items():
        if tensor is not None:
            offset = _field(struct, path)
            arrays.describe(packed, offset, path.rpartition(".")[2], tensor)
            arrays.set_addresses(words, (offset >> 3,), (tensor,))
    function = getattr(_native.lib, f"pasa_{name}")
    function.argtypes = [c_void_p, c_void_p]
    _native.check(function(ctypes.addressof(args), arrays.stream(like)))


def _output(arrays, like: Array, name: str, given: Array | None, shape, dtype) -> Array:
    if given is None:
        return arrays.empty(like, shape, dtype)
    arrays.require_writable(name, given)
    return given


def _flags(arrays, tensor: Array | None) -> Array | None:
    """Booleans are bytes to the library."""
    if tensor is not None and str(getattr(tensor, "dtype", "")) in ("bool", "torch.bool"):
        return tensor.view(arrays.uint8)
    return tensor


def _rows(tensor: Array | None) -> int:
    return tensor.shape[0] if tensor is not None and len(tensor.shape) else 0


def _new_lists(arrays, like: Array, rows: int, longest: int, ragged: bool, given: Lists | None) -> Lists:
    if given is not None:
        for name, tensor in given._asdict().items():
            if tensor is not None:
                arrays.require_writable(f"lists.{name}", tensor)
        return given
    longest = max(longest, 0)
    indptr = arrays.empty(like, (rows + 1,), arrays.int32) if ragged else None
    lengths = arrays.empty(like, (rows,), arrays.int32)
    return Lists(arrays.empty(like, (rows * longest,) if ragged else (rows, longest), arrays.int32), indptr, lengths)


def _list_paths(lists: Lists) -> dict[str, Array | None]:
    return {"lists.indices": lists.indices, "lists.indptr": lists.indptr, "lists.lengths": lists.lengths}


def _paging(block_table, block_size: int, num_blocks: int | None, base: int, ring: bool) -> tuple[dict, dict]:
    scalars = {"paging.block_size": block_size, "paging.num_blocks": num_blocks or 0, "paging.base": base}
    return {"paging.block_table": block_table}, {**scalars, "paging.ring": int(ring)}


def cache_write(
    kv: Array,
    k: Array,
    slot_mapping: Array,
    *,
    kv_format: str,
    kv_scales: Array | None = None,
    block_size: int | None = None,
    power_of_two_scales: bool = False,
) -> None:
    """Quantises row i of k and writes it to slot slot_mapping[i] of a cache.

    Args:
        kv: the cache, as in `pasa.attend`; a paged byte format may be [blocks, page bytes] with block_size.
        k: bf16 (fp16 for an f16 cache) [n, D] or [n, 1, D].
        slot_mapping: int32 or int64 [m], m <= n; a slot outside the cache is skipped.
        kv_format, kv_scales: as in `pasa.attend`.
        power_of_two_scales: with fp8_v32, scales as FlashMLA writes them.
    """
    arrays = arrays_of(kv, "kv")
    arrays.require_writable("kv", kv)
    if kv_scales is not None:
        arrays.require_writable("kv_scales", kv_scales)
    tensors = {"cache.kv": kv, "cache.kv_scales": kv_scales, "k": k, "slot_mapping": slot_mapping}
    scalars = {"cache.format": format_code("kv_format", kv_format), "cache.block_size": block_size or 0}
    scalars["flags"] = POWER_OF_TWO_SCALES * bool(power_of_two_scales)
    _call("cache_write", CacheWriteArgs, arrays, kv, tensors, scalars)


def cache_gather(
    kv: Array,
    out: Array,
    *,
    kv_format: str,
    kv_scales: Array | None = None,
    block_size: int | None = None,
    slots: Array | None = None,
    seq_lens: Array | None = None,
    gather_lens: Array | None = None,
    block_table: Array | None = None,
    offset: int = 0,
    nan_to_zero: bool = False,
) -> Array:
    """Dequantises tokens into rows of out: those of a slot list, or the last ones of each sequence.

    Args:
        out: bf16 or fp16 [n, D] with slots; else [R, max_tokens, D]. Rows that receive nothing keep their contents.
        slots: int32 or int64 [n].
        seq_lens, gather_lens: int32 [R]: the last gather_lens[r] (default: all) of seq_lens[r] tokens.
        block_table: int32 [R, C].
        offset: first row of out[r] that is written.
    """
    arrays = arrays_of(kv, "kv")
    arrays.require_writable("out", out)
    tensors = {"cache.kv": kv, "cache.kv_scales": kv_scales, "out": out, "slots": slots, "seq_lens": seq_lens}
    tensors |= {"gather_lens": gather_lens, "block_table": block_table}
    scalars = {"cache.format": format_code("kv_format", kv_format), "cache.block_size": block_size or 0}
    scalars |= {"offset": offset, "flags": _native.NAN_TO_ZERO * bool(nan_to_zero)}
    _call("cache_gather", CacheGatherArgs, arrays, kv, tensors, scalars)
    return out


def slots(
    positions: Array,
    block_table: Array,
    block_size: int,
    *,
    token_to_req: Array | None = None,
    ratio: int = 1,
    num_blocks: int | None = None,
    base: int = 0,
    ring: bool = False,
    out: Array | None = None,
) -> Array:
    """Slots of positions [T] or [T, W] in the cache of each row's request.

    With ratio > 1: the slot to write the compressed entry that a token completes, -1 where it completes none.
    """
    arrays = arrays_of(positions, "positions")
    out = _output(arrays, positions, "out", out, positions.shape, arrays.int32)
    tensors, scalars = _paging(block_table, block_size, num_blocks, base, ring)
    tensors |= {"positions": positions, "token_to_req": token_to_req, "slots": out}
    _call("slots", SlotsArgs, arrays, positions, tensors, {**scalars, "ratio": ratio})
    return out


def token_counts(
    positions: Array,
    *,
    window: int,
    compress_ratio: int,
    topk: int = 0,
    width: int = 0,
    n_window: Array | None = None,
    n_compressed: Array | None = None,
) -> tuple[Array, Array]:
    """How many window tokens and compressed entries a query at each position attends to: int32 [T] each."""
    arrays = arrays_of(positions, "positions")
    rows = (_rows(positions),)
    n_window = _output(arrays, positions, "n_window", n_window, rows, arrays.int32)
    n_compressed = _output(arrays, positions, "n_compressed", n_compressed, rows, arrays.int32)
    tensors = {"positions": positions, "n_window": n_window, "n_compressed": n_compressed}
    scalars = {"window": window, "compress_ratio": compress_ratio, "topk": topk, "width": width}
    _call("token_counts", TokenCountsArgs, arrays, positions, tensors, scalars)
    return n_window, n_compressed


def list_dense(
    indices: Array, lengths: Array, *, num_rows: int | None = None, ragged: bool = True, lists: Lists | None = None
) -> Lists:
    """The first lengths[t] entries of each row of a dense [..., W] tensor; with num_rows, entries beyond become -1."""
    arrays = arrays_of(indices, "indices")
    width = indices.shape[-1] if len(indices.shape) else 0
    lists = _new_lists(arrays, indices, _rows(lengths), width, ragged, lists)
    tensors = {"indices": indices, "lengths": lengths, **_list_paths(lists)}
    scalars = {"num_rows": num_rows or 0, "has_num_rows": int(num_rows is not None)}
    _call("list_dense", ListDenseArgs, arrays, indices, tensors, scalars)
    return lists


def list_topk(
    topk_indices: Array,
    block_table: Array,
    block_size: int,
    *,
    token_to_req: Array | None = None,
    is_valid: Array | None = None,
    num_blocks: int | None = None,
    base: int = 0,
    ring: bool = False,
    ragged: bool = True,
    lists: Lists | None = None,
) -> Lists:
    """Slots of the cache entries [T, K] that an indexer picked; those without a slot are left out, order is kept."""
    arrays = arrays_of(topk_indices, "topk_indices")
    width = topk_indices.shape[-1] if len(topk_indices.shape) else 0
    lists = _new_lists(arrays, topk_indices, _rows(topk_indices), width, ragged, lists)
    tensors, scalars = _paging(block_table, block_size, num_blocks, base, ring)
    tensors |= {"topk_indices": topk_indices, "token_to_req": token_to_req, "is_valid": _flags(arrays, is_valid)}
    _call("list_topk", ListTopkArgs, arrays, topk_indices, {**tensors, **_list_paths(lists)}, scalars)
    return lists


def list_combine(
    topk_indices: Array | None,
    query_start_loc: Array,
    seq_lens: Array,
    gather_lens: Array,
    *,
    tokens: int,
    window: int,
    ratio: int,
    topk: int,
    rows_per_request: int,
    compressed_rows: int,
    ragged: bool = True,
    lists: Lists | None = None,
) -> Lists:
    """Top-k entries and window of each prefill query, as rows of the workspace that `cache_gather` filled.

    Args:
        topk_indices: int32 [T, W], or None with topk = 0.
        query_start_loc, seq_lens, gather_lens: int32 [R+1], [R], [R].
        tokens: T.
        rows_per_request, compressed_rows: M and N: request r has rows r * M on, the first N compressed entries.
    """
    arrays = arrays_of(seq_lens, "seq_lens")
    lists = _new_lists(arrays, seq_lens, tokens, topk + window, ragged, lists)
    tensors = {"topk_indices": topk_indices, "query_start_loc": query_start_loc, "seq_lens": seq_lens}
    tensors |= {"gather_lens": gather_lens, **_list_paths(lists)}
    scalars = {"window": window, "ratio": ratio, "topk": topk}
    scalars |= {"rows_per_request": rows_per_request, "compressed_rows": compressed_rows}
    _call("list_combine", ListCombineArgs, arrays, seq_lens, tensors, scalars)
    return lists


def list_compressed(
    positions: Array,
    *,
    ratio: int,
    width: int,
    block_table: Array | None = None,
    block_size: int = 0,
    token_to_req: Array | None = None,
    is_valid: Array | None = None,
    num_blocks: int | None = None,
    base: int = 0,
    ring: bool = False,
    ragged: bool = True,
    lists: Lists | None = None,
) -> Lists:
    """All compressed entries a query may see, at most width: slots, or their numbers without a block table."""
    arrays = arrays_of(positions, "positions")
    lists = _new_lists(arrays, positions, _rows(positions), width, ragged, lists)
    tensors, scalars = _paging(block_table, block_size, num_blocks, base, ring)
    tensors |= {"queries.positions": positions, "queries.token_to_req": token_to_req}
    tensors |= {"queries.is_valid": _flags(arrays, is_valid), **_list_paths(lists)}
    scalars |= {"ratio": ratio, "width": width}
    _call("list_compressed", ListCompressedArgs, arrays, positions, tensors, scalars)
    return lists


def list_window(
    positions: Array,
    block_table: Array,
    block_size: int,
    *,
    window: int,
    token_to_req: Array | None = None,
    is_valid: Array | None = None,
    num_blocks: int | None = None,
    base: int = 0,
    ring: bool = False,
    ragged: bool = True,
    lists: Lists | None = None,
) -> Lists:
    """Slots of the last min(position + 1, window) tokens up to each query's own, oldest first."""
    arrays = arrays_of(positions, "positions")
    lists = _new_lists(arrays, positions, _rows(positions), window, ragged, lists)
    tensors, scalars = _paging(block_table, block_size, num_blocks, base, ring)
    tensors |= {"queries.positions": positions, "queries.token_to_req": token_to_req}
    tensors |= {"queries.is_valid": _flags(arrays, is_valid), **_list_paths(lists)}
    _call("list_window", ListWindowArgs, arrays, positions, tensors, {**scalars, "window": window})
    return lists


def merge(
    out_a: Array,
    lse_a: Array,
    out_b: Array,
    lse_b: Array,
    *,
    attn_sink: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array]:
    """Merges two results over disjoint keys, each computed without a sink; out may be out_a or out_b itself.

    Args:
        out_a, out_b: bf16, fp16 or float32 [T, H, 512]; lse_a, lse_b: float32 [T, H], -inf or +inf without keys.
        attn_sink: float32 [H].

    Returns:
        out (of out_a's dtype unless given) and lse, which has no sink in it.
    """
    arrays = arrays_of(out_a, "out_a")
    out = _output(arrays, out_a, "out", out, out_a.shape, out_a.dtype)
    lse = _output(arrays, out_a, "lse", lse, out_a.shape[:2], arrays.float32)
    tensors = {"out_a": out_a, "out_b": out_b, "lse_a": lse_a, "lse_b": lse_b, "attn_sink": attn_sink}
    _call("merge", MergeArgs, arrays, out_a, {**tensors, "out": out, "lse": lse}, {})
    return out, lse
