#!/usr/bin/env python3
"""Runs the sparse-attention suites of other libraries, unmodified, against pasa's versions of their calls. Needs a GPU.

    peers.py flash_mla CHECKOUT [--every N] [--seconds S]     tests/test_flash_mla_sparse_{decoding,prefill}.py
    peers.py aiter CHECKOUT                                   op_tests/triton_tests/attention/test_pa_*_sparse.py

CHECKOUT is a copy of the library's repository outside this one; of its code only the tests are imported. What they ask
of the rest of their library is stood in for: the architecture (aiter skips by it: each suite runs once as every
architecture it names), a tolerance check, the profiler (FlashMLA looks for its kernels' names; times are not judged).
--every takes every N-th decode case (all 4748 take half an hour); after --seconds the rest is left out, and said so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import pathlib
import runpy
import sys
import time
import types

import pasa.compat
import torch


class _Profile:
    """Every kernel was seen, and took a second."""

    def get_kernel_names(self):
        return ["flash_fwd_splitkv_mla_fp8_sparse_kernel"]

    def get_kernel_time(self, name):
        return 1.0

    def get_e2e_time(self, first, last):
        return 1.0


def _profile(call, num_tests):
    call()
    return _Profile()


def flash_mla(checkout: pathlib.Path, every: int, seconds: float) -> bool:
    pasa.compat.install("flash_mla")
    sys.path.insert(0, str(checkout / "tests"))
    import kernelkit

    kernelkit.bench_kineto = _profile
    torch.set_default_device("cuda:0")
    torch.set_default_dtype(torch.bfloat16)
    torch.set_float32_matmul_precision("high")

    import test_flash_mla_sparse_decoding as decoding

    cases = [raw.to_test_param() for raw in decoding.gen_testcase()]
    chosen, begin, wrong, done = cases[::every], time.time(), 0, 0
    for case in chosen:
        if time.time() - begin > seconds:
            break
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            correct = decoding.test_flash_mla(case).is_correct
        if not correct:
            wrong += 1
            print(log.getvalue())
        done += 1
    print(f"flash_mla decode: {done - wrong} passed, {wrong} failed, {len(cases) - done} not run", flush=True)

    begin, log = time.time(), io.StringIO()
    status = 0
    try:
        with contextlib.redirect_stdout(log):
            runpy.run_path(str(checkout / "tests" / "test_flash_mla_sparse_prefill.py"), run_name="__main__")
    except SystemExit as exit:
        status = exit.code
    print(f"flash_mla prefill ({time.time() - begin:.0f} s): {log.getvalue().strip().splitlines()[-1]}")
    return wrong == 0 and not status


def _check_all_close(a, b, rtol=1e-2, atol=1e-2, **_) -> float:
    """The share of elements outside the tolerance."""
    return (~torch.isclose(a, b, rtol=rtol, atol=atol)).float().mean().item()


def aiter(checkout: pathlib.Path) -> bool:
    import pytest

    pasa.compat.install("aiter")
    from pasa.compat import _ensure_package

    architecture = types.SimpleNamespace(name="")
    stubs = {
        "aiter.ops.triton.utils._triton": {"arch_info": types.SimpleNamespace(get_arch=lambda: architecture.name)},
        "aiter.test_common": {"checkAllclose": _check_all_close},
    }
    for name, contents in stubs.items():
        _ensure_package(name)
        vars(sys.modules[name]).update(contents)
    folder, passed = checkout / "op_tests" / "triton_tests" / "attention", True
    for name, test in (
        ("gfx950", "test_pa_decode_sparse.py"),
        ("gfx950", "test_pa_prefill_sparse.py"),
        ("gfx1250", "test_pa_prefill_sparse.py"),
    ):
        architecture.name = name
        for module in [module for module in sys.modules if module.startswith("test_pa_")]:
            del sys.modules[module]
        print(f"aiter {test} as {name}:", flush=True)
        status = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder / test)])
        passed = passed and status == 0
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("flash_mla", "aiter"))
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    if options.library == "flash_mla":
        return 0 if flash_mla(options.checkout, options.every, options.seconds) else 1
    return 0 if aiter(options.checkout) else 1


if __name__ == "__main__":
    sys.exit(main())
