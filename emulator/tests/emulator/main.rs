//! The emulator: what it computes, and what it refuses.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `amx` | tiles against the manual's pseudocode; every fault |
//! | `bochs` | single vector instructions, for Bochs to judge |
//! | `checks` | a planted bug of each kind, and what is said about it |
//! | `compiled` | compiled kernels against the interpreter |
//! | `encoded` | encoded FP16 and AVX-VNNI instructions against the manual's pseudocode |
//! | `exact` | (no tests) the manual's arithmetic a second time |
//! | `function` | (no tests) functions of one vector instruction |
//! | `half` | FP16 lanes against the manual's pseudocode |
//! | `manual` | VNNI and BF16 lanes against the manual's pseudocode |
//! | `native` | every instruction that this CPU has, against this CPU |
//! | `native_tiles` | tile instructions against this CPU, where it has tiles: results, configurations, faults |
//! | `speed` | generated kernels against the interpreter, and how fast they are emulated |
//! | `apart` | (no tests but its own) running a function in a process of its own, so that its signal is a result |
//! | `state` | (no tests) random register contents |
//! | `thunk` | (no tests) executing one instruction with all registers loaded before and stored after |

mod amx;
mod apart;
mod bochs;
mod checks;
mod compiled;
mod encoded;
mod exact;
#[path = "bochs/function.rs"]
mod function;
mod half;
mod manual;
mod native;
mod native_tiles;
mod speed;
mod state;
mod thunk;
