"""Errors in the words of the call that was made: pasa's argument names replaced by another library's."""

from __future__ import annotations

import re

from .._native import Error


def renamed(error: Error, names: dict[str, str]) -> Error:
    pattern = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
    return Error(error.status, re.sub(pattern, lambda found: names[found[1]], str(error)))
