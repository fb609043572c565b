#!/usr/bin/env bash
# Fills dist/ with the files of a release. Two runs at one commit give the same bytes.
#
# usage: release/build.sh [--gnu FILE] [--static FILE] [--library DIR] [--wheel FILE] [--out DIR]
#        release/build.sh --binary FILE [--out DIR]
#
# The first four options take built files. --binary takes one program for both kinds, and leaves out
# the C library and the wheel, to try the packaging. Otherwise cargo builds:
#
#   gnu      the program for glibc 2.17 and later
#   library  the C library for glibc 2.17 and later: libixc_capi.so and libixc_capi.a
#   wheel    the Python package for glibc 2.17 and later
#   static   the program without shared libraries, for any Linux; needs glibc 2.36 here
#
# The first three need `pip install -r release/requirements.txt`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

gnu='' static='' library='' wheel='' is_trial='' out=$root/dist
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || { echo "$1: the value is missing" >&2; exit 2; }
  case $1 in
    --gnu) gnu=$2 ;;
    --static) static=$2 ;;
    --library) library=$2 ;;
    --wheel) wheel=$2 ;;
    --binary) gnu=$2 static=$2 is_trial=yes ;;
    --out) out=$2 ;;
    *) echo "unknown option $1; see the head of release/build.sh" >&2; exit 2 ;;
  esac
  shift 2
done
if [ -n "$(git status --porcelain)" ]; then
  echo "The checkout has changes, so that no commit describes it: commit them first." >&2
  exit 1
fi
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0
target=${CARGO_TARGET_DIR:-$root/target}
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# Paths of this machine would otherwise be in messages and line tables. The compiler names its own
# library by the commit, but by a path where the component rust-src is installed.
sysroot=$(rustc --print sysroot)
rust_commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
portable="-C target-cpu=x86-64-v2"
for renamed in "$root=/ixc" "$cargo_home=/cargo" "$target=/target" "$sysroot/lib/rustlib/src/rust=/rustc/$rust_commit"; do
  portable+=" --remap-path-prefix=$renamed"
done
# `--target` keeps these flags from build scripts and procedural macros, which cannot be static.
triple=x86_64-unknown-linux-gnu
old_glibc=$triple.2.17
uses_zig=''

if [ -z "$gnu" ]; then
  RUSTFLAGS=$portable CARGO_TARGET_DIR=$target/release-gnu \
    cargo zigbuild --profile dist --locked --package ixc --bin ixc --target "$old_glibc"
  gnu=$target/release-gnu/$triple/dist/ixc uses_zig=yes
fi
if [ -z "$library$is_trial" ]; then
  # Not `dist`: it makes the static library 246 MB large.
  RUSTFLAGS=$portable CARGO_TARGET_DIR=$target/release-gnu \
    cargo zigbuild --release --locked --package ixc-capi --target "$old_glibc"
  library=$target/release-gnu/$triple/release uses_zig=yes
fi
if [ -z "$wheel$is_trial" ]; then
  rm -rf "$target/release-wheel"
  # Not the folder of the program: maturin links by another script, so that each would build the
  # crates of the other again.
  RUSTFLAGS=$portable CARGO_TARGET_DIR=$target/release-python \
    python/wheel "$target/release-wheel" --zig --target "$triple"
  wheel=$(echo "$target"/release-wheel/*.whl) uses_zig=yes
fi
if [ -z "$static" ]; then
  # Packed relocations take 17 KB in place of 1.2 MB. The program applies them itself, by code of
  # glibc 2.36 and later; loaders of older systems cannot, so the other files have plain ones.
  RUSTFLAGS="$portable -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs" CARGO_TARGET_DIR=$target/release-static \
    cargo build --profile dist --locked --package ixc --bin ixc --target "$triple"
  static=$target/release-static/$triple/dist/ixc
fi
more=()
[ -n "$is_trial" ] || more=(--library "$library" --wheel "$wheel")
if [ -n "$uses_zig" ]; then
  # Each prints its name and version.
  more+=(--tool "$(maturin --version)" --tool "$(cargo-zigbuild --version)" --tool "zig $(python3 -m ziglang version)")
fi
PYTHONDONTWRITEBYTECODE=1 python3 release/pack --root "$root" --gnu "$gnu" --static "$static" "${more[@]}" \
  --out "$out" --commit "$commit" --time "$SOURCE_DATE_EPOCH"
