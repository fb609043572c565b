//! The backends that run kernels. They are machine code, the emulator for targets that this machine
//! does not support, and the reference interpreter.

use std::sync::{Mutex, PoisonError};

use ixc_codegen::artifact::Artifact;
use ixc_codegen::module::Module;
use ixc_emulator::{Program, Slice};
use ixc_ir::kernel::{Kernel, interpret};
use ixc_targets::{Lowering, Target};

use crate::error::execute::Problem;
use crate::error::load::LoadError;

/// A backend that runs kernels.
#[derive(Debug)]
pub(crate) enum Backend {
    /// Machine code that this machine runs.
    Native(Module),
    /// Machine code in the emulator. It runs code of any x86 target on any machine, with any number
    /// of threads.
    Emulated(Vec<EmulatedCode>),
    /// The reference interpreter, which runs one kernel at a time. It is slow, but it defines the
    /// correct results.
    Interpreter {
        /// Kernels of the plan.
        kernels: Vec<Kernel>,
        /// Lock that is held while a kernel runs, because its buffers are copied out and back.
        turn: Mutex<()>,
    },
}

/// The code of a kernel in the emulator.
pub(crate) struct EmulatedCode {
    program: Program,
    /// Name of each buffer, and whether the kernel may write it.
    buffers: Vec<(String, bool)>,
}

impl std::fmt::Debug for EmulatedCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Emulated({} instructions)", self.program.len())
    }
}

impl Backend {
    /// Compiles verified kernels for the emulator.
    ///
    /// # Errors
    /// Fails if the target cannot be emulated, a kernel has no code for it, or the emulator refuses
    /// the code.
    pub(crate) fn compile_emulated(kernels: &[Kernel], target: Target) -> Result<Backend, LoadError> {
        if target.isa().lowering != Lowering::X64 {
            return Err(LoadError::NotEmulated { target });
        }
        let emulated = kernels.iter().map(|kernel| {
            let artifact = Artifact::generate(kernel, target, false).map_err(Box::new).map_err(LoadError::Codegen)?;
            let Artifact::X64(compiled) = artifact else { return Err(LoadError::NotEmulated { target }) };
            let code = [&compiled.code[..], &compiled.constants].concat();
            let program = Program::new(&code, compiled.code_bytes, target.features());
            let program =
                program.map_err(|fault| LoadError::Fault { kernel: kernel.name.clone(), source: Box::new(fault) })?;
            let buffers = kernel.buffers.iter().map(|buffer| (buffer.name.clone(), buffer.kind.may_store())).collect();
            Ok(EmulatedCode { program, buffers })
        });
        emulated.collect::<Result<_, LoadError>>().map(Backend::Emulated)
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// See [`Module::call`]. `sizes` has the length of each buffer in bytes, as the kernel declares
    /// it for `dims`.
    pub(crate) unsafe fn call(
        &self,
        kernel: usize,
        pointers: &[*mut u8],
        sizes: &[u64],
        dims: &[i64],
    ) -> Result<(), Problem> {
        match self {
            Backend::Native(module) => {
                // SAFETY: the caller guarantees the conditions of `Module::call`.
                unsafe { module.call(kernel, pointers, dims) };
                Ok(())
            }
            Backend::Emulated(kernels) => {
                let kernel = &kernels[kernel];
                let buffers = kernel.buffers.iter().zip(pointers.iter().zip(sizes));
                let slices: Vec<Slice<'_>> = buffers
                    .map(|((name, writable), (&pointer, &size))| {
                        // SAFETY: the caller guarantees that the buffer is valid for its size, and
                        // for writes if it is writable. Threads write disjoint bytes of it, as they
                        // do with machine code.
                        unsafe { Slice::new(name, pointer, size as usize, *writable) }
                    })
                    .collect();
                kernel.program.call(&slices, dims).map(drop).map_err(|fault| Problem::Fault(Box::new(fault)))
            }
            Backend::Interpreter { kernels, turn } => {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let mut buffers: Vec<Vec<u8>> = Vec::with_capacity(sizes.len());
                for (&pointer, &size) in pointers.iter().zip(sizes) {
                    let mut copy = vec![0; size as usize];
                    // SAFETY: the caller guarantees that the buffer is valid for its size. No other
                    // kernel runs meanwhile.
                    unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(pointer, copy.len()) };
                    buffers.push(copy);
                }
                interpret::run(&kernels[kernel], dims, &mut buffers).map_err(Problem::Interpret)?;
                for ((buffer, copy), &pointer) in kernels[kernel].buffers.iter().zip(&buffers).zip(pointers) {
                    if buffer.kind.may_store() {
                        // SAFETY: the caller guarantees that the buffer is valid for its size, and
                        // that writable buffers are valid for writes.
                        unsafe { pointer.copy_from_nonoverlapping(copy.as_ptr(), copy.len()) };
                    }
                }
                Ok(())
            }
        }
    }
}
