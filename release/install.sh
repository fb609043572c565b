#!/bin/sh
# Installs ixc from a folder or an address with the files of a release.
#
# usage: install.sh --from FOLDER|URL [--prefix DIR] [--static]
#
# Checks the SHA-256 sum. Takes the static program if the C library is not glibc 2.17 or later.
set -eu

fail() { echo "install.sh: $*" >&2; exit 1; }

from='' prefix=${HOME:-/root}/.local kind=''
while [ $# -gt 0 ]; do
  case $1 in
    --from) [ $# -gt 1 ] || fail "--from needs a value"; from=$2; shift 2 ;;
    --prefix) [ $# -gt 1 ] || fail "--prefix needs a value"; prefix=$2; shift 2 ;;
    --static) kind=static; shift ;;
    *) fail "unknown option $1; usage: install.sh --from FOLDER|URL [--prefix DIR] [--static]" ;;
  esac
done
[ -n "$from" ] || fail "--from names the folder or the address of the release"
[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "ixc needs Linux on x86-64; this is $(uname -s) on $(uname -m)"
# Of x86-64-v2, these are the youngest features.
for feature in sse4_2 popcnt cx16; do
  grep -qw "$feature" /proc/cpuinfo || fail "this CPU lacks $feature, a feature of x86-64-v2"
done
if [ -z "$kind" ]; then
  kind=static
  found=$(getconf GNU_LIBC_VERSION 2> /dev/null | sed -n 's/^glibc //p')
  if [ -n "$found" ] && [ "$(printf '2.17\n%s\n' "$found" | sort -t. -k1,1n -k2,2n | head -n 1)" = 2.17 ]; then
    kind=gnu
  fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() {
  case $from in
    https://*) if command -v curl > /dev/null; then curl -fsSL -o "$work/$1" "$from/$1"; else wget -qO "$work/$1" "$from/$1"; fi ;;
    http://*) fail "http does not protect the files; give an https address" ;;
    *) cp "$from/$1" "$work/$1" ;;
  esac || fail "$from/$1 cannot be read"
}
fetch SHA256SUMS
archive=$(sed -n "s/^[0-9a-f]*  \(ixc-.*-x86_64-unknown-linux-$kind\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
[ -n "$archive" ] || fail "SHA256SUMS lists no program of kind $kind"
fetch "$archive"
(cd "$work" && grep -F "  $archive" SHA256SUMS | sha256sum -c - > /dev/null) || fail "$archive has another SHA-256 sum"

tar -xzf "$work/$archive" -C "$work"
folder=$work/${archive%.tar.gz}
"$folder/bin/ixc" --version > /dev/null || fail "the program does not run here; try --static"
mkdir -p "$prefix/bin"
# A running program cannot be overwritten, but its name can move to a new file.
cp "$folder/bin/ixc" "$prefix/bin/.ixc.new"
mv "$prefix/bin/.ixc.new" "$prefix/bin/ixc"
cp -R "$folder/share" "$prefix"
echo "$("$prefix/bin/ixc" --version) is in $prefix/bin ($kind)"
case :$PATH: in
  *:"$prefix/bin":*) ;;
  *) echo "Add $prefix/bin to PATH." ;;
esac
