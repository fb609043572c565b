//! Lowering through cranelift.
