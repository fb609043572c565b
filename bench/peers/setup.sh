#!/bin/bash
# Installs or builds a rival, in one pinned version, under a directory that you name. Everything comes from PyPI.
# usage: setup.sh llama|ik|mistralrs|kt DIR
#   llama      llama.cpp 0c1e570: llama-bench, llama-completion, llama-quantize in DIR/build/bin       8 minutes on 2 cores
#   ik         ik_llama.cpp as ik-llama-cpp-python 0.1.5 has it: llama-bench in DIR/build/bin         15 minutes on 2 cores and more
#   mistralrs  mistral.rs 0.9.5, a wheel: DIR/venv
#   kt         kt-kernel 0.7.2, a wheel, with torch 2.9.1 (a download of 0.9 GB, of which the CUDA libraries are left out): DIR/venv
# JOBS=n says how many compilers run at once; PYTHON which Python makes the environments (kt has a wheel for 3.11 and some others).
set -euo pipefail
if [ $# -ne 2 ]; then sed -n '2,8p' "$0" >&2; exit 2; fi
name=$1
mkdir -p "$2" && cd "$2"
[ -e venv/bin/pip ] || "${PYTHON:-python3}" -m venv venv
export PATH=$PWD/venv/bin:$PATH
pip="pip --disable-pip-version-check --quiet"

# Unpacks the source of a package with nothing of it run but its metadata.
unpack() { # PACKAGE VERSION
  $pip install 'scikit-build-core[pyproject]' cmake ninja
  [ -e source ] && return
  mkdir -p sdist
  $pip download --no-build-isolation --no-deps --no-binary "$1" -d sdist "$1==$2"
  mkdir source.part
  tar xzf sdist/*.tar.gz -C source.part --strip-components=1
  mv source.part source
}

build() { # SOURCE TARGET... with flags in $flags
  local from=$1; shift
  cmake -S "$from" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF "${flags[@]}"
  cmake --build build ${JOBS:+-j "$JOBS"} --target "$@"
  ls "$PWD/build/bin/llama-bench"
}

case $name in
llama)
  unpack llama-cpp-python 0.3.36
  flags=(-DLLAMA_BUILD_EXAMPLES=OFF)
  build source/vendor/llama.cpp llama-bench llama-quantize llama-completion
  ;;
ik)
  unpack ik-llama-cpp-python 0.1.5
  # Its benchmark is an example.
  flags=(-DLLAMA_BUILD_EXAMPLES=ON)
  build source/vendor/ik_llama.cpp llama-bench
  ;;
mistralrs)
  $pip install mistralrs==0.9.5
  python -c 'import mistralrs; print("mistralrs", mistralrs.__version__)'
  ;;
kt)
  # With its dependencies torch would bring 3 GB of CUDA. On a CPU it imports without them.
  $pip install --no-deps torch==2.9.1 kt-kernel==0.7.2
  $pip install numpy safetensors gguf pyyaml typing-extensions filelock sympy networkx jinja2 fsspec
  python -c 'import torch, kt_kernel; print("kt-kernel", kt_kernel.__version__)'
  ;;
*)
  sed -n '2,8p' "$0" >&2; exit 2
  ;;
esac
