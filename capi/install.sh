#!/bin/sh
# Installs the C library: the header, the shared and static library, and the file for pkg-config.
#
#   cargo build --release -p ixc-capi
#   capi/install.sh --prefix /usr/local [--from target/release]
#
# DESTDIR, if set, is put before the prefix, for packages.
set -eu

package=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local
from=$package/../target/release

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2?a folder follows --prefix} ;;
        --from) from=${2?a folder follows --from} ;;
        *) fail "unknown argument $1; arguments are --prefix FOLDER and --from FOLDER" ;;
    esac
    shift 2
done

case $prefix in
    /*) ;;
    *) fail "the prefix is $prefix; expected an absolute path" ;;
esac
for file in libixc_capi.so libixc_capi.a; do
    [ -f "$from/$file" ] || fail "$from/$file is missing: build it with cargo build --release -p ixc-capi"
done

abi=$(sed -n 's/^#define IXC_ABI_VERSION //p' "$package/include/ixc.h")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$package/../Cargo.toml" | head -n 1)
root=${DESTDIR-}$prefix

mkdir -p "$root/include" "$root/lib/pkgconfig"
install -m 644 "$package/include/ixc.h" "$root/include/ixc.h"
install -m 755 "$from/libixc_capi.so" "$root/lib/libixc.so.$abi"
ln -sf "libixc.so.$abi" "$root/lib/libixc.so"
install -m 644 "$from/libixc_capi.a" "$root/lib/libixc.a"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$package/ixc.pc.in" >"$root/lib/pkgconfig/ixc.pc"
