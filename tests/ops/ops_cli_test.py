#!/usr/bin/env python3
"""`pasa cache` and `pasa indices` end to end: worked examples of the specification through files, and refusals with exit
status 2, one line on stderr and no output file."""
import array
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

PASA = sys.argv.pop(1)


def save(path, tensors, metadata=None):
    header, blob = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + blob)


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    return {
        name: (t["dtype"], t["shape"], data[8 + size :][t["data_offsets"][0] : t["data_offsets"][1]])
        for name, t in header.items()
        if name != "__metadata__"
    }


def i32(*values):
    return ("I32", [len(values)], array.array("i", values).tobytes())


def table(*rows):
    return ("I32", [len(rows), len(rows[0])], array.array("i", sum(rows, [])).tobytes())


def values(tensor):
    return list(array.array({"I32": "i", "I64": "q"}[tensor[0]], tensor[2]))


def golden_key():
    words = (struct.pack("<f", ((37 * d % 101) - 50) / 16 * 2.0 ** -(d // 64))[2:] for d in range(512))
    return ("BF16", [1, 512], b"".join(words))


class Operations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input, self.output = os.path.join(folder.name, "in.safetensors"), os.path.join(folder.name, "out.safetensors")

    def pasa(self, tensors, *words, metadata=None):
        save(self.input, tensors, metadata)
        done = subprocess.run([PASA, *words, self.input, "-o", self.output], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return load(self.output)

    def refused(self, tensors, text, *words):
        save(self.input, tensors)
        done = subprocess.run([PASA, *words, self.input, "-o", self.output], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, text)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertFalse(os.path.exists(self.output))

    def test_write_and_gather(self):
        pool = ("U8", [2, 4, 584], bytes(2 * 4 * 584))
        out = self.pasa({"kv": pool, "k": golden_key(), "slot_mapping": i32(5)}, "cache", "write", metadata={"kv_format": "fp8_ds_mla"})
        record = out["kv"][2][4 * 584 + 576 :][:576]
        self.assertEqual(zlib.crc32(record), 0xB44020E5)
        out = self.pasa({"kv": out["kv"], "slots": i32(5, -1)}, "cache", "gather", "--format", "fp8_ds_mla")
        first = [struct.unpack("<f", b"\0\0" + out["out"][2][2 * i : 2 * i + 2])[0] for i in range(8)]
        self.assertEqual(first, [-3.0, -0.8125, 1.5, -2.5, -0.1875, 2.0, -1.875, 0.4375])
        self.assertEqual(out["out"][1], [2, 512])
        sequences = {"kv": pool, "seq_lens": i32(6, 3), "gather_lens": i32(2, 3), "block_table": table([0, 1], [1, 0])}
        out = self.pasa(sequences, "cache", "gather", "--format", "fp8_ds_mla", "--offset", "1", "--dtype", "f16")
        self.assertEqual((out["out"][0], out["out"][1]), ("F16", [2, 4, 512]))

    def test_slots_and_counts(self):
        positions = {"positions": i32(0, 300, 600, 768), "token_to_req": i32(0, 0, 0, 0), "block_table": table([7, 3, 9])}
        self.assertEqual(values(self.pasa(positions, "indices", "slots", "--block-size", "256")["slots"]), [1792, 812, 2392, -1])
        positions["positions"] = i32(2, 3, 299, 255)
        out = self.pasa(positions, "indices", "slots", "--block-size", "64", "--ratio", "4")
        self.assertEqual(values(out["slots"]), [-1, 448, 202, 511])
        out = self.pasa({"positions": i32(2, 8191)}, "indices", "counts", "--window", "128", "--ratio", "4", "--topk", "512")
        self.assertEqual((values(out["n_window"]), values(out["n_compressed"])), ([3, 128], [0, 512]))

    def lists(self, out):
        indptr, indices = values(out["indptr"]), values(out["indices"])
        self.assertEqual([b - a for a, b in zip(indptr, indptr[1:])], values(out["lengths"]))
        self.assertEqual(len(indices), indptr[-1])
        return [indices[a:b] for a, b in zip(indptr, indptr[1:])]

    def test_lists(self):
        dense = {"indices": table([5, 6, 7], [8, -1, 9], [1, 2, 3]), "lengths": i32(2, 3, 3)}
        self.assertEqual(self.lists(self.pasa(dense, "indices", "dense", "--num-rows", "9")), [[5, 6], [8, -1, -1], [1, 2, 3]])
        topk = {
            "topk_indices": table([0, 3, 4, -1], [5, 8, -1, -1], [2, 7, 9, -1]),
            "token_to_req": i32(0, 1, 1),
            "block_table": table([10, 11, 12], [20, 21, 22]),
            "is_valid": ("BOOL", [3], bytes([1, 0, 1])),
        }
        self.assertEqual(self.lists(self.pasa(topk, "indices", "topk", "--block-size", "4")), [[40, 43, 44], [], [82, 87, 89]])
        out = self.pasa(topk, "indices", "topk", "--block-size", "4", "--rect")
        self.assertEqual(values(out["indices"]), [40, 43, 44, -1, -1, -1, -1, -1, 82, 87, 89, -1])
        combine = {
            "topk_indices": table(*[[base + j for j in range(4)] for base in (100, 110, 120, 130, 140)]),
            "query_start_loc": i32(0, 3, 5),
            "seq_lens": i32(6, 4),
            "gather_lens": i32(5, 4),
        }
        words = "--window 3 --ratio 2 --topk 4 --rows-per-request 240 --compressed-rows 200".split()
        self.assertEqual(self.lists(self.pasa(combine, "indices", "combine", *words))[3], [370, 440, 441, 442])
        window = {"positions": i32(5), "block_table": table([7, 3])}
        self.assertEqual(self.lists(self.pasa(window, "indices", "window", "--window", "4", "--block-size", "4")), [[30, 31, 12, 13]])
        numbers = self.pasa({"positions": i32(383, 100)}, "indices", "compressed", "--ratio", "128", "--width", "64")
        self.assertEqual(self.lists(numbers), [[0, 1, 2], []])

    def test_refusals(self):
        window = {"positions": i32(5), "block_table": table([7, 3])}
        self.refused(window, "range: window is 0, expected", "indices", "window", "--block-size", "4")
        self.refused({"positions": i32(5)}, "block_table is absent, expected", "indices", "window", "--window", "4")
        self.refused({**window, "postions": i32(1)}, "'postions' is none of", "indices", "window", "--window", "4")
        self.refused({"indices": table([1, 2]), "lengths": i32(3)}, r"value: lengths\[0\] is 3", "indices", "dense")
        self.refused({"k": golden_key()}, "--format is ''", "cache", "write")
        self.refused({}, "positions is absent", "indices", "slots")


if __name__ == "__main__":
    unittest.main()
