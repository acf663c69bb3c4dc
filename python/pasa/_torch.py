"""The operator as torch knows it, for callers that are traced: torch.compile, torch.export, FakeTensor.

Eager calls never come here: the dispatcher costs more than the rest of the call. One mutating operator is enough, since
the shapes of its results are those of q; its fake implementation has nothing to do. Imported on first use.
"""

from __future__ import annotations

import torch

from ._call import CALL_TENSORS, CALL_VALUES, VALUE_DIM, call
from ._native import Status, fail
from ._problem import INPUTS
from ._tensor import arrays_of

_REQUIRED = ("q", "kv", "kv_indices")
_ARGUMENTS = {  # in the order in which `call` takes them
    **{name: "Tensor" if name in _REQUIRED else "Tensor?" for name in INPUTS},
    "out": "Tensor(a!)",
    "lse": "Tensor(b!)?",
    "max_logits": "Tensor(c!)?",
    "kv_format": "str",
    "extra_kv_format": "str?",
    "softmax_scale": "float?",
    "kv_scale": "float?",
    "queries_per_list": "int?",
    "return_lse": "bool",
    "splits": "int?",
    "block_h": "int?",
    "nan_to_zero": "bool",
    "no_invalid": "bool",
    "skip_reduce": "bool",
    "kernel": "str?",
    "threads": "int?",
}
assert tuple(_ARGUMENTS) == (*CALL_TENSORS, *CALL_VALUES)

library = torch.library.Library("pasa", "DEF")
library.define(f"attend({', '.join(f'{kind} {name}' for name, kind in _ARGUMENTS.items())}) -> ()")


def _eager(*arguments) -> None:
    tensors, values = arguments[: len(CALL_TENSORS)], arguments[len(CALL_TENSORS) :]
    call(arrays_of(tensors[0], "q"), tensors, values, None)


library.impl("attend", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("pasa::attend", lambda *arguments: None, lib=library)


def attend(tensors: tuple, values: tuple):
    """pasa.attend inside a traced graph; the operator takes its arguments in this order."""
    *inputs, out, lse, max_logits = tensors
    return_lse, skip_reduce = values[CALL_VALUES.index("return_lse")], values[CALL_VALUES.index("skip_reduce")]
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
