#!/usr/bin/env bash
# What can only be seen on a GPU, in under 6 minutes, from programs built elsewhere:
#
#   scripts/gpu_check.sh pack   where the cuda preset was built: gathers programs and libraries, stripped,
#                               in build/gpu_check (64 MiB at most; LibTorch stays behind)
#   scripts/gpu_check.sh        on a machine with a GPU and Python's torch 2.11: tests, compute-sanitizer
#                               over a few of them where it is found, timings; all of it in one JSON,
#                               $OUT/gpu_check.json (OUT: build/gpu_check/out unless set)
#
# Exit code 0: the tests passed and nothing else failed or took too long; a tool that is missing there, or does
# not know the device, is no failure. 1: something failed. 2: it could not begin.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/gpu_check
build=build/cuda
programs=(tests/test_gpu benchmarks/gpu_attention_bench)

# Seconds that a step may take; together below 6 minutes.
tests_limit=110 sanitizer_limit=70 bench_limit=80

# Under compute-sanitizer every launch costs seconds, so these are few.
sanitized='GpuSegmentAttention.EqualsThePlainFormAtTheEdges:*AfterCrops:*RowsThatSeeNothing*:*RunsOnTheCurrentStream'

stop() { echo "error: $*" >&2; exit 2; }

pack() {
  rm -rf "$folder"
  mkdir -p "$folder"/{bin,lib}
  local program name library
  for program in "${programs[@]}"; do
    [[ -x $build/$program ]] || stop "$build/$program is missing: build the cuda preset first"
    strip --strip-unneeded -o "$folder/bin/${program##*/}" "$build/$program"
  done
  # Of what they load, the project's own libraries and those that a bare system lacks.
  local own='^lib(kvcache|hwy|pcre2|utf8proc|sentencepiece|protobuf|absl|gtest|gmock|benchmark)'
  { for program in "${programs[@]}"; do ldd "$build/$program"; done; } |
    awk -v own="$own" '$1 ~ own {print $1, $3}' | sort -u |
    while read -r name library; do
      strip --strip-unneeded -o "$folder/lib/$name" "$library"
    done
  local size
  size=$(du -sm "$folder" | cut -f1)
  ls "$folder"/*
  echo "$folder: $size MiB"
  ((size <= 64)) || stop "$folder is larger than 64 MiB"
}

# Puts LibTorch's libraries where the programs find them.
find_libtorch() {
  local torch
  torch=$(python3 - <<'PY'
import importlib.metadata, importlib.util, sys
spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit("error: Python's torch is missing")
if not importlib.metadata.version("torch").startswith("2.11."):
    sys.exit(f"error: torch is {importlib.metadata.version('torch')}, not 2.11")
print(spec.submodule_search_locations[0])
PY
  ) || exit 2
  export LD_LIBRARY_PATH="$PWD/$folder/lib:$torch/lib"
  local part
  for part in "$torch"/../nvidia/*/lib; do
    if [[ -d $part ]]; then LD_LIBRARY_PATH+=":$part"; fi
  done
}

# step NAME LIMIT COMMAND...: runs it and leaves its output, status and seconds in $OUT.
step() {
  local name=$1 limit=$2 status=passed code=0 begin=$SECONDS
  shift 2
  echo "== $name"
  timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.log" 2>&1 || code=$?
  tail -n 40 "$OUT/$name.log"
  if [[ $name == *check ]] && grep -q 'Device not supported' "$OUT/$name.log"; then
    status=unsupported # compute-sanitizer does not know the device
  elif ((code == 124 || code == 137)); then
    status='timed out'
  elif ((code != 0)); then
    status=failed
  fi
  echo "$name|$status|$code|$((SECONDS - begin))" >>"$OUT/steps"
  echo "== $name: $status ($((SECONDS - begin)) s)"
}

missing() {
  echo "$1|missing|0|0" >>"$OUT/steps"
  echo "== $1: missing"
}

sanitize() {
  local sanitizer=$1 tool
  for tool in memcheck racecheck; do
    # Without the caching allocator each tensor is a piece of memory of its own, whose ends are seen.
    step "$tool" "$sanitizer_limit" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool "$tool" \
      --error-exitcode 9 --print-limit 20 "$folder/bin/test_gpu" "--gtest_filter=$sanitized"
  done
}

run() {
  [[ -x $folder/bin/test_gpu ]] || stop "$folder is missing: scripts/gpu_check.sh pack makes it"
  OUT=${OUT:-$PWD/$folder/out}
  mkdir -p "$OUT"
  rm -f "$OUT/steps"
  find_libtorch
  { nvidia-smi -L; nvidia-smi --query-gpu=driver_version --format=csv,noheader; } \
    >"$OUT/machine" 2>/dev/null || true

  step tests "$tests_limit" "$folder/bin/test_gpu" --gtest_brief=1 "--gtest_output=json:$OUT/tests.json"
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1) || true
  if [[ -n $sanitizer ]]; then
    sanitize "$sanitizer"
  else
    missing compute-sanitizer
  fi
  step attention "$bench_limit" "$folder/bin/gpu_attention_bench" "$OUT/attention.json"
  report
}

# One JSON of all steps; its verdict is the exit code.
report() {
  python3 - "$OUT" <<'PY'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
def read(name):
    try:
        return json.loads((out / name).read_text())
    except (OSError, ValueError):
        return None
steps = []
for line in (out / "steps").read_text().splitlines():
    name, status, code, seconds = line.split("|")
    steps.append({"name": name, "status": status, "exit_code": int(code), "seconds": int(seconds)})
tests = read("tests.json") or {}
failed = [f"{suite['name']}.{case['name']}" for suite in tests.get("testsuites", [])
          for case in suite["testsuite"] if case.get("failures")]
good = all(step["status"] not in ("failed", "timed out") for step in steps) and \
    steps[0]["status"] == "passed" and tests.get("tests", 0) > 0
report = {"machine": (out / "machine").read_text().split("\n")[:-1], "passed": good, "steps": steps,
          "tests": {"run": tests.get("tests", 0), "failed": failed}, "attention": read("attention.json"),
          "logs": {step["name"]: (out / f"{step['name']}.log").read_text()[-4000:]
                   for step in steps if step["status"] in ("failed", "timed out", "unsupported")}}
(out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
for extra in ("steps", "machine", "tests.json", "attention.json"):
    (out / extra).unlink(missing_ok=True)
print(f"{tests.get('tests', 0)} tests, {len(failed)} failed; {out}/gpu_check.json")
sys.exit(0 if good else 1)
PY
}

case ${1:-run} in
  pack) pack ;;
  run) run ;;
  *) stop "usage: scripts/gpu_check.sh [pack|run]" ;;
esac
