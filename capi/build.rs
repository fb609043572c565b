//! Build script. It names the shared library for the loader, by the interface version of the
//! header.

fn main() {
    const DEFINES: &str = "#define IXC_ABI_VERSION ";
    let header = include_str!("include/ixc.h");
    let version = header.lines().find_map(|line| line.strip_prefix(DEFINES)).expect("ixc.h defines IXC_ABI_VERSION");
    println!("cargo:rerun-if-changed=include/ixc.h");
    println!("cargo:rustc-env=IXC_ABI_VERSION={version}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libixc.so.{version}");
}
