"""aiter's sparse attention calls, on every device and format: two sources, lists of any length, any number of heads.

Each is the one operator with a format read off the tensors. `mla_gluon` is dense MLA decode: its block tables are index
lists, and the queries of a sequence share one.
"""

from __future__ import annotations

from typing import Optional, Union

import torch

from .. import attend
from .._native import Error, Status, fail
from ._names import renamed

_ALIGNMENT = {"fp8_ds_mla": 8, "fp8_v32": 4}  # bytes; the elements of these caches are bytes

__all__ = ["mla_gluon", "pa_decode_sparse", "pa_prefill_sparse"]


def pa_decode_sparse(
    q: torch.Tensor,
    unified_kv: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    attn_sink: Optional[torch.Tensor],
    softmax_scale: Optional[float],
    kv_scales: Optional[torch.Tensor] = None,
    block_h: Optional[int] = None,
    kv_splits: Optional[int] = None,
    has_invalid: Optional[bool] = True,
    skip_reduce: Optional[bool] = False,
    USE_EXP2: Optional[bool] = None,
    *,
    extra_cache: Optional[torch.Tensor] = None,
    extra_indices: Optional[torch.Tensor] = None,
    extra_indptr: Optional[torch.Tensor] = None,
    extra_scales: Optional[torch.Tensor] = None,
    out: Optional[torch.Tensor] = None,
) -> Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Sparse paged decode.

    Args:
        q: bf16 or fp16 [T, H, 512] (576 with 656-byte records).
        unified_kv: [slots, 512] of q's dtype, or fp8 or bytes with kv_scales (bytes are OCP e4m3); or [blocks, page,
            584] or [blocks, page, 656] bytes; or bf16 [blocks, page, 512]. A byte cache whose page stride is no
            multiple of 8 (656-byte records: 4) is copied first.
        kv_indices, kv_indptr: int32 [nnz] and [T+1]; an index outside the pool is skipped.
        attn_sink: float32 [H] or None.
        softmax_scale: None stands for D^-0.5.
        kv_scales: float32 [slots, 8].
        block_h, has_invalid: hints, no result depends on them. USE_EXP2 is ignored.
        kv_splits: parts of each list, 1 to 256.
        skip_reduce: return partials if there is more than one split.
        extra_cache, extra_indices, extra_indptr, extra_scales: a second source, of any format with the same D.
        out: where to write [T, H, 512].

    Returns:
        out; or (acc [T, S, H, 512], m [T, S, H], l [T, S, H]), float32, m in base 2.
    """
    kv_format = _format_of(unified_kv, "unified_kv")
    extra_format = None if extra_cache is None else _format_of(extra_cache, "extra_cache")
    names = {"kv": "unified_kv", "kv_format": "unified_kv", "splits": "kv_splits"}
    names |= {"extra_kv": "extra_cache", "extra_kv_scales": "extra_scales"}
    try:
        return attend(
            q,
            _aligned(unified_kv, kv_format),
            kv_indices,
            kv_format=kv_format,
            kv_indptr=kv_indptr,
            kv_scales=kv_scales,
            attn_sink=attn_sink,
            extra_kv=None if extra_cache is None else _aligned(extra_cache, extra_format),
            extra_kv_format=extra_format,
            extra_indices=extra_indices,
            extra_indptr=extra_indptr,
            extra_kv_scales=extra_scales,
            softmax_scale=softmax_scale,
            out=out,
            splits=kv_splits,
            block_h=block_h,
            no_invalid=not has_invalid,
            skip_reduce=bool(skip_reduce),
        )
    except Error as error:
        raise renamed(error, names) from None


def pa_prefill_sparse(
    q: torch.Tensor,
    unified_kv: torch.Tensor,
    kv_indices_prefix: torch.Tensor,
    kv_indptr_prefix: torch.Tensor,
    kv: Optional[torch.Tensor],
    kv_indices_extend: Optional[torch.Tensor],
    kv_indptr_extend: Optional[torch.Tensor],
    attn_sink: Optional[torch.Tensor],
    softmax_scale: Optional[float],
    has_invalid: Optional[bool] = None,
    *,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Sparse prefill over a pool and this step's own keys.

    Args:
        q: bf16 or fp16 [T, H, 512].
        unified_kv: [slots, 512] of q's dtype.
        kv_indices_prefix, kv_indptr_prefix: int32 [nnz] and [T+1], lists into unified_kv.
        kv: [tokens, 512] of q's dtype, with kv_indices_extend and kv_indptr_extend; or all three None.
        attn_sink: float32 [H] or None.
        softmax_scale: None stands for D^-0.5.
        has_invalid: a hint.
        out: where to write [T, H, 512].
    """
    extend = {"kv": kv, "kv_indices_extend": kv_indices_extend, "kv_indptr_extend": kv_indptr_extend}
    missing = [name for name, tensor in extend.items() if tensor is None]
    if 0 < len(missing) < len(extend):
        raise fail(Status.COMBINATION, f"{missing[0]} is None, expected all of {', '.join(extend)} or none")
    names = {"kv": "unified_kv", "kv_indices": "kv_indices_prefix", "kv_indptr": "kv_indptr_prefix"}
    names |= {"extra_kv": "kv", "extra_indices": "kv_indices_extend", "extra_indptr": "kv_indptr_extend"}
    try:
        return attend(
            q,
            unified_kv,
            kv_indices_prefix,
            kv_format=_format_of(unified_kv, "unified_kv"),
            kv_indptr=kv_indptr_prefix,
            attn_sink=attn_sink,
            extra_kv=kv,
            extra_kv_format=None if kv is None else _format_of(kv, "kv"),
            extra_indices=kv_indices_extend,
            extra_indptr=kv_indptr_extend,
            softmax_scale=softmax_scale,
            out=out,
            no_invalid=has_invalid is False,
        )
    except Error as error:
        raise renamed(error, names) from None


