#!/usr/bin/env bash
# Packs checks and measurements for another machine without Rust and network. See README.md.
#
#     bench/silicon/pack.sh FOLDER [RIVALS]       makes FOLDER/kit.tar.xz
#
# Build first: `cargo build --release -p ixc -p ixc-bench && cargo test --workspace --no-run`.
# RIVALS is a folder with sources in llama/ and ik/ (ik_llama.cpp), or rivals.tar.xz of check.sh.
# It may also have programs for that machine: lb/bin/llama-{bench,server,quantize}, ib/bin/.
# GOLDEN=DIR has models/NAME.gguf and expect/NAME.json (prompt_tokens, logits, compiled_nmse_max).
set -euo pipefail
if [ $# -lt 1 ]; then sed -n '2,8p' "$0" >&2; exit 2; fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
rivals=${2:+$(cd "$2" && pwd)}
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
kit=$(mktemp -d)
trap 'rm -rf "$kit"' EXIT
mkdir "$kit"/{bin,tests,models}
for program in ixc ixc-bench; do
  cp "$target/release/$program" "$kit/bin/"
  strip "$kit/bin/$program"
done
for name in emulator kernels x64; do
  # The newest of several builds.
  program=$(find "$target/debug/deps" -name "$name-*" -type f -executable -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
  [ -n "$program" ] || { echo "no test program $name: cargo test --workspace --no-run" >&2; exit 1; }
  cp "$program" "$kit/tests/$name"
  strip "$kit/tests/$name"
done
# Expected results of the test programs.
mkdir -p "$kit/codegen/tests"
cp -r codegen/tests/bits "$kit/codegen/tests/"
cp examples/models/*.gguf "$kit/models/"
if [ -n "${GOLDEN:-}" ]; then
  cp "$GOLDEN"/models/*.gguf "$GOLDEN"/expect/* "$kit/models/"
else
  echo "GOLDEN is not set: logits are compared with the emulator's alone" >&2
fi
cp bench/silicon/*.{sh,c,h,py,txt} bench/serving.py bench/served.py "$kit/"
python3 -m pip download -q --no-deps -d "$kit" gguf
[ -z "${rivals:-}" ] || cp -r "$rivals"/. "$kit/"
tar c -C "$kit" . | xz -T0 -3 > "$out/kit.tar.xz"
ls -l "$out/kit.tar.xz"
