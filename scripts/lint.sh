#!/usr/bin/env bash
# What can be checked without building: formatting, the include rule, file lengths, stray whitespace.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
command -v clang-format >/dev/null || { echo 'error: clang-format is missing' >&2; exit 1; }
git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r clang-format --dry-run -Werror
python3 scripts/check_includes.py --self-test
python3 scripts/check_includes.py
python3 scripts/draw_caches.py --check
# Fixtures keep their bytes, whatever they are.
if git grep -nIE '[[:space:]]+$|^<<<<<<< |^>>>>>>> ' -- ':!tests/**/*.json' ':!tests/**/*.jinja' ':!*.txt' ':!LICENSE'; then
  echo 'error: trailing whitespace or conflict marks, above' >&2
  exit 1
fi
for script in .ci/run $(git ls-files '*.sh'); do
  bash -n "$script"
done
