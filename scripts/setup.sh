#!/usr/bin/env bash
# Installs the Debian packages that building needs, when it may (as root or with passwordless sudo);
# else prints the line that does. Quick and silent when all is there.
#
#   scripts/setup.sh          what building and testing need, and the optional speed-ups with them
#   scripts/setup.sh --full   also clang-tidy, for scripts/ci_full.sh
set -euo pipefail

libraries=(nlohmann-json3-dev libpcre2-dev libutf8proc-dev libcli11-dev libgtest-dev libgmock-dev
  libbenchmark-dev)
# package=program: a program from elsewhere will do.
programs=(g++=g++ make=make cmake=cmake ninja-build=ninja git=git pkg-config=pkg-config
  python3=python3 clang-format=clang-format ccache=ccache mold=mold)
if [[ "${1:-}" == --full ]]; then
  programs+=(clang-tidy=clang-tidy)
fi

missing=()
for entry in "${programs[@]}"; do
  command -v "${entry#*=}" >/dev/null || missing+=("${entry%%=*}")
done
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then
  missing+=(python3-venv)
elif ! command -v python3 >/dev/null; then
  missing+=(python3-venv)
fi
if ! command -v dpkg-query >/dev/null; then
  echo "Not a Debian system: install the equivalents of: ${libraries[*]} ${missing[*]}" >&2
  exit 0 # CMake names whatever is missing.
fi
installed=$(dpkg-query --show --showformat '${binary:Package} ${db:Status-Status}\n' "${libraries[@]}" \
  2>/dev/null | sed -n 's/^\([^ :]*\).* installed$/\1/p' || true)
for package in "${libraries[@]}"; do
  grep -qx "$package" <<<"$installed" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

install=(apt-get install -y --no-install-recommends "${missing[@]}")
as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
    echo "Some packages are missing. Install them, then run this again:" >&2
    echo "  sudo apt-get update && sudo ${install[*]}" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi
echo "Installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}"; } \
  >"$log" 2>&1 </dev/null; then
  tail -n 20 "$log" >&2
  echo "error: could not install the packages above; the line is: ${install[*]}" >&2
  exit 1
fi
