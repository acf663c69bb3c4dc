"""Prepared calls: a packed problem with its plan, which needs only addresses to run.

`attend` keeps the calls it has prepared and finds them again by everything that is not an address: in a serving loop
the struct is packed and the plan is made once, then each call writes some pointers. `Plan` is the same in the caller's
hands.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import _native
from ._native import Status
from ._problem import INPUTS, OUTPUTS, TENSORS, PackedProblem, arguments

if TYPE_CHECKING:
    import numpy
    import torch

    Array = Union[numpy.ndarray, torch.Tensor]

VALUE_DIM = 512

# What makes up a call: tensors, and everything else. Both in the order of the tuples that `call` takes.
GIVEN_OUTPUTS = ("out", "lse", "max_logits")
CALL_TENSORS = (*INPUTS, *GIVEN_OUTPUTS)
CALL_VALUES = ("kv_format", "extra_kv_format", "softmax_scale", "kv_scale", "queries_per_list", "return_lse")
CALL_VALUES += ("splits", "block_h", "nan_to_zero", "no_invalid", "skip_reduce", "kernel", "threads")
_PLACES = tuple(TENSORS[name] >> 3 for name in CALL_TENSORS)
_UNSUPPORTED = int(Status.UNSUPPORTED)


class Partials(NamedTuple):
    """What skip_reduce returns: per split, unnormalised and without the sink. `reduce` finishes them."""

    acc: Array  #: float32 [T, S, H, 512], sum of 2^(s2 - m) v
    m: Array  #: float32 [T, S, H], maximum of s2 = score * log2 e; -inf for an empty split
    l: Array  #: float32 [T, S, H], sum of 2^(s2 - m)


def call(arrays, tensors: tuple, values: tuple, workspace: Array | None) -> Array | tuple | Partials:
    """Runs CALL_TENSORS and CALL_VALUES, prepared now or by an earlier call of this thread."""
    for prepared in _this_thread.latest.get(values, ()):
        if workspace is None and prepared.is_complete:
            status = prepared.step(_native.run_call, tensors)
            if status == 0:
                return result_of(*tensors[-len(GIVEN_OUTPUTS) :])
            if status > 0:  # raises it, or finds another kernel
                return prepared.call(tensors, workspace)
        elif prepared.step(_native.bind_call, tensors) == 0:
            return prepared.call(tensors, workspace)
    prepared = _find(arrays, tensors, values)
    arrays.set_addresses(prepared.problem.words, _PLACES, tensors)
    return prepared.call(tensors, workspace)


def _find(arrays, tensors: tuple, values: tuple) -> _Prepared:
    try:
        key = (*values, *arrays.signatures(tensors))
    except (AttributeError, RuntimeError):  # no tensors of this framework: preparing says which one
        key = None
    prepared = _this_thread.prepared.get(key)
    if prepared is None:
        prepared = _Prepared(arrays, dict(zip(CALL_TENSORS, tensors)), dict(zip(CALL_VALUES, values)))
        _this_thread.keep(key, prepared)
    if prepared.native is not None:
        _this_thread.remember(values, prepared)
    return prepared


class _Prepared:
    """What calls share that differ in addresses alone."""

    def __init__(self, arrays, tensors: dict[str, Any], values: dict[str, Any]):
        self.arrays = arrays
        return_lse = values.pop("return_lse", False)
        given = {name: tensors.pop(name, None) for name in GIVEN_OUTPUTS}
        self.problem = PackedProblem(arrays, *arguments(**tensors, **values))
        for name, tensor in given.items():
            if tensor is not None:
                arrays.require_writable(name, tensor)
                self.problem.bind(arrays, {name: tensor})
        q, self.made = tensors["q"], {}  # outputs that every call makes anew: shape and dtype (None: q's)
        rows = tuple(q.shape[:2])
        if return_lse and given["lse"] is None:
            self._make("lse", q, rows, arrays.float32)
        if given["out"] is None and not values.get("skip_reduce"):
            self._make("out", q, (*rows, VALUE_DIM))
        self.plan = _native.PlanHandle(self.problem.address)  # knows the outputs: runs look at their addresses only
        if self.plan.is_partial:
            (tokens, heads), splits = rows, self.plan.splits
            self._make("acc", q, (tokens, splits, heads, VALUE_DIM), arrays.float32)
            self._make("m", q, (tokens, splits, heads), arrays.float32)
            self._make("l", q, (tokens, splits, heads), arrays.float32)
        elif given["out"] is None and "out" not in self.made:
            self._make("out", q, (*rows, VALUE_DIM))
        self.made_places = tuple(TENSORS[name] >> 3 for name in self.made)
        places = [-1 if name in self.made else TENSORS[name] for name in CALL_TENSORS]
        self.native = arrays.native_call(q, self.problem, places)
        self.is_complete = not self.made and not self.plan.workspace_bytes and self.native is not None
        if self.native is not None:
            self.native.plan = self.plan.handle
            self.native_reference = ctypes.byref(self.native)

    def _make(self, name: str, q: Array, shape: tuple, dtype: Any = None) -> None:
        self.made[name] = shape, dtype
        self.problem.bind(self.arrays, {name: self.arrays.empty(q, shape, dtype)})

    def step(self, function, tensors: tuple) -> int:
        """Runs or binds if the tensors are described as this call's."""
        try:
            return function(self.native_reference, tensors)
        except Exception:  # a tensor that DLPack does not describe
            return _native.CALL_OF_OTHERS

    def make_outputs(self, q: Array) -> dict[str, Array]:
        arrays = self.arrays
        outputs = {name: arrays.empty(q, shape, dtype) for name, (shape, dtype) in self.made.items()}
        arrays.set_addresses(self.problem.words, self.made_places, outputs.values())
        return outputs

    def call(self, tensors: tuple, workspace: Array | None) -> Array | tuple | Partials:
        """Runs on tensors in the order of CALL_TENSORS whose addresses are in the problem."""
        q, (out, lse, max_logits) = tensors[0], tensors[-3:]
        made = self.make_outputs(q) if self.made else None
        status = self.run(self.plan, q, workspace)
        if status == _UNSUPPORTED:  # by a kernel that wants better addresses than these; another may not
            status = self.run(_native.PlanHandle(self.problem.address), q, workspace)
        if status:
            raise _native.last_error(status)
        if made:
            if "acc" in made:
                return Partials(made["acc"], made["m"], made["l"])
            out, lse = made.get("out", out), made.get("lse", lse)
        return result_of(out, lse, max_logits)

    def run(self, plan: _native.PlanHandle, q: Array, workspace: Array | None) -> int:
        address, size = None, plan.workspace_bytes
        if workspace is not None:
            address, size = self.arrays.memory(q, workspace)
        elif size:
            workspace, address = self.arrays.scratch(q, size)
        return _native.run(plan.handle, self.problem.address, address, size, self.arrays.stream(q))


