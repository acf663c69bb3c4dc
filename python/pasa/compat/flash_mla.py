"""FlashMLA's sparse calls. Heads, list widths and page counts may be any; dense attention is not offered.

A batch of s_q tokens becomes that many rows of the one operator. Results follow FlashMLA: natural-log lse without the
sink, +inf for a row without keys, [batch, heads, s_q] in decode.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from .. import attend
from .._native import Error, Status, fail
from ._names import renamed

__all__ = ["FlashMLASchedMeta", "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata"]

_INF, _NAN = float("inf"), float("nan")
_FORMATS = {512: "fp8_ds_mla", 576: "fp8_v32"}
_DECODE_NAMES = {
    "kv": "k_cache",
    "kv_indices": "indices",
    "kv_lengths": "topk_length",
    "extra_kv": "extra_k_cache",
    "extra_indices": "extra_indices_in_kvcache",
    "extra_lengths": "extra_topk_length",
}
_PREFILL_NAMES = {"kv_indices": "indices", "kv_lengths": "topk_length", "softmax_scale": "sm_scale"}


@dataclasses.dataclass
class FlashMLASchedMeta:
    """Remembers the shapes of its first call, to refuse other ones. Lengths may change; there is no state besides."""

    config: Optional[tuple] = None


def get_mla_metadata(*args, **kwargs) -> tuple[FlashMLASchedMeta, None]:
    """A new object to share between calls of equal shapes; all arguments are ignored."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: Optional[torch.Tensor],
    cache_seqlens: Optional[torch.Tensor],
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Optional[torch.Tensor] = None,
    attn_sink: Optional[torch.Tensor] = None,
    extra_k_cache: Optional[torch.Tensor] = None,
    extra_indices_in_kvcache: Optional[torch.Tensor] = None,
    topk_length: Optional[torch.Tensor] = None,
    extra_topk_length: Optional[torch.Tensor] = None,
    *,
    out: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse decode.

    Args:
        q: bf16 [b, s_q, h_q, d], d = 512 or 576.
        k_cache: [blocks, page, 1, 584] (d = 512) or [blocks, page, 1, 656] (d = 576) bytes; or, with is_fp8_kvcache
            False, bf16 [blocks, page, 1, 512].
        block_table, cache_seqlens, num_splits: None. causal: False. head_dim_v: 512.
        tile_scheduler_metadata: from get_mla_metadata().
        indices: int32 [b, s_q, topk], physical: page * page_size + offset.
        attn_sink: float32 [h_q].
        extra_k_cache, extra_indices_in_kvcache: a second cache with its own page size and lists.
        topk_length, extra_topk_length: int32 [b], shared by the s_q rows of a sequence.
        out: where to write [b, s_q, h_q, 512]; a pasa extension.

    Returns:
        out, and lse float32 [b, h_q, s_q].

    Raises:
        pasa.Error: names the argument in these names.
    """
    for name, value in (("block_table", block_table), ("cache_seqlens", cache_seqlens), ("num_splits", num_splits)):
        if value is not None:
            raise fail(Status.COMBINATION, f"{name} is given, expected None with sparse attention")
    if indices is None:
        raise fail(Status.UNSUPPORTED, "indices is None, expected a tensor: dense attention is not offered")
    if causal:
        raise fail(Status.COMBINATION, "causal is True, expected False with sparse attention")
    _require_value_dim("head_dim_v", head_dim_v)
    _require(q, "q", 4, torch.bfloat16)
    _require(k_cache, "k_cache", 4)
    _require(indices, "indices", 3)
    _require(extra_k_cache, "extra_k_cache", 4)
    _require(extra_indices_in_kvcache, "extra_indices_in_kvcache", 3)
    batch, s_q, heads, dim = q.shape
    if dim not in _FORMATS:
        raise fail(Status.SHAPE, f"q has {dim} dimensions a head, expected 512 or 576")
    if not is_fp8_kvcache and (k_cache.dtype != torch.bfloat16 or dim != 512):
        text = f"is_fp8_kvcache is False with a {k_cache.dtype} cache of {dim} dimensions, expected True"
        raise fail(Status.COMBINATION, text)
    config = (*q.shape, k_cache.shape[1], indices.shape[2], is_fp8_kvcache)
    if extra_k_cache is not None and extra_indices_in_kvcache is not None:
        config += (extra_k_cache.shape[1], extra_indices_in_kvcache.shape[2])
    _check_metadata(tile_scheduler_metadata, config)

    rows = batch * s_q
    rows_of_out = None if out is None else _rows_view(out, (batch, s_q, heads, 512))
    try:
        result, lse = attend(
            q.reshape(rows, heads, dim),
            k_cache,
            _flat_lists(indices, "indices", batch, s_q),
            kv_format=_FORMATS[dim] if is_fp8_kvcache else "packed_bf16",
            kv_lengths=_flat_lengths(topk_length, "topk_length", batch, s_q),
            attn_sink=attn_sink,
            extra_kv=extra_k_cache,
            extra_indices=_flat_lists(extra_indices_in_kvcache, "extra_indices_in_kvcache", batch, s_q),
            extra_lengths=_flat_lengths(extra_topk_length, "extra_topk_length", batch, s_q),
            softmax_scale=softmax_scale,
            out=rows_of_out,
            return_lse=True,
        )
    except Error as error:
        raise renamed(error, _DECODE_NAMES) from None
    if out is None:
        out = result.view(batch, s_q, heads, 512)
    elif rows_of_out is None:
        out.copy_(result.view(batch, s_q, heads, 512))
    return out, _plus_infinity(lse).view(batch, s_q, heads).transpose(1, 2)


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: Optional[torch.Tensor] = None,
    topk_length: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sparse prefill.

    Args:
        q: bf16 [s_q, h_q, d], d = 512 or 576.
        kv: bf16 [s_kv, 1, d].
        indices: int32 [s_q, 1, topk]; entries outside [0, s_kv) are skipped.
        sm_scale: of the scores. d_v: 512.
        attn_sink: float32 [h_q].
        topk_length: int32 [s_q].

    Returns:
        out [s_q, h_q, 512], max_logits and lse float32 [s_q, h_q].
    """
    _require_value_dim("d_v", d_v)
    _require(q, "q", 3, torch.bfloat16)
    _require(kv, "kv", 3, torch.bfloat16)
    _require(indices, "indices", 3)
    if indices.shape[1] != 1:
        raise fail(Status.SHAPE, f"indices is {list(indices.shape)}, expected one KV head: [s_q, 1, topk]")
    max_logits = q.new_empty(q.shape[:2], dtype=torch.float32)
    try:
        out, lse, max_logits = attend(
            q,
            kv,
            indices[:, 0],
            kv_format="bf16",
            kv_lengths=topk_length,
            attn_sink=attn_sink,
            softmax_scale=sm_scale,
            max_logits=max_logits,
            return_lse=True,
        )
    except Error as error:
        raise renamed(error, _PREFILL_NAMES) from None
    return out, max_logits, _plus_infinity(lse)


