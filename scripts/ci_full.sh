#!/usr/bin/env bash
# Everything: clang-tidy, the checks of .ci/run with whole sweeps, the whole suite under
# AddressSanitizer and UBSan, threads under ThreadSanitizer, the static form, and the CUDA preset where
# a toolkit is found. Sweeps run whole in the release build and as their seeded sample elsewhere, where
# they would take hours.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/*/reports
trap 'python3 scripts/summarize_tests.py $? build/*/reports' EXIT

step() { echo "== $(date +%T) $*"; }

step set-up and checks without a build
scripts/setup.sh --full
scripts/lint.sh

# clang-tidy cannot read g++'s precompiled header.
step clang-tidy
cmake --preset release -B build/tidy -DKVCACHE_PCH=OFF -DKVCACHE_CCACHE=OFF
run-clang-tidy -quiet -p build/tidy "$PWD/(src|examples)/.*"

step release suite, whole sweeps
KVCACHE_FULL_SWEEP=1 scripts/test.sh release -DKVCACHE_WERROR=ON -DKVCACHE_INSTALL_TESTS=ON

step every header alone
cmake --preset headers -DKVCACHE_WERROR=ON
cmake --build --preset headers

step suite under sanitizers
scripts/test.sh debug -DKVCACHE_WERROR=ON -DKVCACHE_INSTALL_TESTS=OFF -DKVCACHE_BUILD_BENCHMARKS=OFF

step threads under ThreadSanitizer
cmake --preset tsan -DKVCACHE_WERROR=ON
cmake --build --preset tsan
ctest --preset tsan

# The static form differs in how it is linked: the consumers' test and one program show it.
step static form
cmake --preset release -B build/static -DBUILD_SHARED_LIBS=OFF -DKVCACHE_WERROR=ON \
  -DKVCACHE_INSTALL_TESTS=ON -DKVCACHE_BUILD_BENCHMARKS=OFF
cmake --build build/static --target kvcache generate quickstart test_cli
ctest --test-dir build/static --output-on-failure --no-tests=error --label-regex 'install|cli'

step CUDA preset
if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
  cmake --preset cuda -DKVCACHE_WERROR=ON
  cmake --build --preset cuda --target kvcache_cuda generate update_bench gpu_attention_bench test_cli test_gpu
  ctest --preset cuda --label-regex '^(cli|gpu)$' # without a GPU, test_gpu is shown as skipped
  scripts/gpu_check.sh pack
else
  echo 'No CUDA toolkit: the cuda preset is left out.'
fi

step done
