"""The wheel: one for every Python, with the library inside, importable without anything of the source tree."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pasa
import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built around the library under test, which takes seconds instead of a whole compilation."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    library = os.environ.get("PASA_LIBRARY")
    if library is None:
        pytest.skip("PASA_LIBRARY does not name a built library")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    command += ["--config-settings", f"cmake.define.PASA_PREBUILT={library}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


def test_name_and_contents(wheel):
    assert wheel.name == f"pasa-{pasa.__version__}-py3-none-linux_x86_64.whl"
    names = zipfile.ZipFile(wheel).namelist()
    sources = {
        f"pasa/{path.relative_to(ROOT / 'python' / 'pasa')}" for path in (ROOT / "python" / "pasa").rglob("*.py")
    }
    assert {name for name in names if ".dist-info/" not in name} == sources | {"pasa/libpasa.so", "pasa/py.typed"}


def test_installed(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = """
import sys, numpy as np, pasa
assert pasa.__file__.startswith(sys.argv[1])
q, kv = np.ones((1, 2, 512), np.float16), np.ones((3, 512), np.float16)
assert (pasa.attend(q, kv, np.zeros((1, 4), np.int32), kv_format="f16") == 1).all()
"""
    environment = {name: value for name, value in os.environ.items() if name != "PASA_LIBRARY"}
    environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