class _ThisThread(threading.local):
    """The calls that this thread has prepared, oldest first; and, for each set of values, the latest few that ran."""

    LIMIT, LATEST = 256, 4  # a model's layers differ in a few ways, and each candidate costs a look at the tensors

    def __init__(self):
        self.prepared: dict[tuple, _Prepared] = {}
        self.latest: dict[tuple, list[_Prepared]] = {}

    def keep(self, key: tuple | None, prepared: _Prepared) -> None:
        if key is not None:
            if len(self.prepared) == self.LIMIT:
                del self.prepared[next(iter(self.prepared))]
            self.prepared[key] = prepared

    def remember(self, values: tuple, prepared: _Prepared) -> None:
        if len(self.latest) == self.LIMIT:
            self.latest.clear()
        latest = self.latest.setdefault(values, [])
        latest.insert(0, prepared)
        del latest[self.LATEST :]


_this_thread = _ThisThread()


def result_of(out: Array, lse: Array | None, max_logits: Array | None) -> Array | tuple:
    if lse is None and max_logits is None:
        return out
    return tuple(tensor for tensor in (out, lse, max_logits) if tensor is not None)


class Plan:
    """A prepared call: kernel, splits and workspace are chosen, all tensors are bound. Made by `plan`.

    `run()` repeats the call on the bound tensors (static buffers, as under CUDA graphs); `run(q=..., kv=..., out=...)`
    first binds others of the same shape class (equal T, H, D, dtypes, formats, page sizes and list form; pool sizes,
    strides and list contents may differ). One thread and one stream at a time: it owns one workspace.
    """

    def __init__(self, arrays, tensors: dict[str, Any], values: dict[str, Any], workspace: Array | None):
        self._arrays, prepared = arrays, _Prepared(arrays, dict(tensors), values)
        self._tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        self._problem, self._handle = prepared.problem, prepared.plan
        self._tensors.update(prepared.make_outputs(self._tensors["q"]))  # all kept alive, as long as they are bound
        self._signatures = dict(zip(self._tensors, arrays.signatures(self._tensors.values())))
        self._size, q = self._handle.workspace_bytes, self._tensors["q"]
        if workspace is None:
            self._workspace, self._scratch = arrays.scratch(q, self._size, keep=True)
        else:
            self._workspace, (self._scratch, self._size) = workspace, arrays.memory(q, workspace)
        self._result = self._bound_result()
        self._binders: dict[tuple, Any] = {}  # for names that were bound together
        self._native = prepared.native
        if self._native is not None:
            self._native.workspace, self._native.workspace_bytes = self._scratch, self._size
            self._reference = ctypes.byref(self._native)

    kernel = property(lambda self: self._handle.kernel, doc="Name of the kernel that runs.")
    splits = property(lambda self: self._handle.splits, doc="Parts that each list is cut into.")
    summary = property(lambda self: self._handle.summary, doc="One line: kernel, tiles, splits, workspace.")
    workspace_bytes = property(lambda self: self._handle.workspace_bytes, doc="Size of a caller's workspace.")
    is_partial = property(lambda self: self._handle.is_partial, doc="Whether run() gives Partials.")

    def run(self, **tensors: Array | None) -> Array | tuple | Partials:
        """Binds the given tensors (None unbinds an optional one), then runs. Returns what `attend` would."""
        if tensors:
            self._bind(tensors)
        if self._native is not None:
            status = _native.run_call(self._reference, None)
        else:
            stream = self._arrays.stream(self._tensors["q"])
            status = _native.run(self._handle.handle, self._problem.address, self._scratch, self._size, stream)
        if status:
            raise _native.last_error(status)
        return self._result

    def _bound_result(self) -> Array | tuple | Partials:
        bound = self._tensors
        if self._handle.is_partial:
            return Partials(bound["acc"], bound["m"], bound["l"])
        return result_of(bound["out"], bound.get("lse"), bound.get("max_logits"))

    def _bind(self, tensors: dict[str, Array | None]) -> None:
        if not self._bind_natively(tensors):
            self._describe_anew(tensors)
        self._tensors.update(tensors)
        self._result = self._bound_result()

    def _bind_natively(self, tensors: dict[str, Array | None]) -> bool:
        names = tuple(tensors)
        if names not in self._binders:
            if self._native is None or not all(name in TENSORS for name in names):
                return False
            places = [TENSORS[name] for name in names]
            self._binders[names] = self._arrays.native_call(self._tensors["q"], self._problem, places)
        try:
            return _native.bind_call(ctypes.byref(self._binders[names]), tuple(tensors.values())) == 0
        except Exception:  # a tensor that DLPack does not describe
            return False

    def _describe_anew(self, tensors: dict[str, Array | None]) -> None:
        arrays, known = self._arrays, self._signatures
        try:
            signatures = arrays.signatures(tensors.values())
        except (AttributeError, RuntimeError):
            signatures = [None] * len(tensors)  # describing them says what is wrong
        for name, signature in zip(tensors, signatures):
            if signature is None or signature != known.get(name):
                self._describe(name, tensors[name])
                known[name] = signature
        arrays.set_addresses(self._problem.words, [TENSORS[name] >> 3 for name in tensors], tensors.values())

    def _describe(self, name: str, tensor: Array | None) -> None:
        if name not in TENSORS:
            raise TypeError(f"run() has no tensor named {name!r}")
        if name in OUTPUTS and tensor is not None:
            self._arrays.require_writable(name, tensor)
        self._problem.bind(self._arrays, {name: tensor})
