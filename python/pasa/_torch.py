"""The operator as torch knows it, for callers that are traced: torch.compile, torch.export, FakeTensor.

Eager calls never come here: the dispatcher costs more than the rest of the call. One mutating operator is enough, since
the shapes of its results are those of q; its fake implementation has nothing to do. Imported on first use.
"""

from __future__ import annotations

import torch

from . import _native

_TENSORS = ("kv_indptr", "kv_lengths", "kv_scales", "attn_sink", "extra_kv", "extra_indices", "extra_indptr")
_TENSORS += ("extra_lengths", "extra_kv_scales")
_OPTIONS = {  # in the order of the schema: positional, because some names mean something to the compiler
    "kv_format": "str",
    "extra_kv_format": "str?",
    **{name: "Tensor?" for name in _TENSORS},
    "softmax_scale": "float?",
    "splits": "int?",
    "block_h": "int?",
    "nan_to_zero": "bool",
    "no_invalid": "bool",
    "kernel": "str?",
    "threads": "int?",
}
_SCHEMA = (
    "attend(Tensor q, Tensor kv, Tensor kv_indices, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? max_logits, "
    + ", ".join(f"{kind} {name}" for name, kind in _OPTIONS.items())
    + ") -> ()"
)

library = torch.library.Library("pasa", "DEF")
library.define(_SCHEMA)


def _eager(q, kv, kv_indices, out, lse, max_logits, *options) -> None:
    from . import attend

    attend(q, kv, kv_indices, out=out, lse=lse, max_logits=max_logits, **dict(zip(_OPTIONS, options)))


library.impl("attend", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("pasa::attend", lambda *arguments: None, lib=library)


def attend(q, kv, kv_indices, out, lse, max_logits, return_lse: bool, options: dict):
    """pasa.attend inside a traced graph."""
    if options["skip_reduce"]:
        raise _native.fail(_native.Status.UNSUPPORTED, "skip_reduce is True, expected False while torch traces")
    rows = q.shape[:2]
    if out is None:
        out = q.new_empty((*rows, 512))
    if lse is None and return_lse:
        lse = q.new_empty(rows, dtype=torch.float32)
    torch.ops.pasa.attend(q, kv, kv_indices, out, lse, max_logits, *(options[name] for name in _OPTIONS))
    results = tuple(tensor for tensor in (out, lse, max_logits) if tensor is not None)
    return results[0] if len(results) == 1 else results