def _require(tensor, name: str, rank: int, dtype: Optional[torch.dtype] = None) -> None:
    if tensor is None:
        return
    if not isinstance(tensor, torch.Tensor):
        raise fail(Status.DTYPE, f"{name} is {type(tensor).__name__}, expected a torch tensor")
    if dtype is not None and tensor.dtype != dtype:
        raise fail(Status.DTYPE, f"{name} is {tensor.dtype}, expected {dtype}")
    if tensor.dim() != rank:
        raise fail(Status.RANK, f"{name} has rank {tensor.dim()}, expected {rank}")


def _require_value_dim(name: str, value: int) -> None:
    if value != 512:
        raise fail(Status.RANGE, f"{name} is {value}, expected 512")


def _check_metadata(meta, config: tuple) -> None:
    if not isinstance(meta, FlashMLASchedMeta):
        text = f"tile_scheduler_metadata is {type(meta).__name__}, expected the object get_mla_metadata() returns"
        raise fail(Status.COMBINATION, text)
    if meta.config is None:
        meta.config = config
    elif meta.config != config:
        text = f"tile_scheduler_metadata was used with sizes {meta.config}, expected one for {config}"
        raise fail(Status.COMBINATION, text)


def _rows_view(out: torch.Tensor, shape: tuple) -> Optional[torch.Tensor]:
    """A caller's output as rows; None if its strides allow no such view."""
    _require(out, "out", 4, torch.bfloat16)
    if tuple(out.shape) != shape:
        raise fail(Status.SHAPE, f"out is {list(out.shape)}, expected {list(shape)}")
    mergeable = shape[0] <= 1 or shape[1] <= 1 or out.stride(0) == shape[1] * out.stride(1)
    return out.view(shape[0] * shape[1], *shape[2:]) if mergeable else None


def _flat_lists(lists: Optional[torch.Tensor], name: str, batch: int, s_q: int) -> Optional[torch.Tensor]:
    if lists is None:
        return None
    if lists.shape[:2] != (batch, s_q):
        raise fail(Status.SHAPE, f"{name} is {list(lists.shape)}, expected [{batch}, {s_q}, topk] as q")
    if lists.stride(2) != 1 and lists.shape[2] > 1:
        raise fail(Status.STRIDE, f"{name} has stride {lists.stride(2)} in its last dimension, expected 1")
    return lists.reshape(batch * s_q, lists.shape[2])


def _flat_lengths(lengths: Optional[torch.Tensor], name: str, batch: int, s_q: int) -> Optional[torch.Tensor]:
    if lengths is None:
        return None
    if lengths.shape != (batch,):
        raise fail(Status.SHAPE, f"{name} is {list(lengths.shape)}, expected [{batch}] as q")
    return lengths if s_q == 1 else lengths.repeat_interleave(s_q, output_size=batch * s_q)


def _plus_infinity(lse: torch.Tensor) -> torch.Tensor:
    """FlashMLA marks a row without keys with +inf."""
    return lse.nan_to_num_(nan=_NAN, posinf=_INF, neginf=_INF)  # one launch
