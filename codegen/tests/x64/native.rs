//! Runs kernels with every buffer against a page that may not be touched, once at its end and once at its start, so that a
//! byte too far is a fault and not luck; on the emulator where this CPU can't.

use ixc_codegen::module::{Artifact, CodegenError, Module};
use ixc_codegen::x64::{self, Compiled};
use ixc_emulator::{Program, Slice};
use ixc_ir::kernel::{BufferKind, Kernel, Op};
use ixc_targets::Target;
use ixc_testing::qemu;

/// What QEMU (7.2) reads behind the operand of a scalar fused multiply-add in memory. Observed: `vfmadd231ss` of the last four bytes in front
/// of a page that may not be touched is a fault of the page, since 16 bytes are read; processors read four.
const READ_BEYOND_BY_QEMU: usize = 12;

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
        let beyond = if qemu::executes_this() { READ_BEYOND_BY_QEMU } else { 0 };
        let inside = (contents.len() + beyond).div_ceil(page) * page;
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
            Guard::After => usable.wrapping_add(inside - beyond - contents.len()),
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

/// Targets that have among them every feature that selection asks for, and lack each. Under QEMU those alone that this CPU runs: for
/// others the emulator does the same there as without.
pub fn targets() -> Vec<Target> {
    let mut targets = ["avx2", "alder-lake", "avx512", "zen4", "zen5", "sapphire-rapids"]
        .map(|name| Target::from_name(name).unwrap_or_else(|| panic!("no target {name}")))
        .to_vec();
    if qemu::executes_this() {
        let (kept, left_out): (_, Vec<Target>) = targets.into_iter().partition(|target| target.missing().is_empty());
        left_out
            .iter()
            .for_each(|target| println!("LEFT OUT under QEMU: {}: this machine lacks some of it", target.name()));
        targets = kept;
    }
    targets
}

/// Whether the op has a lowering on every target.
pub fn has_lowering(op: Op) -> bool {
    !op.takes_tiles()
}

/// Compiled kernels that can be run here.
pub enum Engine {
    /// By this CPU.
    Native(Module),
    /// By the emulator, as the CPU lacks something.
    Emulated(Vec<(Compiled, Program)>),
}

impl Engine {
    /// Kernels for the target; where this CPU can't run it a line says so, and the emulator does.
    pub fn new(kernels: &[Kernel], target: Target) -> Engine {
        match Module::compile(kernels, target) {
            Err(CodegenError::MissingFeatures { missing, .. }) => {
                println!("EMULATED: {}: this machine lacks {}", target.name(), ixc_targets::cpu::list(&missing));
                Engine::Emulated(kernels.iter().map(|kernel| emulated(kernel, target)).collect())
            }
            module => Engine::Native(module.unwrap_or_else(|error| panic!("{error}"))),
        }
    }

    /// What the x86-64 lowering made of a kernel.
    pub fn compiled(&self, kernel: usize) -> Option<&Compiled> {
        match self {
            Engine::Native(module) => match &module.kernels()[kernel].artifact {
                Artifact::X64(compiled) => Some(compiled),
                Artifact::Portable(_) => None,
            },
            Engine::Emulated(kernels) => Some(&kernels[kernel].0),
        }
    }

    /// Where guard pages are worth a run each: the emulator checks both ends of every buffer at once.
    pub fn guards(&self) -> &[Guard] {
        match self {
            Engine::Native(_) => &[Guard::Before, Guard::After],
            Engine::Emulated(_) => &[Guard::After],
        }
    }

    /// Runs a kernel whose arguments are right.
    pub fn run(&self, number: usize, kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>], guard: Guard) {
        let views: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        ixc_codegen::module::check_arguments(&kernel.dims, &kernel.buffers, dims, &views)
            .unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        match self {
            Engine::Native(module) => {
                let guarded: Vec<Guarded> = buffers.iter().map(|b| Guarded::new(b, guard)).collect();
                let pointers: Vec<*mut u8> = guarded.iter().map(|g| g.bytes).collect();
                // SAFETY: the arguments were checked, and each buffer has a mapping of its own.
                unsafe { module.call(number, &pointers, dims) };
                for (buffer, guarded) in buffers.iter_mut().zip(&guarded) {
                    // SAFETY: the bytes that `new` made.
                    unsafe { std::ptr::copy_nonoverlapping(guarded.bytes, buffer.as_mut_ptr(), buffer.len()) };
                }
            }
            Engine::Emulated(kernels) => {
                let slices: Vec<Slice> = kernel
                    .buffers
                    .iter()
                    .zip(buffers)
                    .map(|(b, bytes)| match b.kind {
                        BufferKind::Read | BufferKind::Index { .. } => Slice::read(&b.name, bytes),
                        BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => Slice::write(&b.name, bytes),
                    })
                    .collect();
                kernels[number].1.call(&slices, dims).unwrap_or_else(|fault| panic!("{}: {fault}", kernel.name));
            }
        }
    }
}

fn emulated(kernel: &Kernel, target: Target) -> (Compiled, Program) {
    let compiled = x64::compile(kernel, target).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let code = [&compiled.code[..], &compiled.constants].concat();
    let program = Program::new(&code, compiled.code_bytes, target.features());
    (compiled, program.unwrap_or_else(|fault| panic!("{}: {fault}", kernel.name)))
}
