#!/usr/bin/env bash
# Everything: .ci/run's checks with whole sweeps, the whole suite under sanitizers, the static form,
# the CUDA preset where a toolkit is found, and clang-tidy. Takes hours on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
export KVCACHE_FULL_SWEEP=1

scripts/setup.sh --full
scripts/lint.sh
scripts/test.sh release -DKVCACHE_WERROR=ON -DKVCACHE_INSTALL_TESTS=ON
cmake --build --preset release --target all_verify_interface_header_sets
scripts/test.sh debug -DKVCACHE_WERROR=ON -DKVCACHE_INSTALL_TESTS=OFF

cmake --preset release -B build/static -DBUILD_SHARED_LIBS=OFF -DKVCACHE_WERROR=ON -DKVCACHE_INSTALL_TESTS=ON
cmake --build build/static
ctest --test-dir build/static --output-on-failure --no-tests=error

if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
  scripts/test.sh cuda -DKVCACHE_WERROR=ON
else
  echo 'No CUDA toolkit: the cuda preset is left out.'
fi

# clang-tidy cannot read g++'s precompiled header.
cmake --preset release -B build/tidy -DKVCACHE_PCH=OFF -DKVCACHE_CCACHE=OFF
run-clang-tidy -quiet -p build/tidy "$PWD/(src|examples)/.*"
