#!/usr/bin/env python3
"""Runs the sparse-attention suites of other libraries, unmodified, against pasa's versions of their calls, on a GPU.

    peers.py flash_mla CHECKOUT     tests/test_flash_mla_sparse_{decoding,prefill}.py
    peers.py aiter CHECKOUT         op_tests/triton_tests/attention/test_pa_{decode,prefill}_sparse.py

CHECKOUT is a copy of the library's repository outside this one; of its code only the tests are imported. What they ask
of the rest of their library is stood in for: the architecture (aiter skips by it: a suite runs once as every architecture
it names), a tolerance check, the profiler (FlashMLA looks for its kernels' names; times are not judged).

A suite is dealt to --jobs processes that share the GPU; FlashMLA's prefill suite is one program and has one of its own.
--seconds is when no more tests are begun (but for that suite); tests run in an order drawn at random, so that those done
are a sample of all; --backwards begins at that order's end (FlashMLA only). --suite is part of a suite's name and leaves
out the others. --only takes a pytest expression, --host needs no GPU: what a test asks of cuda is done in host memory
(both aiter only). --json adds the counts to a file; --commit and --revision say there what was tested with what.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import io
import json
import multiprocessing
import pathlib
import random
import re
import runpy
import shlex
import sys
import time
import traceback
import types

import pasa.compat
import pytest
import torch

OUTCOMES = ("passed", "failed", "skipped", "not_run")


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


def _prepare_flash_mla(checkout: pathlib.Path) -> None:
    pasa.compat.install("flash_mla")
    sys.path.insert(0, str(checkout / "tests"))
    import kernelkit

    kernelkit.bench_kineto = _profile
    torch.set_default_device("cuda:0")
    torch.set_default_dtype(torch.bfloat16)
    torch.set_float32_matmul_precision("high")


def flash_mla_decode(checkout: pathlib.Path, share: int, jobs: int, end: float, backwards: bool) -> tuple[dict, str]:
    _prepare_flash_mla(checkout)
    import test_flash_mla_sparse_decoding as suite

    cases = [raw.to_test_param() for raw in suite.gen_testcase()]
    for seed, case in enumerate(cases):
        case.seed = seed  # as in a run of the whole suite
    random.Random(0).shuffle(cases)
    counts, failures = collections.Counter(), ""
    for case in reversed(cases[share::jobs]) if backwards else cases[share::jobs]:
        if time.time() > end:
            counts["not_run"] += 1
            continue
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            correct = _with_memory(lambda: suite.test_flash_mla(case)).is_correct
        _share_memory()
        counts["passed" if correct else "failed"] += 1
        failures += "" if correct else log.getvalue()
    return counts, failures


def _share_memory() -> None:
    """Returns what torch keeps for later: other processes share the GPU."""
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 4 << 30:
        torch.cuda.empty_cache()


def _with_memory(run):
    """A case's reference may need memory that a neighbour's has for a moment."""
    for _ in range(30):
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            return run()
        torch.cuda.empty_cache()
        time.sleep(random.uniform(1, 3))
    return run()


def flash_mla_prefill(checkout: pathlib.Path) -> tuple[dict, str]:
    _prepare_flash_mla(checkout)
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            runpy.run_path(str(checkout / "tests" / "test_flash_mla_sparse_prefill.py"), run_name="__main__")
    except SystemExit:
        pass
    verdicts = re.findall(r"All (\d+) cases passed|(\d+) / (\d+) cases failed", log.getvalue())
    every, failed, of = (int(number or 0) for number in verdicts[-1])
    return {"passed": every or of - failed, "failed": failed}, log.getvalue() if failed else ""


class _Share:
    """A pytest plugin: leaves out the tests of other processes and those after the end, counts outcomes."""

    def __init__(self, share: int, jobs: int, end: float):
        self.share, self.jobs, self.end, self.counts = share, jobs, end, collections.Counter()

    @pytest.hookimpl(tryfirst=True)  # before --only
    def pytest_collection_modifyitems(self, items):
        random.Random(0).shuffle(items)
        items[:] = items[self.share :: self.jobs]

    def pytest_deselected(self, items):
        self.counts["not_run"] += len(items)

    def pytest_runtest_protocol(self, item):
        if time.time() <= self.end:
            return None  # as usual
        self.counts["not_run"] += 1
        return True

    def pytest_runtest_teardown(self):
        _share_memory()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1


class _OnHost(torch.overrides.TorchFunctionMode):
    """Every tensor that is asked for on cuda is made in host memory."""

    def __enter__(self):
        torch.cuda.is_available = lambda: True
        torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
        torch.cuda.mem_get_info = lambda *_: (8 << 30, 8 << 30)
        return super().__enter__()

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = {name: self.moved(value) for name, value in (keywords or {}).items()}
        return function(*map(self.moved, arguments), **keywords)

    @staticmethod
    def moved(value):
        on_gpu = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
        return torch.device("cpu") if on_gpu else value


def _check_all_close(a, b, rtol=1e-2, atol=1e-2, **_) -> float:
    """The share of elements outside the tolerance."""
    return (~torch.isclose(a, b, rtol=rtol, atol=atol)).float().mean().item()


def aiter(
    checkout: pathlib.Path, test: str, architecture: str, share: int, jobs: int, end: float, only: str, on_host: bool
) -> tuple[dict, str]:
    pasa.compat.install("aiter")
    from pasa.compat import _ensure_package

    stubs = {
        "aiter.ops.triton.utils._triton": {"arch_info": types.SimpleNamespace(get_arch=lambda: architecture)},
        "aiter.test_common": {"checkAllclose": _check_all_close},
    }
    for name, contents in stubs.items():
        _ensure_package(name)
        vars(sys.modules[name]).update(contents)
    for module in [module for module in sys.modules if module.startswith("test_pa_")]:
        del sys.modules[module]  # it asked for the architecture when it was imported
    folder = checkout / "op_tests" / "triton_tests" / "attention"
    plugin, log = _Share(share, jobs, end), io.StringIO()
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-k", only, str(folder / test)]
    with contextlib.redirect_stdout(log), _OnHost() if on_host else contextlib.nullcontext():
        status = pytest.main(options, [plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not plugin.counts["failed"]:
        plugin.counts["failed"] += 1  # nothing could be collected
    return plugin.counts, log.getvalue() if plugin.counts["failed"] else ""


def suites(options: argparse.Namespace, end: float) -> list[tuple]:
    """(name, function, arguments) of each process's work."""
    checkout, jobs = options.checkout, options.jobs
    if options.peer == "flash_mla":
        decode = [
            ("decode", flash_mla_decode, (checkout, share, jobs, end, options.backwards)) for share in range(jobs)
        ]
        work = [("prefill", flash_mla_prefill, (checkout,)), *decode]
    else:
        work = [
            (
                f"{test.split('_')[2]} as {architecture}",
                aiter,
                (checkout, test, architecture, share, jobs, end, options.only, options.host),
            )
            for test, architecture in (
                ("test_pa_decode_sparse.py", "gfx950"),
                ("test_pa_prefill_sparse.py", "gfx950"),
                ("test_pa_prefill_sparse.py", "gfx1250"),
            )
            for share in range(jobs)
        ]
    return [part for part in work if options.suite in part[0]]


