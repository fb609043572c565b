//! Runs kernels of a module with every buffer against a page that may not be touched, once at its end and once at its
//! start, so that a byte too far is a fault and not luck.

use ixc_codegen::module::{CodegenError, Module};
use ixc_codegen::target::Target;
use ixc_codegen::x64;
use ixc_ir::kernel::{Kernel, Op};

/// Bytes from a fixed seed (splitmix64), so that failures repeat.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// On which side of a buffer the page stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Guard {
    Before,
    After,
}

struct Guarded {
    start: *mut libc::c_void,
    mapped: usize,
    bytes: *mut u8,
}

impl Guarded {
    fn new(contents: &[u8], guard: Guard) -> Guarded {
        let page = 4096;
        let inside = contents.len().div_ceil(page) * page;
        let mapped = inside + 2 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping; nothing else is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let usable = start.cast::<u8>().wrapping_add(page);
        if inside > 0 {
            // SAFETY: inside the mapping just made.
            let rc = unsafe { libc::mprotect(usable.cast(), inside, libc::PROT_READ | libc::PROT_WRITE) };
            assert_eq!(rc, 0);
        }
        let bytes = match guard {
            Guard::Before => usable,
            Guard::After => usable.wrapping_add(inside - contents.len()),
        };
        // SAFETY: the bytes lie inside the part of the mapping that can be written.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), bytes, contents.len()) };
        Guarded { start, mapped, bytes }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made.
        unsafe { libc::munmap(self.start, self.mapped) };
    }
}

/// Targets that have among them every feature that selection asks for, and lack each.
pub fn targets() -> Vec<Target> {
    ["avx2", "alder-lake", "avx512", "zen4", "zen5", "sapphire-rapids"]
        .map(|name| Target::from_name(name).unwrap_or_else(|| panic!("no target {name}")))
        .to_vec()
}

/// Whether the op has a lowering on every target.
pub fn has_lowering(op: Op) -> bool {
    !op.takes_tiles()
}

/// A module for the target, or `None` with a loud line where this CPU can't run it; then the kernels are compiled at
/// least, which holds every instruction against the target's features.
pub fn module(kernels: &[Kernel], target: Target) -> Option<Module> {
    match Module::compile(kernels, target) {
        Err(CodegenError::MissingFeatures { missing, .. }) => {
            println!("NOT RUN natively: {}: this machine lacks {}", target.name(), ixc_codegen::cpu::list(&missing));
            for kernel in kernels {
                x64::compile(kernel, target).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
            }
            None
        }
        module => Some(module.unwrap_or_else(|error| panic!("{error}"))),
    }
}

/// Runs a kernel whose arguments are right.
pub fn run(module: &Module, kernel: usize, dims: &[i64], buffers: &mut [Vec<u8>], guard: Guard) {
    let signature = &module.kernels()[kernel];
    let views: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
    ixc_codegen::module::check_arguments(&signature.dims, &signature.buffers, dims, &views)
        .unwrap_or_else(|error| panic!("{}: {error}", signature.name));
    let guarded: Vec<Guarded> = buffers.iter().map(|b| Guarded::new(b, guard)).collect();
    let pointers: Vec<*mut u8> = guarded.iter().map(|g| g.bytes).collect();
    // SAFETY: the arguments were checked, and each buffer has a mapping of its own.
    unsafe { module.call(kernel, &pointers, dims) };
    for (buffer, guarded) in buffers.iter_mut().zip(&guarded) {
        // SAFETY: the bytes that `new` made.
        unsafe { std::ptr::copy_nonoverlapping(guarded.bytes, buffer.as_mut_ptr(), buffer.len()) };
    }
}
