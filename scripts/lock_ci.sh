#!/usr/bin/env bash
# Writes requirements/ci.txt: every package that the tests and checks need, pinned, with the hashes of its files: the extras of
# pyproject.toml that CI uses and requirements/ci.in. Needs uv.
# torch is left out, and with it the CUDA libraries that its default build brings: CI takes the CPU build of the release that
# CONTRIBUTING names. The index is the one that the caller's uv is set up with; its name is not written.
set -euo pipefail
cd "$(dirname "$0")/.."
without=$(mktemp)
trap 'rm -f "$without"' EXIT
echo "torch ; python_version < '3'" >"$without"
{
    echo "# Made by scripts/lock_ci.sh. Use: pip install --require-hashes -r requirements/ci.txt (torch comes after it, by itself)."
    uv pip compile pyproject.toml requirements/ci.in --extra dev --universal --python-version 3.10 --generate-hashes \
        --override "$without" --no-emit-index-url --no-header --no-annotate --quiet
} >requirements/ci.txt.new
mv requirements/ci.txt.new requirements/ci.txt
