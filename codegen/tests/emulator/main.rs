//! The emulator: what it computes, and what it refuses.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `amx` | tiles against the manual's pseudocode; every fault |
//! | `bochs` | single vector instructions against this CPU, and for Bochs to judge |
//! | `checks` | a planted bug of each kind, and what is said about it |
//! | `compiled` | compiled kernels against the interpreter |
//! | `exact` | (no tests) the manual's arithmetic a second time |
//! | `manual` | VNNI, BF16 and FP16 lanes against the manual's pseudocode |
//! | `native` | every instruction that this CPU has, against this CPU |
//! | `state` | (no tests) random register contents |
//! | `thunk` | (no tests) executing one instruction with all registers loaded before and stored after |

mod amx;
mod bochs;
mod checks;
mod compiled;
mod exact;
mod manual;
mod native;
mod state;
mod thunk;
