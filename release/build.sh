#!/usr/bin/env bash
# Fills dist/ with the files of a release. Two runs at one commit give the same bytes.
#
# usage: release/build.sh [--gnu FILE] [--static FILE] [--binary FILE] [--out DIR]
#
# --gnu and --static take programs that are already built. --binary takes one program for both, to
# try the packaging. Otherwise cargo builds them:
#
#   gnu      for glibc 2.17 and later; needs `cargo install cargo-zigbuild`, `pip install ziglang`
#   static   without shared libraries, for any Linux
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

gnu='' static='' out=$root/dist
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || { echo "$1: the value is missing" >&2; exit 2; }
  case $1 in
    --gnu) gnu=$2 ;;
    --static) static=$2 ;;
    --binary) gnu=$2 static=$2 ;;
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
# Paths of this machine would otherwise be in messages and line tables.
portable="-C target-cpu=x86-64-v2 --remap-path-prefix=$root=/ixc --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$target=/target"

# `--target` keeps these flags from build scripts and procedural macros, which cannot be static.
if [ -z "$static" ]; then
  RUSTFLAGS="$portable -C target-feature=+crt-static" CARGO_TARGET_DIR=$target/release-static \
    cargo build --release --locked --package ixc --bin ixc --target x86_64-unknown-linux-gnu
  static=$target/release-static/x86_64-unknown-linux-gnu/release/ixc
fi
if [ -z "$gnu" ]; then
  RUSTFLAGS=$portable CARGO_TARGET_DIR=$target/release-gnu \
    cargo zigbuild --release --locked --package ixc --bin ixc --target x86_64-unknown-linux-gnu.2.17
  gnu=$target/release-gnu/x86_64-unknown-linux-gnu/release/ixc
fi
PYTHONDONTWRITEBYTECODE=1 python3 release/pack --root "$root" --gnu "$gnu" --static "$static" --out "$out" \
  --commit "$commit" --time "$SOURCE_DATE_EPOCH"
