#!/bin/sh
# shellcheck disable=SC2086,SC2154
# Makes the oracle's Python environment (Hugging Face Transformers, to make golden values and to compare with).
# It lies outside the repository, in $KVCACHE_ORACLE or ${XDG_CACHE_HOME:-~/.cache}/kvcache/oracle. Building and testing
# do not need it. Run again, it does nothing; interrupted, it leaves no half-made environment behind.
set -eu

python="${PYTHON:-python3}"
oracle="${KVCACHE_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvcache/oracle}"
packages="torch==2.11.0 transformers==5.24.0 tokenizers==0.23.3 gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0 sentencepiece==0.2.3 protobuf==7.36.2 hqq==0.2.8.post1 optimum-quanto==0.2.7"

installed() {
    [ -x "$oracle/bin/python" ] && "$oracle/bin/python" - $packages <<'PY' 2>/dev/null
import importlib.metadata, sys
for wanted in sys.argv[1:]:
    name, version = wanted.split("==")
    if importlib.metadata.version(name).split("+")[0] != version:
        sys.exit(1)
PY
}

if installed; then
    echo "oracle ready: $oracle"
    exit 0
fi

# A virtual environment cannot be moved (its scripts name their folder), so it is made in place: under a lock, judged by the
# versions it holds, and removed when the installation fails.
mkdir -p "$(dirname "$oracle")"
exec 9>"$oracle.lock"
if command -v flock >/dev/null; then
    flock 9
    if installed; then
        echo "oracle ready: $oracle"
        exit 0
    fi
fi
case "$("$python" -c 'import sys; print(sys.version_info >= (3, 11))')" in
    True) ;;
    *) echo "make_oracle.sh: $python is too old, 3.11 or newer is needed (set PYTHON)" >&2; exit 1 ;;
esac
if [ -e "$oracle" ] && [ ! -e "$oracle/.made-for-kvcache" ]; then
    echo "make_oracle.sh: $oracle exists, was not made by this script and does not hold $packages;" \
        "move it away or set KVCACHE_ORACLE to another folder" >&2
    exit 1
fi
trap 'status=$?; [ $status -eq 0 ] || rm -rf "$oracle"; exit $status' EXIT
trap 'exit 130' INT TERM
"$python" -m venv --clear "$oracle"
: >"$oracle/.made-for-kvcache"
"$oracle/bin/python" -m pip install --quiet --disable-pip-version-check $packages
installed || { echo "make_oracle.sh: $oracle lacks one of: $packages" >&2; exit 1; }
echo "oracle ready: $oracle"
