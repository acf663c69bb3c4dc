"""Errors in the words of the call that was made: pasa's argument names replaced by another library's."""

from __future__ import annotations

import contextlib
import re
from typing import Iterator

from .._native import Error


@contextlib.contextmanager
def renamed(names: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except Error as error:
        pattern = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
        raise Error(error.status, re.sub(pattern, lambda found: names[found[1]], str(error))) from None
