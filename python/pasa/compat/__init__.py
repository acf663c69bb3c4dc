"""The calls of other libraries, served by pasa: same names, argument order and results, none of the restrictions.

    from pasa.compat import flash_mla               # instead of: import flash_mla
    pasa.compat.install("flash_mla")                # or: code that says `import flash_mla` reaches pasa
    pasa.compat.install("aiter")                    # the three modules of aiter.ops.triton that hold these calls

torch tensors only, as those libraries.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

_ALIASES = {
    "flash_mla": {"flash_mla": "flash_mla", "flash_mla.flash_mla_interface": "flash_mla"},
    "aiter": {
        "aiter.ops.triton.attention.pa_decode_sparse": "aiter",
        "aiter.ops.triton.attention.pa_prefill_sparse": "aiter",
        "aiter.ops.triton.gluon.mla_gluon": "aiter",
    },
}


def install(*libraries: str) -> None:
    """Makes `import flash_mla`, or the attention modules of aiter, find pasa's calls in this process.

    Modules of aiter other than these three stay as they are; where aiter is not installed, empty packages lead to them.

    Args:
        libraries: "flash_mla", "aiter"; both if none is named.
    """
    for library in libraries or _ALIASES:
        for alias, source in _ALIASES[library].items():
            module = importlib.import_module(f"{__name__}.{source}")
            sys.modules[alias] = module
            parent, _, name = alias.rpartition(".")
            if parent:
                _ensure_package(parent)
                setattr(sys.modules[parent], name, module)


def _ensure_package(name: str) -> None:
    parent, _, leaf = name.rpartition(".")
    if parent:
        _ensure_package(parent)
    if name in sys.modules:
        return
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name)
        return
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = []
    if parent:
        setattr(sys.modules[parent], leaf, package)