def _host_name() -> str:
    return re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("flash_mla", "aiter"))
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--suite", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--backwards", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--commit", default="", help="of pasa")
    parser.add_argument("--revision", default="", help="of the checkout")
    options = parser.parse_args()
    if options.peer == "flash_mla" and (options.only or options.host):
        parser.error("--only and --host are for aiter's tests")
    if options.peer == "aiter" and options.backwards:
        parser.error("--backwards is for FlashMLA's tests")

    command = f"peers.py {options.peer} CHECKOUT --jobs {options.jobs}"
    command += f" --seconds {options.seconds:g}" if options.seconds < float("inf") else ""
    command += f" --suite {shlex.quote(options.suite)}" if options.suite else ""
    command += f" --only {shlex.quote(options.only)}" if options.only else ""
    command += " --host" if options.host else ""
    command += " --backwards" if options.backwards else ""
    begin, counts = time.time(), collections.defaultdict(lambda: dict.fromkeys(OUTCOMES, 0))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs + 1, mp_context=context) as pool:
        work = suites(options, begin + options.seconds)
        running = {pool.submit(function, *arguments): name for name, function, arguments in work}
        for done in concurrent.futures.as_completed(running):
            try:
                found, failures = done.result()
            except Exception:  # the rest of its share is lost
                found, failures = {"failed": 1}, traceback.format_exc()
            for outcome, count in found.items():
                counts[running[done]][outcome] += count
            print(failures, end="", flush=True)
    for name, of in counts.items():
        print(f"{options.peer} {name}: " + ", ".join(f"{count} {outcome}" for outcome, count in of.items()))
    if options.json:
        results = json.loads(options.json.read_text()) if options.json.exists() else {}
        for name, of in counts.items():
            how = " on the CPU" if options.host else ", backwards" if options.backwards else ""
            results[f"{options.peer} {name}{how}"] = {
                **of,
                "revision": options.revision,
                "device": _host_name() if options.host else torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "date": datetime.date.today().isoformat(),
                "commit": options.commit,
                "command": command,
                "seconds": round(time.time() - begin),
            }
        options.json.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    return any(of["failed"] for of in counts.values())


if __name__ == "__main__":
    sys.exit(main())