def mla_gluon(
    q_nope: torch.Tensor,
    q_pe: Optional[torch.Tensor],
    kv_c: torch.Tensor,
    o: torch.Tensor,
    page_table: torch.Tensor,
    seq_info: torch.Tensor,
    sm_scale: float,
    k_pe: Optional[torch.Tensor] = None,
    kv_pe_offset: int = 512,
    use_2d_view: bool = True,
    kv_scale: float = 1.0,
    min_kv_seq_len: int = 1,
    return_lse: bool = False,
    has_pe: bool = True,
    attn_sink: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """MLA decode over a flat cache of one-token pages; with has_pe False, sparse prefill.

    Args:
        q_nope: bf16 or fp16 [batch, h, 512], or [batch, qlen, h, 512]: then query p of a sequence sees its first
            length - qlen + p + 1 tokens.
        q_pe: as q_nope, last dimension 64; ignored with has_pe False.
        kv_c: [slots, 576] with the RoPE part at column kv_pe_offset, or [slots, 512] with k_pe or with has_pe False; of
            q's dtype, or fp8 (bytes are OCP e4m3) unless has_pe is False.
        o: where to write, as q_nope.
        page_table, seq_info: int32 [batch, max] and lengths [batch]; with use_2d_view False (and always with has_pe
            False) one list [nnz] and its [batch + 1] prefix sum.
        sm_scale, kv_scale: scores are scaled by both, values by kv_scale, which is not 0.
        k_pe: [slots, 64] of kv_c's dtype.
        kv_pe_offset: any column of kv_c. min_kv_seq_len is ignored.
        return_lse: return float32 [batch(, qlen), h] too: natural, without the sink, -inf for an empty row.

    Returns:
        o, and lse or None.
    """
    _check_mla(q_nope, q_pe, kv_c, k_pe, kv_pe_offset, has_pe)
    if tuple(o.shape) != tuple(q_nope.shape):
        raise fail(Status.SHAPE, f"o is {list(o.shape)}, expected {list(q_nope.shape)} as q_nope")
    rank = 2 if use_2d_view and has_pe else 1
    if page_table.dim() != rank:
        raise fail(Status.RANK, f"page_table has rank {page_table.dim()}, expected {rank}")
    leading, heads = q_nope.shape[:-2], q_nope.shape[-2]
    batch, q_len = leading[0], leading[1] if len(leading) == 2 else 1
    rows = batch * q_len
    q = torch.cat((q_nope, q_pe), dim=-1) if has_pe else q_nope
    kv_format = _format_of(kv_c, "kv_c")
    if has_pe and k_pe is None and kv_pe_offset != 512:
        kv_c, k_pe = kv_c[:, :512], kv_c[:, kv_pe_offset : kv_pe_offset + 64]
    direct = o.dim() == 3 or batch == 1 or q_len == 1 or o.stride(0) == q_len * o.stride(1)
    names = {"q": "q_nope", "kv": "kv_c", "kv_format": "kv_c", "kv_pe": "k_pe", "kv_indices": "page_table", "out": "o"}
    names |= {"kv_indptr": "seq_info", "kv_lengths": "seq_info", "softmax_scale": "sm_scale"}
    try:
        result = attend(
            q.reshape(rows, heads, q.shape[-1]),
            kv_c,
            page_table,
            kv_format=kv_format,
            kv_pe=k_pe if has_pe else None,
            kv_lengths=seq_info if rank == 2 else None,
            kv_indptr=seq_info if rank == 1 else None,
            attn_sink=attn_sink,
            softmax_scale=sm_scale,
            kv_scale=kv_scale,
            queries_per_list=q_len,
            out=o.view(rows, heads, o.shape[-1]) if direct else None,
            return_lse=return_lse,
        )
    except Error as error:
        raise renamed(error, names) from None
    out, lse = result if return_lse else (result, None)
    if not direct:
        o.copy_(out.view(o.shape))
    return o, lse.view(*leading, heads) if return_lse else None


def _format_of(kv: torch.Tensor, name: str) -> str:
    """The KV format that a tensor's rank, dtype and last dimension say it has."""
    if not isinstance(kv, torch.Tensor):
        raise fail(Status.DTYPE, f"{name} is {type(kv).__name__}, expected a torch tensor")
    if kv.dim() >= 3 and kv.dtype == torch.bfloat16 and kv.shape[1] != 1:
        return "packed_bf16"
    if kv.dtype in (torch.bfloat16, torch.float16):
        return "bf16" if kv.dtype == torch.bfloat16 else "f16"
    if kv.dim() >= 3:
        return "fp8_v32" if kv.shape[-1] == 656 else "fp8_ds_mla"
    return "fp8_e4m3fnuz" if kv.dtype == torch.float8_e4m3fnuz else "fp8_e4m3fn"


def _aligned(kv: torch.Tensor, kv_format: str) -> torch.Tensor:
    """The cache, or a dense copy if its pages lie at odd addresses, which aiter takes and the library does not.

    While torch traces, a tensor has no address: then strides alone are looked at.
    """
    need = _ALIGNMENT.get(kv_format)
    if need is None:
        return kv
    at = 0 if torch.compiler.is_compiling() else kv.storage_offset()
    return kv if kv.stride(0) % need == 0 and at % need == 0 else kv.contiguous()


def _check_mla(q_nope, q_pe, kv_c, k_pe, kv_pe_offset: int, has_pe: bool) -> None:
    """What the operator cannot see: how its tensors are put together from these."""
    if q_nope.dim() not in (3, 4):
        raise fail(Status.RANK, f"q_nope has rank {q_nope.dim()}, expected 3 or 4")
    if q_nope.shape[-1] != 512:
        raise fail(Status.SHAPE, f"q_nope is {list(q_nope.shape)}, expected a last dimension of 512")
    if kv_c.dim() != 2:
        raise fail(Status.RANK, f"kv_c has rank {kv_c.dim()}, expected 2")
    width = 512 if k_pe is not None or not has_pe else 576
    if kv_c.shape[1] != width:
        raise fail(Status.SHAPE, f"kv_c is {list(kv_c.shape)}, expected a last dimension of {width}")
    if not has_pe:
        if kv_c.dtype not in (torch.bfloat16, torch.float16):
            raise fail(Status.UNSUPPORTED, f"kv_c is {kv_c.dtype}, expected bf16 or fp16 with has_pe False")
        return
    if k_pe is None and not 0 <= kv_pe_offset <= width - 64:
        raise fail(Status.RANGE, f"kv_pe_offset is {kv_pe_offset}, expected 0 to {width - 64}")
    if q_pe is None or tuple(q_pe.shape) != (*q_nope.shape[:-1], 64):
        found = None if q_pe is None else list(q_pe.shape)
        raise fail(Status.SHAPE, f"q_pe is {found}, expected {[*q_nope.shape[:-1], 64]}")
    if q_pe.dtype != q_nope.dtype:
        raise fail(Status.DTYPE, f"q_pe is {q_pe.dtype}, expected {q_nope.dtype} as q_nope")
