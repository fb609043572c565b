//! Tests of the emulator: its results, and the faults that it must detect.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `amx` | tiles against the manual's pseudocode; every fault |
//! | `bochs` | single vector instructions, compared with Bochs |
//! | `checks` | a deliberate bug of each kind, and its fault |
//! | `compiled` | compiled kernels against the interpreter |
//! | `encoded` | encoded FP16 and AVX-VNNI instructions against the manual's pseudocode |
//! | `exact` | (no tests) a second implementation of the manual's arithmetic |
//! | `function` | (no tests) functions of one vector instruction |
//! | `half` | FP16 lanes against the manual's pseudocode |
//! | `manual` | VNNI and BF16 lanes against the manual's pseudocode |
//! | `native` | every instruction that this CPU has, against this CPU |
//! | `native_tiles` | tile instructions against a CPU with tiles: results, configurations, faults |
//! | `speed` | generated kernels against the interpreter, and the speed of emulating them |
//! | `apart` | (one test) running a function in its own process, so that its signal is a result |
//! | `state` | (no tests) random register contents |
//! | `thunk` | (no tests) executing one instruction, with all registers loaded and stored |

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
