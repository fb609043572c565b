#!/usr/bin/env bash
# Fills dist/ with the files of a release. Two runs at one commit give the same bytes.
#
# usage: release/build.sh [--gnu FILE] [--static FILE] [--library DIR] [--wheel FILE] [--out DIR]
#        release/build.sh --binary FILE [--out DIR]
#
# The first four options take built files. --binary takes one program for both kinds of program. It
# leaves out the C library and the wheel, to try the packaging. Otherwise cargo builds:
#
#   gnu      the program for glibc 2.17 and later
#   static   the same program without shared libraries, for any Linux; needs glibc 2.36 here
#   library  the C library for glibc 2.17 and later: libixc_capi.so and libixc_capi.a
#   wheel    the Python package for glibc 2.17 and later
#
# They need `pip install -r release/requirements.txt`.
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
  echo "The checkout has changes, so no commit describes it: commit them first." >&2
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
# `--target` keeps these flags from build scripts and procedural macros.
triple=x86_64-unknown-linux-gnu
built=$target/release-files
uses_zig=''
# All builds have one folder, linker and set of flags, so that Cargo shares crates between them.
shared() {
  uses_zig=yes
  RUSTFLAGS=$portable CARGO_TARGET_DIR=$built CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=$root/release/linker "$@"
}

if [ -z "$wheel$is_trial" ]; then
  rm -rf "$built/wheel"
  shared python/wheel "$built/wheel" --target "$triple"
  wheel=$(echo "$built"/wheel/*.whl)
fi
if [ -z "$gnu" ] || [ -z "$static" ]; then
  # Cargo knows only the first of the linker's two files.
  [ "$built/ixc-static" -nt release/linker ] ||
    CARGO_TARGET_DIR=$built cargo clean --quiet --profile dist --package ixc --target "$triple"
  # Naming the wheel's package selects the features of its crates, which are then not built again.
  STATIC_PROGRAM=$built/ixc-static shared \
    cargo build --profile dist --locked --package ixc --package ixc-python --bin ixc --target "$triple"
  gnu=${gnu:-$built/$triple/dist/ixc} static=${static:-$built/ixc-static}
fi
if [ -z "$library$is_trial" ]; then
  # Without the Rust library, which cannot be optimised across crates.
  shared cargo rustc --profile dist --locked --package ixc-capi --lib --crate-type cdylib,staticlib --target "$triple"
  library=$built/$triple/dist
fi
more=()
[ -n "$is_trial" ] || more=(--library "$library" --wheel "$wheel")
if [ -n "$uses_zig" ]; then
  # Each prints its name and version.
  more+=(--tool "$(maturin --version)" --tool "$(cargo-zigbuild --version)" --tool "zig $(python3 -m ziglang version)")
fi
PYTHONDONTWRITEBYTECODE=1 python3 release/pack --root "$root" --gnu "$gnu" --static "$static" "${more[@]}" \
  --out "$out" --commit "$commit" --time "$SOURCE_DATE_EPOCH"
