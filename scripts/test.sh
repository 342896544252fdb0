#!/usr/bin/env bash
# Sets up, builds everything of a preset and runs its tests: scripts/test.sh PRESET [CMAKE_ARGUMENT...]
# Sweeps run in their seeded sample; KVCACHE_FULL_SWEEP=1 runs them whole.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?a preset of CMakePresets.json, e.g. release}
shift

scripts/setup.sh
python3 scripts/fetch_model.py --quiet >/dev/null
cmake --preset "$preset" "$@"
cmake --build --preset "$preset"
ctest --preset "$preset" --parallel "$(nproc)"
