"""pasa: paged sparse attention for MLA caches, on NumPy arrays and torch tensors.

One operator: query row t, head h attends to the cache slots that row t's index list names, in one or two sources.

    out = pasa.attend(q, kv, kv_indices, kv_format="fp8_ds_mla", kv_lengths=lengths, attn_sink=sink)

`attend` is all most callers need; `plan` prepares a call that is repeated; `explain` and `kernels` say which kernel
runs and why; `pasa.ops` has what surrounds the call, `pasa.compat` the calls of other libraries. Tensors keep the
names, shapes and dtypes of case files (`save_case`, docs/formats.md). Every refused argument raises pasa.Error, which
names it, before anything is launched.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import _native, ops
from ._call import VALUE_DIM, Partials, Plan, call, result_of
from ._case import load_case, save_case
from ._native import Error, Status
from ._native import version as __version__
from ._problem import INPUTS, Packed, PackedProblem, arguments
from ._tensor import arrays_of, find_arrays

if TYPE_CHECKING:
    import numpy
    import torch

    Array = Union[numpy.ndarray, torch.Tensor]

__all__ = [
    "Error",
    "Kernel",
    "Partials",
    "Plan",
    "Status",
    "attend",
    "explain",
    "kernels",
    "load_case",
    "ops",
    "plan",
    "reduce",
    "save_case",
    "validate",
]


class Kernel(NamedTuple):
    """One kernel of the library, and what it says to a problem."""

    name: str
    device: str  #: "cpu", "cuda", "hip"
    available: bool  #: this machine can run it
    accepts: bool  #: and it serves the problem asked about
    reason: str  #: why not, in words


def attend(
    q: Array,
    kv: Array,
    kv_indices: Array,
    *,
    kv_format: str,
    kv_indptr: Array | None = None,
    kv_lengths: Array | None = None,
    kv_scales: Array | None = None,
    kv_pe: Array | None = None,
    attn_sink: Array | None = None,
    extra_kv: Array | None = None,
    extra_kv_format: str | None = None,
    extra_indices: Array | None = None,
    extra_indptr: Array | None = None,
    extra_lengths: Array | None = None,
    extra_kv_scales: Array | None = None,
    extra_kv_pe: Array | None = None,
    softmax_scale: float | None = None,
    kv_scale: float | None = None,
    queries_per_list: int | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    max_logits: Array | None = None,
    return_lse: bool = False,
    workspace: Array | None = None,
    splits: int | None = None,
    block_h: int | None = None,
    nan_to_zero: bool = False,
    no_invalid: bool = False,
    skip_reduce: bool = False,
    kernel: str | None = None,
    threads: int | None = None,
) -> Array | tuple | Partials:
    """Attention of every query row to the slots its list names.

    All tensors are NumPy arrays, or all are torch tensors on one device; a GPU works on its current stream and nothing
    is synchronised. Inference only: no gradient flows.

    Args:
        q: bf16 or fp16 [T, H, D], one row per query token; D is 512 (576 with fp8_v32 and with 576-wide flat pools). Any
            row strides. NumPy has no bf16: pass ml_dtypes.bfloat16 or uint16 bits; the result has the same form.
        kv: the cache, by kv_format: bf16, f16, fp8_e4m3fn, fp8_e4m3fnuz [slots, D];
            fp8_ds_mla [blocks, page, 584], fp8_v32 [blocks, page, 656] bytes; packed_bf16 [blocks, page, 512]. A head
            dimension of size 1 before the last one is accepted; pages and rows may be padded.
        kv_indices: int32 [nnz] with kv_indptr (ragged), or [T, W] (rectangular). An index outside [0, slots) is
            skipped.
        kv_format: how kv is stored; fp8 tensors may be typed as fp8 or as bytes.
        kv_indptr: int32 [T+1], row t owns kv_indices[kv_indptr[t]:kv_indptr[t+1]].
        kv_lengths: int32 [T], row t reads the first kv_lengths[t] of its W entries.
        kv_scales: float32 [slots, 8], with the two uniform fp8 formats of D = 512 only.
        kv_pe: [slots, 64] of kv's dtype: components 512 to 575 of a flat cache whose kv is then [slots, 512]. Both may be
            views of one tensor.
        attn_sink: float32 [H], a logit that enters the denominator alone.
        extra_kv, extra_kv_format, extra_indices, extra_indptr, extra_lengths, extra_kv_scales, extra_kv_pe: a second
            source; its format defaults to kv_format.
        softmax_scale: D^-0.5 unless given.
        kv_scale: a number that every component of every key, and so of every value, is multiplied by; not 0.
        queries_per_list: n rows in turn share a list, as the last n tokens of the sequence that it names: row t reads all
            but the last n - 1 - t % n entries of list t // n. The lists are then T / n.
        out, lse, max_logits: where to write q's dtype [T, H, 512], float32 [T, H] and float32 [T, H].
        return_lse: return ln sum exp(score) too; -inf for a row without keys, the sink is not in it.
        workspace: scratch memory on q's device, of Plan.workspace_bytes and aligned to 256 bytes; allocated if absent.
        splits: parts that each list is cut into, 1 to 256; chosen if absent.
        block_h: a hint, heads per tile.
        nan_to_zero: count NaN components of selected keys as 0.
        no_invalid: a hint that no index is invalid; results never depend on it.
        skip_reduce: return Partials if the plan has more than one split.
        kernel: a name from `kernels()` or a prefix such as "cpu"; then no other is tried.
        threads: CPU threads; all that the process may use if absent.

    Returns:
        out; or the tuple (out, lse, max_logits) without those neither given nor asked for; or Partials.

    Raises:
        Error: an argument is refused. Its category says why, its text which.
    """
    if softmax_scale is not None:
        softmax_scale = float(softmax_scale)
    if kv_scale is not None:
        kv_scale = float(kv_scale)
    # fmt: off
    tensors = (
        q, kv, kv_scales, kv_pe, kv_indices, kv_indptr, kv_lengths,
        extra_kv, extra_kv_scales, extra_kv_pe, extra_indices, extra_indptr, extra_lengths,
        attn_sink, out, lse, max_logits,
    )
    values = (
        kv_format, extra_kv_format, softmax_scale, kv_scale, queries_per_list, return_lse,
        splits, block_h, nan_to_zero, no_invalid, skip_reduce, kernel, threads,
    )
    # fmt: on
    arrays = find_arrays(q, "q")
    if arrays is None:
        from . import _torch

        return _torch.attend(tensors, values)
    return call(arrays, tensors, values, workspace)


def plan(
    q: Array,
    kv: Array,
    kv_indices: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    max_logits: Array | None = None,
    return_lse: bool = False,
    workspace: Array | None = None,
    **options: Any,
) -> Plan:
    """Prepares a call of `attend` with the same arguments, to be run many times with little host work."""
    tensors = dict(q=q, kv=kv, kv_indices=kv_indices, out=out, lse=lse, max_logits=max_logits)
    tensors.update((name, options.pop(name)) for name in INPUTS if name in options)
    return Plan(arrays_of(q, "q"), tensors, {**options, "return_lse": return_lse}, workspace)


def _filled(q: Array, kv: Array, kv_indices: Array, options: dict) -> PackedProblem:
    return PackedProblem(arrays_of(q, "q"), *arguments(q, kv, kv_indices, **options))


def kernels(
    q: Array | None = None, kv: Array | None = None, kv_indices: Array | None = None, **options: Any
) -> list[Kernel]:
    """The kernels of this library in order of preference: all of them, or what each says to the inputs of `attend`."""
    packed = None if q is None else _filled(q, kv, kv_indices, options)
    found = []
    for index in range(_native.lib.pasa_kernel_count()):
        info = _native.KernelInfo(struct_size=ctypes.sizeof(_native.KernelInfo))
        _native.check(_native.lib.pasa_get_kernel_info(index, packed and packed.address, info))
        name, device, reason = (text.decode(errors="replace") for text in (info.name, info.device, info.reason))
        found.append(Kernel(name, device, bool(info.available), bool(info.accepts), reason))
    return found


def explain(q: Array, kv: Array, kv_indices: Array, **options: Any) -> str:
    """What `attend` would do with these inputs: the plan in one line, then each kernel's answer."""
    packed = _filled(q, kv, kv_indices, options)
    lines = [f"  {k.name}: {'serves it' if k.accepts else k.reason}" for k in kernels(q, kv, kv_indices, **options)]
    try:
        summary = _native.PlanHandle(packed.address).summary
    except Error as error:
        summary = str(error)
    return "\n".join([summary, *lines])


