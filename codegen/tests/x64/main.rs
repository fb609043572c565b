//! Tests of the x86-64 lowering: results on every kind of target, and quality of the code.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `evex` | use of AVX-512 in hot code |
//! | `far` | strides and constants that exceed an instruction's fields |
//! | `generated` | generated kernels, against the `portable` target |
//! | `listing` | listings assemble to their own code |
//! | `limits` | rejected kernels |
//! | `native` | (no tests) running kernels with guard pages, or on the emulator |
//! | `ops` | every op with every type that its rule allows, against the interpreter |
//! | `random` | random kernels, against the interpreter |
//! | `quality` | hot loops have no spills or moves; instructions match the target's features |

mod evex;
mod far;
mod generated;
mod limits;
mod listing;
mod native;
mod ops;
mod quality;
mod random;
