//! What runs kernels: machine code, or the interpreter for tests and doubts.

use std::sync::{Mutex, PoisonError};

use ixc_codegen::module::Module;
use ixc_ir::kernel::Kernel;
use ixc_ir::kernel::interpret::{self, InterpretError};

/// What runs kernels.
#[derive(Debug)]
pub(crate) enum Backend {
    /// Machine code.
    Native(Module),
    /// The reference interpreter, one kernel at a time: slow, and the definition of what is right.
    Interpreter {
        /// The kernels.
        kernels: Vec<Kernel>,
        /// Held while a kernel runs, since its buffers are copied out and in.
        turn: Mutex<()>,
    },
}

impl Backend {
    /// Runs a kernel.
    ///
    /// # Safety
    /// As for [`Module::call`], with `sizes` the length of each buffer: its kernel's size for these dims.
    pub(crate) unsafe fn call(
        &self,
        kernel: usize,
        pointers: &[*mut u8],
        sizes: &[u64],
        dims: &[i64],
    ) -> Result<(), InterpretError> {
        match self {
            Backend::Native(module) => {
                // SAFETY: passed on to the caller.
                unsafe { module.call(kernel, pointers, dims) };
                Ok(())
            }
            Backend::Interpreter { kernels, turn } => {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let mut buffers: Vec<Vec<u8>> = Vec::with_capacity(sizes.len());
                for (&pointer, &size) in pointers.iter().zip(sizes) {
                    let mut copy = vec![0; size as usize];
                    // SAFETY: the caller says that the buffer is valid for its size; no other kernel runs meanwhile.
                    unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(pointer, copy.len()) };
                    buffers.push(copy);
                }
                interpret::run(&kernels[kernel], dims, &mut buffers)?;
                for ((buffer, copy), &pointer) in kernels[kernel].buffers.iter().zip(&buffers).zip(pointers) {
                    if buffer.kind.may_store() {
                        // SAFETY: as above, and the caller says that buffers of this kind are valid for writes.
                        unsafe { pointer.copy_from_nonoverlapping(copy.as_ptr(), copy.len()) };
                    }
                }
                Ok(())
            }
        }
    }
}
