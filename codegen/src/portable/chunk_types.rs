//! Chunks of 16 bytes: cranelift's values, from which vectors are built.

use cranelift_codegen::ir::{self, Value, types};
use ixc_ir::kernel::{Elem, Type};

/// Bytes of a chunk: cranelift's widest vector.
pub(super) const CHUNK_BYTES: usize = 16;

/// Chunks of a value, lowest lanes first.
pub(super) type Chunks = Vec<Value>;

/// Returns the number of chunks that hold a value of this type.
pub(super) fn chunk_count(ty: Type) -> usize {
    (ty.bytes() as usize).div_ceil(CHUNK_BYTES)
}

/// Returns cranelift's type of a chunk; f16 is an integer type in cranelift.
pub(super) fn chunk_type(elem: Elem) -> ir::Type {
    match elem {
        Elem::I8 => types::I8X16,
        Elem::I16 | Elem::F16 | Elem::Bf16 => types::I16X8,
        Elem::I32 => types::I32X4,
        Elem::F32 => types::F32X4,
    }
}