def validate(q: Array, kv: Array, kv_indices: Array, **options: Any) -> int:
    """Reads index and length tensors and raises Error "value" for malformed ones. Copies them to the host and waits.

    Returns:
        The number of invalid indices, which are legal and skipped.
    """
    arrays = arrays_of(q, "q")
    lists = ("kv_indptr", "kv_lengths", "extra_indices", "extra_indptr", "extra_lengths")
    on_host = {name: arrays.host(options[name]) for name in lists if options.get(name) is not None}
    on_host["kv_indices"] = arrays.host(kv_indices)
    packed = PackedProblem(arrays, *arguments(q, kv, **{**options, **on_host}))
    skipped = ctypes.c_int64()
    _native.check(_native.lib.pasa_validate(packed.on_cpu(), skipped))
    return skipped.value


def reduce(
    acc: Array,
    m: Array,
    l: Array,
    *,
    attn_sink: Array | None = None,
    dtype: Any = None,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
) -> Array | tuple:
    """Merges the partials of any number of splits and adds the sink once.

    Args:
        acc, m, l: float32 [T, S, H, 512], [T, S, H], [T, S, H], contiguous: see Partials.
        attn_sink: float32 [H].
        dtype: of a new out: bf16, fp16 or (default) float32, as the framework names it.
        out, lse: where to write [T, H, 512] and float32 [T, H].
        return_lse: return the natural logarithm of the sum too, without the sink.

    Returns:
        out, or (out, lse) if lse was given or asked for.
    """
    arrays = arrays_of(acc, "acc")
    rows = (acc.shape[0], acc.shape[2]) if len(acc.shape) == 4 else (0, 0)
    outputs = {"out": out if out is not None else arrays.empty(acc, (*rows, VALUE_DIM), dtype or arrays.float32)}
    if lse is not None or return_lse:
        outputs["lse"] = lse if lse is not None else arrays.empty(acc, rows, arrays.float32)
    for name, tensor in outputs.items():
        arrays.require_writable(name, tensor)
    size = ctypes.sizeof(_native.ReduceProblem)
    names = ("acc", "m", "l", "attn_sink", "out", "lse")
    offsets = {name: getattr(_native.ReduceProblem, name).offset for name in names}
    packed = Packed(bytes(_native.ReduceProblem(struct_size=size)), offsets)
    packed.bind(arrays, dict(acc=acc, m=m, l=l, attn_sink=attn_sink, **outputs))
    _native.check(_native.lib.pasa_reduce(packed.address, arrays.stream(acc)))
    return result_of(outputs["out"], outputs.get("lse"), None)
