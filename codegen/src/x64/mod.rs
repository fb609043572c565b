//! Lowering for x86-64.
