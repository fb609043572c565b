//! Bytes of code that a kernel takes on a PE.
//!
//! An instruction of kernel IR is taken to be one of 8 bytes (a vector instruction with its descriptor of where operands lie), a loop 16 more. Loops that
//! a CPU's code unrolls are loops here: a PE has no code memory to spare.
//!
//! ```text
//! for %i in 0..8 { %a = load ..  store .. }    2 * 8 + 16 = 32 bytes
//! ```

use ixc_ir::kernel::{Kernel, Stmt};

const INSTRUCTION: u64 = 8;
const LOOP: u64 = 16;
/// Set-up of buffers and dims.
const ENTRY: u64 = 64;

/// An estimate.
pub(super) fn bytes(kernel: &Kernel) -> u64 {
    let mut bytes = ENTRY;
    let mut open: Vec<&[Stmt]> = vec![&kernel.body];
    while let Some(body) = open.pop() {
        for stmt in body {
            match stmt {
                Stmt::Inst(_) | Stmt::LoadIndex { .. } => bytes += INSTRUCTION,
                Stmt::For(inner) => {
                    bytes += LOOP;
                    open.push(&inner.body);
                }
            }
        }
    }
    bytes
}
