#!/bin/bash
# Installs or builds a rival, in one pinned version, in a given folder. Everything comes from PyPI.
# usage: setup.sh llama|ik|mistralrs|kt DIR    makes DIR/build/bin or DIR/venv; times on 2 cores
#   llama      llama.cpp 0c1e570, 8 minutes: llama-{bench,completion,perplexity,quantize}
#   ik         ik_llama.cpp of ik-llama-cpp-python 0.1.5, 15 minutes or more: llama-bench
#   mistralrs  mistral.rs 0.9.5, a wheel
#   kt         kt-kernel 0.7.2, a wheel, without torch: the extension module does not need it
# AMX=off builds llama and ik without AMX: llama dies of SIGILL (`tilezero`) on some AMX VMs.
# JOBS=n: compilers at once; PYTHON: Python of the venv (kt has wheels for 3.11 and some others).
set -euo pipefail
if [ $# -ne 2 ]; then sed -n '2,9p' "$0" >&2; exit 2; fi
name=$1
mkdir -p "$2" && cd "$2"
[ -e venv/bin/pip ] || "${PYTHON:-python3}" -m venv venv
export PATH=$PWD/venv/bin:$PATH
pip="pip --disable-pip-version-check --quiet"

# Unpacks the source of a package. Of the package, only the code for its metadata runs.
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
  if [ "${AMX:-}" = off ]; then
    local off="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    flags+=("-DCMAKE_C_FLAGS=$off" "-DCMAKE_CXX_FLAGS=$off")
  fi
  cmake -S "$from" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF "${flags[@]}"
  cmake --build build ${JOBS:+-j "$JOBS"} --target "$@"
  ls "$PWD/build/bin/llama-bench"
}

case $name in
llama)
  unpack llama-cpp-python 0.3.36
  flags=(-DLLAMA_BUILD_EXAMPLES=OFF)
  build source/vendor/llama.cpp llama-bench llama-quantize llama-completion llama-perplexity
  ;;
ik)
  unpack ik-llama-cpp-python 0.1.5
  # The package lacks this file, which only writes version numbers.
  common=source/vendor/ik_llama.cpp/common
  mkdir -p "$common/cmake"
  cat > "$common/cmake/build-info-gen-cpp.cmake" <<'CMAKE'
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "ik-llama-cpp-python-0.1.5")
set(BUILD_COMPILER "unknown")
set(BUILD_TARGET "unknown")
configure_file(${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp.in ${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp)
CMAKE
  # llama-bench is built as one of the examples.
  flags=(-DLLAMA_BUILD_EXAMPLES=ON)
  build source/vendor/ik_llama.cpp llama-bench
  ;;
mistralrs)
  $pip install mistralrs==0.9.5
  python -c 'import mistralrs; from importlib.metadata import version; print("mistralrs", version("mistralrs"))'
  ;;
kt)
  $pip install --no-deps kt-kernel==0.7.2
  $pip install numpy gguf
  ls venv/lib/python3*/site-packages/kt_kernel/_kt_kernel_ext_avx2.*.so
  ;;
*)
  sed -n '2,9p' "$0" >&2; exit 2
  ;;
esac
