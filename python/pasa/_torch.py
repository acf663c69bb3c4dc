"""The operator as torch knows it, for callers that are traced: torch.compile, torch.export, FakeTensor.

Eager calls never come here: the dispatcher costs more than the rest of the call. One mutating operator is enough, since
the shapes of its results are those of q; its fake implementation has nothing to do. Imported on first use.
"""

from __future__ import annotations

import torch

from . import _TENSORS, _VALUES, VALUE_DIM
from . import attend as pasa_attend
from ._native import Status, fail

_SCHEMA = (
    "attend(Tensor q, Tensor kv, Tensor kv_indices, Tensor? kv_indptr, Tensor? kv_lengths, Tensor? kv_scales, "
    "Tensor? attn_sink, Tensor? extra_kv, Tensor? extra_indices, Tensor? extra_indptr, Tensor? extra_lengths, "
    "Tensor? extra_kv_scales, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? max_logits, str kv_format, "
    "str? extra_kv_format, float? softmax_scale, bool return_lse, int? splits, int? block_h, bool nan_to_zero, "
    "bool no_invalid, bool skip_reduce, str? kernel, int? threads) -> ()"
)

library = torch.library.Library("pasa", "DEF")
library.define(_SCHEMA)


def _eager(*arguments) -> None:
    tensors, values = arguments[: len(_TENSORS)], arguments[len(_TENSORS) :]
    pasa_attend(**dict(zip(_TENSORS, tensors)), **dict(zip(_VALUES, values)))


library.impl("attend", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("pasa::attend", lambda *arguments: None, lib=library)


def attend(tensors: tuple, values: tuple):
    """pasa.attend inside a traced graph; the operator takes its arguments in this order."""
    *inputs, out, lse, max_logits = tensors
    return_lse, skip_reduce = values[_VALUES.index("return_lse")], values[_VALUES.index("skip_reduce")]
    if skip_reduce:
        raise fail(Status.UNSUPPORTED, "skip_reduce is True, expected False while torch traces")
    q = inputs[0]
    rows = q.shape[:2]
    if out is None:
        out = q.new_empty((*rows, VALUE_DIM))
    if lse is None and return_lse:
        lse = q.new_empty(rows, dtype=torch.float32)
    torch.ops.pasa.attend(*inputs, out, lse, max_logits, *values)
    results = tuple(tensor for tensor in (out, lse, max_logits) if tensor is not None)
    return results[0] if len(results) == 1 else results
