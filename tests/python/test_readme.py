"""The examples of python/README.md run as they stand."""

import pathlib
import re


def test_examples():
    text = (pathlib.Path(__file__).parents[2] / "python" / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
