#!/usr/bin/env python3
"""Dependencies point one way: reads every #include "..." of the project and refuses those that point back.

  python, tools, tests, bench -> harness -> include/pasa (and the library's core and reference, which define the maths)
  c_api, backends -> core;   reference | cpu | cuda | hip -> core;   core -> nothing of ours but pasa.h
"""
import re
import sys
from pathlib import Path

# folder of the including file -> folders it may include from
ALLOWED = {
    "include/pasa": {"include/pasa"},
    "src/core": {"src/core", "include/pasa"},
    "src/reference": {"src/reference", "src/core", "include/pasa"},
    "src/cpu": {"src/cpu", "src/core", "include/pasa"},
    "src/cuda": {"src/cuda", "src/core", "include/pasa"},
    "src/ops": {"src/ops", "src/core", "src/cuda", "include/pasa"},
    "src/hip": {"src/hip", "src/core", "include/pasa"},
    "src": {"src/core", "src/reference", "include/pasa"},
    # of bench the machine's ceilings, of src/cuda the device probe
    "harness": {"harness", "src/core", "src/reference", "src/cuda", "src/hip", "bench", "include/pasa"},
    "tools": {"tools", "harness", "src/core", "src/hip", "include/pasa"},
    "bench": {"bench", "harness", "src/core", "src/cpu", "src/cuda", "include/pasa"},
}


def folder_of(path: Path) -> str:
    return next((f for f in ALLOWED if path.parts[: len(f.split("/"))] == tuple(f.split("/"))), "")


def main() -> int:
    root = Path(sys.argv[1])
    wrong, count = [], 0
    for file in sorted(p for f in ("include", "src", "harness", "tools", "bench") for p in (root / f).rglob("*")):
        if file.suffix not in {".h", ".hpp", ".cpp", ".cu", ".cuh", ".c", ".hip"}:
            continue
        here = file.relative_to(root)
        source = folder_of(here)
        for line, text in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', text) or re.match(r"\s*#\s*include\s+<(pasa/[^>]+)>", text)
            if not match:
                continue
            count += 1
            places = [root / base / match[1] for base in ("include", "src", "")] + [file.parent / match[1]]
            found = next((p for p in places if p.is_file()), None)
            if found is None:
                wrong.append(f"{here}:{line}: {match[1]} is not a file of this project (angle brackets for others)")
                continue
            target = folder_of(found.resolve().relative_to(root.resolve()))
            if target not in ALLOWED[source]:
                wrong.append(f"{here}:{line}: {source} may not include {match[1]} (of {target or 'nowhere'})")
            if match[1] == "pasa/pasa.hpp" and source.startswith(("src", "harness")):
                wrong.append(f"{here}:{line}: pasa.hpp is for users; inside, the library has its own Error and Plan")
    print("\n".join(wrong) or f"{count} includes point the right way")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
