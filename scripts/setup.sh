#!/usr/bin/env bash
# Installs the Debian packages that building needs, when it may (as root or with passwordless sudo);
# else prints the line that does. Quick and silent when all is there.
#
#   scripts/setup.sh          what building and testing need, and optional tools with them
#   scripts/setup.sh --full   also clang-tidy, for scripts/ci_full.sh
set -euo pipefail

# package=program: a program from elsewhere will do.
programs=(g++=g++ make=make cmake=cmake ninja-build=ninja git=git pkg-config=pkg-config python3=python3)
libraries=(nlohmann-json3-dev libhwy-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev libcli11-dev libgtest-dev
  libgmock-dev libbenchmark-dev)
optional=(clang-format=clang-format ccache=ccache mold=mold)
if [[ "${1:-}" == --full ]]; then
  programs+=(clang-tidy=clang-tidy)
fi

# The packages of "package=program" entries whose program is not found.
without_program() {
  local entry
  for entry; do
    command -v "${entry#*=}" >/dev/null || echo "${entry%%=*}"
  done
}

mapfile -t needed < <(without_program "${programs[@]}")
if ! python3 -c 'import ensurepip' 2>/dev/null; then
  needed+=(python3-venv) # LibTorch's and the model's packages come by pip
fi
if ! command -v dpkg-query >/dev/null; then
  echo "Not a Debian system: CMake will name what is missing of ${libraries[*]} ${needed[*]}" >&2
  exit 0
fi
installed=$(dpkg-query --show --showformat '${binary:Package} ${db:Status-Status}\n' "${libraries[@]}" \
  2>/dev/null | sed -n 's/^\([^ :]*\).* installed$/\1/p' || true)
for package in "${libraries[@]}"; do
  grep -qx "$package" <<<"$installed" || needed+=("$package")
done
mapfile -t wanted < <(without_program "${optional[@]}")
if ((${#needed[@]} + ${#wanted[@]} == 0)); then
  exit 0
fi

install=(apt-get install -y --no-install-recommends "${needed[@]}" "${wanted[@]}")
as_root=()
if ((EUID != 0)); then
  as_root=(sudo -n)
  if ! sudo -n true 2>/dev/null; then
    ((${#needed[@]} == 0)) && exit 0
    echo "Some packages are missing. Install them, then run this again:" >&2
    echo "  sudo apt-get update && sudo ${install[*]}" >&2
    exit 1
  fi
fi
echo "Installing ${needed[*]} ${wanted[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}"; } \
  >"$log" 2>&1 </dev/null; then
  tail -n 20 "$log" >&2
  echo "The packages above could not be installed by: ${install[*]}" >&2
  ((${#needed[@]} == 0)) || exit 1
fi
