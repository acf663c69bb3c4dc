#!/usr/bin/env bash
# Runs the Python tests against a built library: tests/python/run.sh [BUILD_DIRECTORY] [PYTEST ARGUMENT...]
#
# Needs NumPy, pytest and hypothesis; on Debian it installs what the system's Python lacks (as root or with sudo). PASA_PYTHON
# names another interpreter, such as a virtual environment's with torch and ml_dtypes; without them their tests are skipped.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
shift || true
python=${PASA_PYTHON:-python3}

modules="numpy pytest hypothesis"
has_modules() { "$python" -c "import ${modules// /, }" 2>/dev/null; }
if ! has_modules && command -v apt-get >/dev/null; then
  as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo)
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends python3-numpy python3-pytest python3-hypothesis >/dev/null
  python=/usr/bin/python3  # the one those packages are for
fi
has_modules || { echo "tests/python/run.sh: $python lacks one of: $modules" >&2; exit 1; }

export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export PASA_LIBRARY=$build/libpasa.so
[ -x "$build/tools/pasa" ] && export PASA_COMMAND=$build/tools/pasa
exec "$python" -m pytest -q -p no:cacheprovider --rootdir "$root/tests/python" "$root/tests/python" "$@"
