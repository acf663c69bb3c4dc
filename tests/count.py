#!/usr/bin/env python3
"""Adds up a ctest run: count.py BUILD_DIR prints failures and skips with their reasons, then "N N N" (passed, failed, skipped).

A GoogleTest program counts with each of its tests (results/ENTRY.xml), anything else as one. A program that died before it
could write its counts is one failure.
"""
import sys
import xml.etree.ElementTree as xml
from pathlib import Path


def main() -> None:
    build = Path(sys.argv[1])
    passed = failed = skipped = 0
    skips = {}
    for entry in xml.parse(build / "junit.xml").getroot().iter("testcase"):
        name, status = entry.get("name"), entry.get("status")
        results = build / "results" / f"{name}.xml"
        broken = 0
        if results.exists():
            for test in xml.parse(results).getroot().iter("testcase"):
                label = f"{test.get('classname')}.{test.get('name')}"
                if test.find("failure") is not None:
                    broken += 1
                    print(f"FAILED {label} ({name}): {test.find('failure').get('message', '')[:1500]}")
                elif test.get("result") == "skipped" or test.find("skipped") is not None:
                    skipped += 1
                    reason = (test.find("skipped").get("message") or "").strip().splitlines()
                    skips.setdefault(reason[-1] if reason else label, []).append(label)
                elif test.get("status") == "run":
                    passed += 1
        elif status == "run":
            passed += 1
        elif status in ("disabled", "notrun"):
            skipped += 1
            skips.setdefault(entry.findtext("system-out", "")[:120].strip() or name, []).append(name)
        if status == "fail":
            broken = broken or 1
            print(f"FAILED {name}\n{(entry.findtext('system-out') or '')[-3000:] if not results.exists() else ''}")
        failed += broken
    for reason, names in skips.items():
        print(f"skipped: {reason}" + (f" ({len(names)} tests)" if len(names) > 1 else ""))
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
