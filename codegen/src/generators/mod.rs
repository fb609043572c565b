//! Kernel generators.
