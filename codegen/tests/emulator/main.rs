//! The emulator, checked against the processor manual and against this CPU.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `amx` | tiles against the manual's pseudocode; every fault |
//! | `exact` | (no tests) the manual's arithmetic a second time |
//! | `manual` | VNNI, BF16 and FP16 lanes against the manual's pseudocode |

mod amx;
mod exact;
mod manual;
