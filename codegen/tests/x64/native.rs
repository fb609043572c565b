//! Runner that puts a guard page at the end of every buffer, and then runs again with a guard page
//! at its start. Any access out of bounds then faults. It uses the emulator if this CPU lacks the
//! target's features.

use ixc_codegen::module::{Artifact, CodegenError, Module};
use ixc_codegen::x64::{self, CompiledKernel};
use ixc_emulator::{Program, Slice};
use ixc_ir::kernel::{BufferKind, Kernel, Op};
use ixc_targets::Target;
use ixc_testing::qemu;

/// Bytes that QEMU (7.2) reads after the memory operand of a scalar fused multiply-add. Observed:
/// `vfmadd231ss` on the last four bytes before a guard page faults, because QEMU reads 16 bytes.
/// Processors read four.
const READ_BEYOND_BY_QEMU: usize = 12;

/// End of a buffer that has the guard page.
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
        // SAFETY: the call creates a new anonymous mapping and affects no other memory.
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
        // SAFETY: the bytes are inside the writable part of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), bytes, contents.len()) };
        Guarded { start, mapped, bytes }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping.
        unsafe { libc::munmap(self.start, self.mapped) };
    }
}

/// Targets that together cover the presence and the absence of every feature that selection checks.
/// Under QEMU, only targets that this CPU supports are used, because the emulator's results do not
/// depend on QEMU.
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

/// Whether every target has a lowering for the op.
pub fn has_lowering(op: Op) -> bool {
    !op.takes_tiles()
}

/// Compiled kernels that this machine can run.
pub enum Engine {
    /// Code that runs on this CPU.
    Native(Module),
    /// Code for the emulator, because the CPU lacks a feature.
    Emulated(Vec<(CompiledKernel, Program)>),
}

impl Engine {
    /// Compiles kernels for the target. If this CPU lacks a feature of the target, prints a line
    /// and uses the emulator.
    pub fn new(kernels: &[Kernel], target: Target) -> Engine {
        match Module::compile(kernels, target) {
            Err(CodegenError::MissingFeatures { missing, .. }) => {
                println!("EMULATED: {}: this machine lacks {}", target.name(), ixc_targets::cpu::list(&missing));
                Engine::Emulated(kernels.iter().map(|kernel| emulated(kernel, target)).collect())
            }
            module => Engine::Native(module.unwrap_or_else(|error| panic!("{error}"))),
        }
    }

    /// Returns the compiled form of a kernel; `None` for `portable`.
    pub fn compiled(&self, kernel: usize) -> Option<&CompiledKernel> {
        match self {
            Engine::Native(module) => match &module.kernels()[kernel].artifact {
                Artifact::X64(compiled) => Some(compiled),
                Artifact::Portable(_) => None,
            },
            Engine::Emulated(kernels) => Some(&kernels[kernel].0),
        }
    }

    /// Returns the positions of the guard page for which separate runs are needed. The emulator
    /// checks both ends of every buffer in one run.
    pub fn guards(&self) -> &[Guard] {
        match self {
            Engine::Native(_) => &[Guard::Before, Guard::After],
            Engine::Emulated(_) => &[Guard::After],
        }
    }

    /// Runs a kernel after checking its arguments.
    pub fn run(&self, number: usize, kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>], guard: Guard) {
        let views: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        ixc_codegen::module::check_arguments(&kernel.dims, &kernel.buffers, dims, &views)
            .unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        match self {
            Engine::Native(module) => {
                let guarded: Vec<Guarded> = buffers.iter().map(|b| Guarded::new(b, guard)).collect();
                let pointers: Vec<*mut u8> = guarded.iter().map(|g| g.bytes).collect();
                // SAFETY: the arguments were checked, and each buffer has its own mapping.
                unsafe { module.call(number, &pointers, dims) };
                for (buffer, guarded) in buffers.iter_mut().zip(&guarded) {
                    // SAFETY: `new` allocated these bytes.
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

fn emulated(kernel: &Kernel, target: Target) -> (CompiledKernel, Program) {
    let compiled = x64::compile(kernel, target).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let code = [&compiled.code[..], &compiled.constants].concat();
    let program = Program::new(&code, compiled.code_bytes, target.features());
    (compiled, program.unwrap_or_else(|fault| panic!("{}: {fault}", kernel.name)))
}
