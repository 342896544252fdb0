#!/usr/bin/env bash
# Answers KVCACHE_PROMPT with SmolLM2-135M-Instruct: installs, fetches and builds what is missing.
# Arguments go to cmake, when the build tree is not configured yet or they are given.
set -euo pipefail
: "${KVCACHE_PROMPT:?the prompt is empty; ask with make run PROMPT=\"...\"}"
cd "$(dirname "$0")/.."

scripts/setup.sh
if [[ ! -f build/release/build.ninja ]] || (($# > 0)); then
  cmake --preset release "$@"
fi
build_log=$(mktemp)
trap 'rm -f "$build_log"' EXIT
if [[ -x build/release/examples/generate ]]; then # nothing or little to do: only speak on failure
  cmake --build --preset release --target generate >"$build_log" 2>&1 || { cat "$build_log" >&2; exit 1; }
else
  cmake --build --preset release --target generate
fi
model=$(python3 scripts/fetch_model.py | tail -n 1)

# SmolLM2's turns, as its chat template writes them.
prompt="<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
$KVCACHE_PROMPT<|im_end|>
<|im_start|>assistant
"
build/release/examples/generate --model "$model" --prompt "$prompt" --max-new-tokens 256
