#!/usr/bin/env bash
# What leaves the library, and what must not leak inside it:
#   - libpasa.so defines pasa_* and nothing else;
#   - objects built for one instruction set hold no weak symbol: the linker might keep their copy of a shared inline
#     function, and a CPU without that instruction set would run it;
#   - the library stays under 4 MB.
#   check_symbols.sh LIBRARY OBJECT...
set -euo pipefail
library=$1; shift
failed=0

foreign=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | grep -v '^pasa_' || true)
[ -z "$foreign" ] || { echo "exported beside pasa_*: $foreign" | tr '\n' ' '; echo; failed=1; }
[ "$(nm -D --defined-only "$library" | grep -c ' pasa_')" -ge 15 ] || { echo "fewer pasa_* symbols than the header has"; failed=1; }

checked=0
for object in "$@"; do
  case $(basename "$object") in *avx* | *amx*) ;; *) continue ;; esac
  checked=$((checked + 1))
  weak=$(nm -C "$object" | grep -E ' [WVu] ' || true)
  [ -z "$weak" ] || { echo "weak symbols in $object:"; echo "$weak" | head -5; failed=1; }
done

bytes=$(stat -Lc %s "$library")
[ "$bytes" -lt $((4 * 1024 * 1024)) ] || { echo "$library has $bytes bytes, expected less than 4 MB"; failed=1; }
echo "$(nm -D --defined-only "$library" | grep -c ' pasa_') symbols, $bytes bytes, $checked instruction-set objects"
exit $failed
