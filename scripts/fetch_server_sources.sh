#!/usr/bin/env bash
# Fetches the Python sources that the contract tests of the hook points read. Optional; no test ever downloads anything.
#   usage: scripts/fetch_server_sources.sh FOLDER [VERSION...]
#   then:  SPECANALYZE_SERVER_SOURCES=FOLDER pytest tests/collector/test_sglang_points.py
# FOLDER/sglang/VERSION/sglang/srt/... holds the .py files only; nothing is imported or installed. About 250 MB pass
# through the network for the whole list, about 100 MB stay. A release that is already there is not fetched again.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,3p' "$0" | cut -c3-; exit 2; }
folder=$1
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(
  0.4.6 0.4.8 0.5.2 0.5.3 0.5.4 0.5.5 0.5.6.post2 0.5.7 0.5.8 0.5.9 0.5.10.post1 0.5.11 0.5.12.post1
  0.5.13.post1 0.5.14 0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23
)

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
for version in "${versions[@]}"; do
  target=$folder/sglang/$version
  if [ -e "$target/.complete" ]; then
    continue
  fi
  # The oldest releases are pure Python, the later ones carry a compiled extension for one Python version.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --abi cp312 --abi abi3 --abi none --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux2014_x86_64 --platform any --dest "$wheels" "sglang==$version"
  mkdir -p "$target"
  python3 - "$wheels" "$target" <<'PYTHON'
import pathlib, sys, zipfile

wheels, target = map(pathlib.Path, sys.argv[1:])
[wheel] = wheels.glob("*.whl")
wanted = tuple(f"sglang/srt/{part}/" for part in ("arg_groups", "distributed", "layers", "managers", "model_executor", "plugins", "speculative"))
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.endswith(".py") and (name.startswith(wanted) or name.count("/") <= 2):
            archive.extract(name, target)
wheel.unlink()
PYTHON
  touch "$target/.complete"
  echo "sglang $version"
done
