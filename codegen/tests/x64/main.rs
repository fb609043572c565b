//! The x86-64 lowering: what it computes for every kind of target, and how good its code is.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `evex` | what AVX-512 has is used where it counts |
//! | `far` | strides and constants that no instruction holds |
//! | `generated` | what the generators make, against the `portable` target |
//! | `listing` | listings assemble to what they list |
//! | `limits` | what is refused |
//! | `native` | (no tests) running a kernel with every buffer against a guard page, or on the emulator |
//! | `ops` | every op with every type that its rule allows, against the interpreter |
//! | `random` | random kernels, against the interpreter |
//! | `quality` | hot loops come out without spills and moves; instructions keep to the target's features |

mod evex;
mod far;
mod generated;
mod limits;
mod listing;
mod native;
mod ops;
mod quality;
mod random;
