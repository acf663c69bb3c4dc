#!/usr/bin/env python3
"""The command line as a user meets it: every subcommand, the exit codes 0 1 2 3, one line on stderr that names the tensor or
option, and no output file left behind by a failure. Standard library only.

  cli_test.py PASA README.md [unittest arguments]
"""
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PASA = README = ""

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1, "I32": 4, "I64": 8}


def pasa(*args, **kwargs):
    return subprocess.run([PASA, *map(str, args)], capture_output=True, text=True, timeout=120, **kwargs)


# ---- a second, independent reader and writer of the container

def read(path):
    """name -> (dtype, shape, bytes), metadata"""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = raw[8 + length :]
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}, metadata


def pack(tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def i32(*values):
    return struct.pack(f"<{len(values)}i", *values)


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def bf16(*values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def zeros(dtype, shape):
    return (dtype, shape, bytes(math.prod(shape) * SIZES[dtype]))


def small_case(kv_format="bf16"):
    """Two rows, two heads, three tokens a row; everything legal."""
    dim = 576 if kv_format == "fp8_v32" else 512
    pools = {
        "bf16": ("BF16", [8, dim]), "f16": ("F16", [8, dim]), "fp8_e4m3fn": ("F8_E4M3", [8, dim]),
        "fp8_e4m3fnuz": ("U8", [8, dim]), "fp8_ds_mla": ("U8", [2, 4, 584]), "packed_bf16": ("BF16", [2, 4, 512]),
        "fp8_v32": ("U8", [2, 4, 656]),
    }
    tensors = {
        "q": zeros("F16" if kv_format == "f16" else "BF16", [2, 2, dim]),
        "kv": zeros(*pools[kv_format]),
        "kv_indices": ("I32", [6], i32(0, 1, 2, 3, 4, 7)),
        "kv_indptr": ("I32", [3], i32(0, 3, 6)),
        "attn_sink": ("F32", [2], f32(0.5, float("-inf"))),
    }
    if kv_format.startswith("fp8_e4m3"):
        tensors["kv_scales"] = ("F32", [8, 8], f32(*[1.0] * 64))
    return tensors, {"kv_format": kv_format}


def mla_case():
    """Dense MLA decode: two queries share a list of five tokens, the RoPE part is a tensor of its own."""
    tensors = {
        "q": zeros("BF16", [2, 2, 576]),
        "kv": zeros("F8_E4M3", [8, 512]),
        "kv_pe": zeros("F8_E4M3", [8, 64]),
        "kv_indices": ("I32", [5], i32(0, 1, 2, 3, 7)),
        "kv_indptr": ("I32", [2], i32(0, 5)),
    }
    return tensors, {"kv_format": "fp8_e4m3fn", "kv_scale": "0.5", "queries_per_list": "2"}


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.case, self.result = Path(self.dir.name, "case.safetensors"), Path(self.dir.name, "result.safetensors")

    def write(self, tensors, metadata):
        self.case.write_bytes(pack(tensors, metadata))

    def make(self, text="decode:T=2,H=4,fmt=fp8_ds_mla,len=40"):
        done = pasa("make", text, "-o", self.case)
        self.assertEqual(done.returncode, 0, done.stderr)

    def assert_refused(self, done, code, *words):
        self.assertEqual(done.returncode, code, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        self.assertEqual(len(lines), 1, f"one line on stderr: {done.stderr!r}")
        for word in words:
            self.assertRegex(lines[0], r"(?<![\w])" + re.escape(word))
        self.assertFalse(self.result.exists(), "an output was left behind")
        self.assertEqual([p for p in Path(self.dir.name).iterdir() if p != self.case], [], "something was left behind")

    def refuse_case(self, tensors, metadata, *words):
        self.write(tensors, metadata)
        self.assert_refused(pasa("run", self.case, "-o", self.result), 2, *words)
        self.assert_refused(pasa("check", self.case), 2, *words)


class Work(Base):
    """make, run, check, bench, explain, info where all is well."""

    def test_make_is_seeded(self):
        self.make()
        first = self.case.read_bytes()
        self.make()
        self.assertEqual(first, self.case.read_bytes())
        self.make("decode:T=2,H=4,fmt=fp8_ds_mla,len=40,seed=1")
        self.assertNotEqual(first, self.case.read_bytes())

    def test_make_writes_what_the_format_page_says(self):
        self.make("decode:T=2,H=4,fmt=fp8_ds_mla+packed_bf16,len=40+20,page=64+2")
        tensors, metadata = read(self.case)
        self.assertEqual(metadata["kv_format"], "fp8_ds_mla")
        self.assertEqual(metadata["extra_kv_format"], "packed_bf16")
        self.assertEqual(tensors["q"][:2], ("BF16", [2, 4, 512]))
        self.assertEqual(tensors["kv"][1][1:], [64, 584])
        self.assertEqual(tensors["extra_kv"][1][1:], [2, 512])
        self.assertEqual(tensors["kv_indptr"][2], i32(0, 40, 80))
        self.assertEqual(tensors["extra_indices"][1], [40])

    def test_make_writes_mla_cases(self):
        self.make("mla:T=6,H=4,fmt=fp8_e4m3fn,len=20,queries=3,pe=apart,kv_scale=0.5,lengths=from0")
        tensors, metadata = read(self.case)
        self.assertEqual(metadata["kv_format"], "fp8_e4m3fn")
        self.assertEqual((metadata["kv_scale"], metadata["queries_per_list"]), ("0.5", "3"))
        self.assertEqual(tensors["q"][1], [6, 4, 576])
        self.assertEqual((tensors["kv"][1], tensors["kv_pe"][1]), ([40, 512], [40, 64]))
        self.assertEqual((tensors["kv_indices"][1], tensors["kv_lengths"][1]), ([2, 20], [2]))
        done = pasa("check", self.case)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_mla_gives_the_known_answer(self):
        tensors, metadata = mla_case()
        tensors["kv"] = ("F8_E4M3", [8, 512], b"\x40" * (8 * 512))  # 2.0
        self.write(tensors, metadata)
        done = pasa("run", self.case, "-o", self.result)
        self.assertEqual(done.returncode, 0, done.stderr)
        results, _ = read(self.result)
        self.assertEqual(results["out"][2], b"\x80\x3f" * (2 * 2 * 512))  # 1.0
        lse = struct.unpack("<4f", results["lse"][2])  # q is 0: ln of four tokens, then five
        for got, want in zip(lse, (math.log(4), math.log(4), math.log(5), math.log(5))):
            self.assertAlmostEqual(got, want, 5)

    def test_run_writes_a_result_file(self):
        self.make()
        done = pasa("run", self.case, "-o", self.result)
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors, metadata = read(self.result)
        self.assertEqual(tensors["out"][:2], ("BF16", [2, 4, 512]))
        self.assertEqual(tensors["lse"][:2], ("F32", [2, 4]))
        self.assertEqual(set(metadata), {"device", "kernel", "pasa_version"})
        self.assertTrue(all(math.isfinite(x) for x in struct.unpack("<8f", tensors["lse"][2])))

    def test_run_forces_kernels_splits_and_threads(self):
        self.make()
        for kernel in ("reference", "cpu:portable"):
            done = pasa("run", self.case, "-o", self.result, "--kernel", kernel, "--threads", 1)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(read(self.result)[1]["kernel"], kernel)
        for splits in (1, 3, 256):
            done = pasa("run", self.case, "-o", self.result, "--device", "cpu", "--splits", splits)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_format_runs_and_gives_the_known_answer(self):
        # q = 0: three keys of equal weight beside the sink exp(0.5) of head 0 and none of head 1.
        for kv_format in ("bf16", "f16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_ds_mla", "packed_bf16", "fp8_v32"):
            with self.subTest(kv_format):
                self.write(*small_case(kv_format))
                done = pasa("run", self.case, "-o", self.result)
                self.assertEqual(done.returncode, 0, done.stderr)
                tensors, _ = read(self.result)
                self.assertEqual(tensors["out"][0], "F16" if kv_format == "f16" else "BF16")
                self.assertEqual(tensors["out"][2], bytes(2 * 2 * 512 * 2))
                for lse in struct.unpack("<4f", tensors["lse"][2]):
                    self.assertAlmostEqual(lse, math.log(3), places=5)

    def test_rows_without_keys(self):
        tensors, metadata = small_case()
        tensors["kv_indices"] = ("I32", [2, 3], i32(-1, 8, 1000, -(2**31), 2**31 - 1, -7))
        del tensors["kv_indptr"]
        self.write(tensors, metadata)
        self.assertEqual(pasa("run", self.case, "-o", self.result).returncode, 0)
        result, _ = read(self.result)
        self.assertEqual(result["out"][2], bytes(2 * 2 * 512 * 2))
        self.assertEqual(result["lse"][2], f32(*[float("-inf")] * 4))

    def test_check_passes(self):
        self.make("decode:T=3,H=8,fmt=fp8_ds_mla+packed_bf16,len=40+20")
        done = pasa("check", self.case)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_check_finds_a_difference_and_says_where(self):
        tensors, metadata = small_case()
        tensors["expected_out"] = zeros("F32", [2, 2, 512])
        self.write(tensors, metadata)
        self.assertEqual(pasa("check", self.case).returncode, 0)
        wrong = bytearray(tensors["expected_out"][2])
        wrong[(1 * 1024 + 512 + 77) * 4 :][:4] = b""
        wrong[(1 * 1024 + 512 + 77) * 4 : (1 * 1024 + 512 + 77) * 4 + 4] = f32(1.0)
        tensors["expected_out"] = ("F32", [2, 2, 512], bytes(wrong[: 2 * 2 * 512 * 4]))
        self.write(tensors, metadata)
        done = pasa("check", self.case)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("77", done.stdout + done.stderr)

    def test_check_compares_expected_lse(self):
        tensors, metadata = small_case()
        tensors["expected_lse"] = ("F32", [2, 2], f32(*[math.log(3)] * 4))
        self.write(tensors, metadata)
        self.assertEqual(pasa("check", self.case).returncode, 0)
        tensors["expected_lse"] = ("F32", [2, 2], f32(1, 1, 2, 1))
        self.write(tensors, metadata)
        self.assertEqual(pasa("check", self.case).returncode, 1)

    def test_bench_json(self):
        self.make()
        done = pasa("bench", self.case, "--json", "--reps", 2, "--warmup", 0, "--no-roofline")
        self.assertEqual(done.returncode, 0, done.stderr)
        json.loads(done.stdout)

    def test_explain(self):
        self.make()
        done = pasa("explain", self.case)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cpu:portable", done.stdout)
        self.assertIn("workspace", done.stdout)

    def test_info(self):
        done = pasa("info")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("reference", done.stdout)
        self.assertIn("cpu:portable", done.stdout)

    def test_names_beginning_with_x_are_ignored(self):
        tensors, metadata = small_case()
        tensors["x_note"] = ("I64", [1], bytes(8))
        metadata["x_engine"] = "anything"
        self.write(tensors, metadata)
        self.assertEqual(pasa("check", self.case).returncode, 0)


class Emulator(Base):
    """The gfx950 emulator as a device, where the build has it."""

    DEVICE = "gfx950-emu"

    def setUp(self):
        super().setUp()
        if self.DEVICE not in json.loads(pasa("info", "--json").stdout)["emulated_devices"]:
            self.skipTest("built without the gfx950 emulator")

    def test_info(self):
        known = json.loads(pasa("info", "--json", "--device", self.DEVICE).stdout)
        self.assertEqual([d["name"] for d in known["devices"]], [self.DEVICE])
        self.assertTrue(next(k for k in known["kernels"] if k["name"] == "hip:gfx950")["available"])

    def test_run_writes_what_the_reference_says(self):
        self.make("decode:T=2,H=17,fmt=fp8_ds_mla+packed_bf16,len=70+20,invalid=0.2")
        done = pasa("run", self.case, "-o", self.result, "--device", self.DEVICE, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        ran = json.loads(done.stdout)
        self.assertEqual((ran["device"], ran["kernel"]), (self.DEVICE, "hip:gfx950"))
        self.assertGreater(ran["instructions"], 0)
        self.assertNotIn("seconds", ran)
        tensors, metadata = read(self.result)
        self.assertEqual(tensors["out"][:2], ("BF16", [2, 17, 512]))
        self.assertEqual(metadata["device"], self.DEVICE)
        done = pasa("check", self.case, "--device", self.DEVICE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_explain(self):
        done = pasa("explain", "decode:T=4,H=16,fmt=fp8_v32,len=100", "--device", self.DEVICE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "hip:gfx950 +chosen")

    def test_bench_counts_instructions(self):
        text = "decode:T=1,H=16,fmt=bf16,len=512,splits=4"
        done = pasa("bench", text, "--device", self.DEVICE, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        (row,) = json.loads(done.stdout)
        self.assertEqual((row["problem"], row["rows"], row["listed"]), (text, 4, 512))
        self.assertEqual(row["token"]["matrix"], 2)  # 16 heads x 1088 x 2 FLOP over 16 x 16 x 32 x 2, rounded up
        self.assertEqual(row["tile"]["matrix_passes"], 64 * row["token"]["matrix_passes"])
        for part in ("token", "fixed", "merge", "total"):
            kinds = ("matrix", "vector", "transcendental", "lds", "memory", "scalar", "waits")
            self.assertAlmostEqual(sum(row[part][kind] for kind in kinds), row[part]["instructions"])
        rows = row["rows"] * row["fixed"]["instructions"] + row["listed"] * row["token"]["instructions"]
        self.assertAlmostEqual(rows + row["merge"]["instructions"], row["total"]["instructions"])
        self.assertNotIn("median_s", row)
        table = pasa("bench", text, "--device", self.DEVICE)
        self.assertIn("a tile of 64 tokens", table.stdout)
        self.assertNotRegex(table.stdout, r"\d (us|ms|ns)\b")

    def test_selftest(self):
        done = pasa("selftest", "--device", self.DEVICE, "-o", self.result)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads(self.result.read_text())
        self.assertEqual(report["device"], self.DEVICE)
        self.assertRegex(report["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertTrue(any(k["name"] == "hip:gfx950" and k["available"] for k in report["kernels"]))
        self.assertGreater(report["summary"]["ok"], 10)
        self.assertEqual(report["summary"]["differ"] + report["summary"]["failed"], 0)
        self.assertEqual(sum(report["summary"].values()), len(report["cases"]))
        self.assertEqual(report["times"], [])  # an emulator keeps none
        self.assertEqual(list(Path(self.dir.name).iterdir()), [self.result])

    def test_bad_input(self):
        tensors, metadata = small_case("fp8_ds_mla")
        tensors["kv_indptr"] = ("I32", [3], i32(0, 5, 3))
        self.write(tensors, metadata)
        self.assert_refused(pasa("run", self.case, "-o", self.result, "--device", self.DEVICE), 2, "kv_indptr")
        self.make()
        self.assert_refused(pasa("run", self.case, "-o", self.result, "--device", "gfx900-emu"), 3, "gfx900-emu")
        self.assert_refused(pasa("run", self.case, "-o", self.result, "--device", self.DEVICE, "--kernel", "cpu:avx2"),
                            3, "cpu:avx2")


class Arguments(Base):
    def test_usage_errors(self):
        for arguments in (["nonsense"], ["run"], ["run", "a", "--nonsense"], ["run", "a", "--splits", "x"]):
            with self.subTest(arguments):
                self.assertEqual(pasa(*arguments, cwd=self.dir.name).returncode, 2)

    def test_help(self):
        for arguments in (["--help"], ["run", "--help"], ["make", "--help"], ["selftest", "--help"]):
            done = pasa(*arguments)
            self.assertEqual(done.returncode, 0)
            self.assertIn("Usage", done.stdout)

    def test_missing_file(self):
        self.assert_refused(pasa("run", Path(self.dir.name, "no.safetensors"), "-o", self.result), 2, "no.safetensors")

    def test_bad_description(self):
        self.assert_refused(pasa("make", "decode:T=2,HH=4", "-o", self.result), 2, "HH")
        self.assert_refused(pasa("make", "decode:fmt=fp4", "-o", self.result), 2, "fmt")

    def test_splits_out_of_range(self):
        self.make()
        for splits in ("257", "-1"):
            self.assert_refused(pasa("run", self.case, "-o", self.result, f"--splits={splits}"), 2, splits)

    def test_unwritable_result(self):
        self.make()
        done = pasa("run", self.case, "-o", Path(self.dir.name, "no", "such", "folder"))
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_missing_kernel_or_device(self):
        self.make()
        self.assert_refused(pasa("run", self.case, "-o", self.result, "--kernel", "cpu:nonsense"), 3, "cpu:nonsense")
        self.assert_refused(pasa("run", self.case, "-o", self.result, "--device", "cuda:99"), 3, "cuda:99")

    def test_selftest_without_the_device(self):
        for device in ("hip:99", "cuda:99", "nonsense"):
            self.assert_refused(pasa("selftest", "--device", device, "-o", self.result), 3, device)
        nowhere = Path(self.dir.name, "no", "such")
        self.assert_refused(pasa("selftest", "--device", "cpu", "-o", nowhere), 2, str(nowhere)[1:])
        self.assert_refused(pasa("selftest", "--nonsense", "-o", self.result), 2, "--nonsense"[2:])

    def test_declining_kernel(self):
        self.make("decode:T=1,H=2,fmt=fp8_ds_mla,len=4,q=f16")
        listed = pasa("info").stdout
        if "cpu:amx" in listed:  # serves bf16 queries only, or is not there: either way 3
            self.assert_refused(pasa("run", self.case, "-o", self.result, "--kernel", "cpu:amx"), 3, "cpu:amx")

    def test_a_failed_run_keeps_the_old_result(self):
        self.make()
        self.result.write_text("precious")
        self.case.write_bytes(self.case.read_bytes()[:-8])
        self.assertEqual(pasa("run", self.case, "-o", self.result).returncode, 2)
        self.assertEqual(self.result.read_text(), "precious")


class Tune(Base):
    SHAPE = "decode:T=2,H=16,fmt=bf16,len=64,lists=rect"

    def setUp(self):
        super().setUp()
        self.table = Path(self.dir.name, "cache", "tune.json")

    def explain(self, shape=SHAPE, **environment):
        done = pasa("explain", shape, "--device", "cpu", "--json", env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        (entry,) = json.loads(done.stdout)
        return entry

    def tune(self, *args):
        done = pasa("tune", self.SHAPE, "--device", "cpu", "--out", self.table, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_table_and_its_use(self):
        self.assertIn("of 1 shapes", self.tune())
        report = json.loads(self.tune("--json", "--reps", "3"))
        self.assertEqual((report["shapes"], report["rows"][0]["keys"]), (1, "16-bit"))
        table = json.loads(self.table.read_text())
        self.assertEqual(len(table["machines"][report["machine"]]), report["won"])
        self.assertEqual(list(self.table.parent.iterdir()), [self.table])

        # Who wins is chance: a table of our own says 5 splits.
        entry = {"kernel": report["kernel"], "keys": "16-bit", "heads": 16, "tokens": 2, "length": 64, "splits": 5}
        table["machines"] = {report["machine"]: [entry], "another machine": [{**entry, "splits": 7}]}
        self.table.write_text(json.dumps(table))
        tuned = self.explain(PASA_TUNE_TABLE=str(self.table))
        self.assertEqual((tuned["kernel"], tuned["splits"]), (report["kernel"], 5))
        self.assertIn(f"tuned: {self.table}: as for 16 heads, 2 rows, 64 keys", tuned["plan"])
        self.assertNotEqual(self.explain(PASA_TUNE_TABLE="")["splits"], 5)
        without = {k: v for k, v in os.environ.items() if k != "PASA_TUNE_TABLE"}
        (self.table.parent / "pasa").mkdir()
        (self.table.parent / "pasa" / "tune.json").write_text(self.table.read_text())
        done = pasa("explain", self.SHAPE, "--device", "cpu", "--json",
                    env={**without, "XDG_CACHE_HOME": str(self.table.parent)})
        self.assertEqual(json.loads(done.stdout)[0]["splits"], 5)
        done = pasa("check", self.SHAPE, "--device", "cpu", env={**os.environ, "PASA_TUNE_TABLE": str(self.table)})
        self.assertEqual(done.returncode, 0, done.stdout)

        # Tuning this shape again replaces its entry and no other.
        self.tune()
        kept = json.loads(self.table.read_text())["machines"]
        self.assertEqual(kept["another machine"], [{**entry, "splits": 7}])
        self.assertNotIn(5, [e["splits"] for e in kept[report["machine"]] if "gain" not in e])

    def test_a_table_that_is_not_used_says_why(self):
        self.table.parent.mkdir()
        shipped = self.explain(PASA_TUNE_TABLE="")
        self.assertIn("not tuned: no table is named", shipped["plan"])
        for text, reason in (
            (None, "no such file"),
            ("", "expected { at byte 0"),
            ('{"pasa": "0.0.1", "machines": {}}', "made by pasa 0.0.1"),
            (json.dumps({"pasa": self.version(), "machines": {"toaster": []}}), "nothing about"),
        ):
            if text is not None:
                self.table.write_text(text)
            plan = self.explain(PASA_TUNE_TABLE=str(self.table))
            self.assertIn(f"not tuned: {self.table}: {reason}", plan["plan"])
            self.assertEqual(plan["splits"], shipped["splits"])

    def version(self):
        return json.loads(pasa("info", "--json").stdout)["version"]

    def test_a_file_that_is_no_table_is_named_before_it_is_replaced(self):
        self.table.parent.mkdir()
        self.table.write_text("[]")
        done = pasa("tune", self.SHAPE, "--device", "cpu", "--out", self.table)
        self.assertEqual(done.returncode, 0)
        self.assertIn(f"will be replaced: {self.table}: expected", done.stderr)

    def test_refusals(self):
        self.assert_refused(pasa("tune", "--device", "cuda:99", "--out", self.result), 3, "cuda:99")
        self.assert_refused(pasa("tune", "--kernel", "reference", "--out", self.result), 3, "reference")
        self.assert_refused(pasa("tune", "--kernel", "cpu:nonsense", "--out", self.result), 3, "cpu:nonsense")
        self.assert_refused(pasa("tune", "--nonsense", "--out", self.result), 2, "nonsense")
        if "gfx950-emu" in pasa("info").stdout:
            self.assert_refused(pasa("tune", "--device", "gfx950-emu", "--out", self.result), 3, "keeps no time")
        blocked = Path(self.dir.name, "file")
        blocked.write_text("")
        self.assertEqual(pasa("tune", "--device", "cpu", "--out", blocked / "tune.json").returncode, 2)


class Container(Base):
    """Files that are no safetensors file, or that lie in their header."""

    def refuse_bytes(self, data, *words):
        self.case.write_bytes(data)
        self.assert_refused(pasa("run", self.case, "-o", self.result), 2, *words)

    def refuse_header(self, text, data=b"", *words):
        raw = text.encode()
        self.refuse_bytes(struct.pack("<Q", len(raw)) + raw + data, *words)

    def test_too_short(self):
        self.refuse_bytes(b"")
        self.refuse_bytes(b"1234567")

    def test_truncated_everywhere(self):
        whole = pack(*small_case())
        (length,) = struct.unpack_from("<Q", whole)
        for keep in (8, 9, 8 + length // 2, 8 + length - 1, 8 + length, len(whole) // 2, len(whole) - 1):
            with self.subTest(keep):
                self.refuse_bytes(whole[:keep])

    def test_header_length(self):
        whole = pack(*small_case())
        for length in (len(whole), 100_000_000, 2**40, 2**63, 2**64 - 1):
            with self.subTest(length):
                self.refuse_bytes(struct.pack("<Q", length) + whole[8:], "header")

    def test_a_huge_header_asks_for_no_memory(self):
        # 99 MB claimed by a sparse file of that size: refused as JSON, within a small address space.
        with open(self.case, "wb") as file:
            file.write(struct.pack("<Q", 99_999_999) + b'{"q":')
            file.truncate(8 + 99_999_999)
        limit = 1 << 30
        import resource
        done = pasa("run", self.case, "-o", self.result,
                    preexec_fn=None if "sanit" in os.environ.get("PASA_BUILD", "") else
                    lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        self.assert_refused(done, 2, "JSON")

    def test_a_huge_tensor_asks_for_no_memory(self):
        self.refuse_header('{"q":{"dtype":"BF16","shape":[1000000000000,2,512],"data_offsets":[0,2048000000000000]}}', b"", "q")

    def test_bad_json(self):
        for text in ("", "{", "[]", "1", "null", '{"q"}', '{"q":1}', '{"q":{"dtype":"BF16"}}', '{"a":' * 100000, "\xff\xfe",
                     '{"q":{"dtype":"BF16","shape":[1.5],"data_offsets":[0,2]}}',
                     '{"q":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}}',
                     '{"__metadata__":{"kv_format":7}}'):
            with self.subTest(text[:40]):
                self.refuse_header(text)

    def test_overlap_and_range(self):
        tensor = '"%s":{"dtype":"I32","shape":[2],"data_offsets":[%d,%d]}'
        self.refuse_header("{" + tensor % ("q", 0, 8) + "," + tensor % ("kv", 4, 12) + "}", bytes(12), "'q'", "'kv'")
        self.refuse_header("{" + tensor % ("q", 8, 16) + "}", bytes(12), "'q'")
        self.refuse_header("{" + tensor % ("q", 8, 0) + "}", bytes(12), "'q'")
        self.refuse_header("{" + tensor % ("q", 0, 4) + "}", bytes(12), "'q'")
        self.refuse_header('{"q":{"dtype":"I32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}', b"", "'q'")

    def test_duplicate_name(self):
        tensor = '"q":{"dtype":"I32","shape":[1],"data_offsets":[%d,%d]}'
        self.refuse_header("{" + tensor % (0, 4) + "," + tensor % (4, 8) + "}", bytes(8), "'q'")

    def test_unknown_dtype(self):
        self.refuse_header('{"q":{"dtype":"BF15","shape":[1],"data_offsets":[0,2]}}', bytes(2), "BF15")

    def test_control_characters_do_not_break_the_line(self):
        self.refuse_header('{"a\\nb\\u001b[31m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1))


class Names(Base):
    def test_misspelt_tensor(self):
        tensors, metadata = small_case()
        tensors["attn_snik"] = tensors.pop("attn_sink")
        self.refuse_case(tensors, metadata, "attn_snik")

    def test_misspelt_metadata(self):
        tensors, metadata = small_case()
        self.refuse_case(tensors, {**metadata, "softmax_scal": "1"}, "softmax_scal")

    def test_all_unknown_names_are_listed(self):
        tensors, metadata = small_case()
        tensors["one_more"] = tensors["and_another"] = tensors["attn_sink"]
        self.refuse_case(tensors, metadata, "one_more", "and_another")

    def test_format(self):
        tensors, _ = small_case()
        self.refuse_case(tensors, {}, "kv_format")
        self.refuse_case(tensors, {"kv_format": "fp4"}, "kv_format")
        self.refuse_case(tensors, {"kv_format": "bf16", "extra_kv_format": "bf16"}, "extra_kv")

    def test_scale(self):
        tensors, metadata = small_case()
        for scale in ("", "x", "0.1x", "nan", "inf", "1e999"):
            with self.subTest(scale):
                self.refuse_case(tensors, {**metadata, "softmax_scale": scale}, "softmax_scale")

    def test_mla_metadata(self):
        tensors, metadata = mla_case()
        for key, values in (("kv_scale", ("", "x", "0", "nan", "-inf")),
                            ("queries_per_list", ("", "x", "0", "-2", "1.5", "4294967297"))):
            for value in values:
                with self.subTest(f"{key} {value}"):
                    self.refuse_case(tensors, {**metadata, key: value}, key)
        self.refuse_case(tensors, {**metadata, "queries_per_list": "3"}, "q", "queries_per_list")

    def test_missing_tensors(self):
        for name in ("q", "kv", "kv_indices", "kv_indptr"):
            with self.subTest(name):
                tensors, metadata = small_case()
                del tensors[name]
                self.refuse_case(tensors, metadata, name)


class Tensors(Base):
    """The operator's preconditions on a file's tensors: exit 2 and the tensor's name."""

    ROWS = [
        ("q", "bf16", ("F32", [2, 2, 512])),
        ("q", "bf16", ("BF16", [2, 1024])),
        ("q", "bf16", ("BF16", [2, 2, 500])),
        ("q", "bf16", ("BF16", [2, 0, 512])),
        ("kv", "bf16", ("F16", [8, 512])),
        ("kv", "bf16", ("BF16", [8, 448])),
        ("kv", "fp8_ds_mla", ("U8", [2, 4, 583])),
        ("kv", "fp8_ds_mla", ("U8", [2, 4, 528])),
        ("kv", "fp8_ds_mla", ("U8", [8, 584])),
        ("kv", "fp8_ds_mla", ("U8", [2, 0, 584])),
        ("kv", "fp8_v32", ("U8", [2, 4, 584])),
        ("kv", "packed_bf16", ("BF16", [2, 4, 448])),
        ("kv", "fp8_e4m3fn", ("BF16", [8, 512])),
        ("kv_scales", "fp8_e4m3fn", ("F32", [8, 4])),
        ("kv_scales", "fp8_e4m3fn", ("F16", [8, 8])),
        ("kv_scales", "fp8_e4m3fnuz", ("F32", [7, 8])),
        ("kv_scales", "fp8_e4m3fnuz", None),
        ("kv_scales", "bf16", ("F32", [8, 8])),
        ("kv_indices", "bf16", ("I64", [6])),
        ("kv_indices", "bf16", ("I32", [2, 1, 3])),
        ("kv_indptr", "bf16", ("I32", [4])),
        ("kv_indptr", "bf16", ("F32", [3])),
        ("kv_lengths", "bf16", ("I32", [2])),
        ("attn_sink", "bf16", ("F32", [3])),
        ("attn_sink", "bf16", ("BF16", [2])),
        ("attn_sink", "bf16", ("F32", [1, 2])),
        ("extra_indices", "bf16", ("I32", [2, 3])),
        ("extra_kv", "bf16", ("BF16", [8, 512])),
        ("expected_out", "bf16", ("F32", [2, 2, 448])),
        ("expected_lse", "bf16", ("BF16", [2, 2])),
    ]

    def test_rows(self):
        for name, kv_format, change in self.ROWS:
            with self.subTest(f"{name} {kv_format} {change}"):
                tensors, metadata = small_case(kv_format)
                tensors.pop(name, None)
                if change:
                    tensors[name] = zeros(*change)
                blamed = "extra_indices" if name == "extra_kv" else name
                self.refuse_case(tensors, metadata, blamed)

    def test_mla_rows(self):
        for name, change in (
            ("kv_pe", ("F8_E4M3", [8, 63])),
            ("kv_pe", ("F8_E4M3", [7, 64])),
            ("kv_pe", ("F8_E4M3", [512])),
            ("kv_pe", ("BF16", [8, 64])),
            ("kv", ("F8_E4M3", [8, 576])),
            ("kv_scales", ("F32", [8, 9])),
            ("kv_indptr", ("I32", [3])),
        ):
            with self.subTest(f"{name} {change}"):
                tensors, metadata = mla_case()
                self.refuse_case({**tensors, name: zeros(*change)}, metadata, name)
        tensors, metadata = mla_case()
        del tensors["kv_pe"]
        self.refuse_case(tensors, metadata, "kv")
        tensors, metadata = small_case()
        self.refuse_case({**tensors, "kv_pe": zeros("BF16", [8, 64])}, metadata, "kv_pe")

    def test_malformed_lists_are_value_errors(self):
        for indptr in ((1, 3, 6), (0, 4, 3), (0, 3, 5), (0, 3, 7)):
            tensors, metadata = small_case()
            tensors["kv_indptr"] = ("I32", [3], i32(*indptr))
            self.refuse_case(tensors, metadata, "kv_indptr")
        for length in (-1, 4):
            tensors, metadata = small_case()
            tensors["kv_indices"] = ("I32", [2, 3], i32(0, 1, 2, 3, 4, 5))
            del tensors["kv_indptr"]
            tensors["kv_lengths"] = ("I32", [2], i32(1, length))
            self.refuse_case(tensors, metadata, "kv_lengths")


class Memory(Base):
    """The pool is mapped, not read: a case whose pool is larger than the allowed memory runs."""

    def test_a_pool_larger_than_memory(self):
        import resource
        slots = 4 << 20  # 4 GiB of bf16 rows, sparse on disk
        tensors, metadata = small_case()
        pool = slots * 1024
        small = {k: v for k, v in tensors.items() if k != "kv"}
        header, offset = {"__metadata__": metadata}, 0
        for name, (dtype, shape, values) in small.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(values)]}
            offset += len(values)
        start = (offset + 63) // 64 * 64
        header["x_pad"] = {"dtype": "U8", "shape": [start - offset], "data_offsets": [offset, start]}
        header["kv"] = {"dtype": "BF16", "shape": [slots, 512], "data_offsets": [start, start + pool]}
        text = json.dumps(header)
        text += " " * (-(8 + len(text)) % 64)
        with open(self.case, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text.encode() + b"".join(v[2] for v in small.values()))
            file.truncate(8 + len(text) + start + pool)
        limit = 1 << 30
        done = pasa("run", self.case, "-o", self.result, "--device", "cpu", "--threads", 1,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(read(self.result)[0]["out"][2], bytes(2 * 2 * 512 * 2))


class Readme(Base):
    def test_the_commands_of_the_readme(self):
        text = Path(README).read_text()
        blocks = [b for b in re.findall(r"```sh\n(.*?)```", text, re.S) if "build/tools/pasa" in b]
        self.assertEqual(len(blocks), 1)
        commands = [line.split("#")[0].strip() for line in blocks[0].splitlines() if line.strip()]
        self.assertGreaterEqual(len(commands), 5)
        for command in commands:
            with self.subTest(command):
                # A smaller problem: the point is that the commands exist and fit each other.
                command = command.replace("build/tools/pasa", PASA).replace("T=64,H=128", "T=2,H=16")
                done = subprocess.run(["bash", "-c", command], cwd=self.dir.name, capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    PASA, README = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
