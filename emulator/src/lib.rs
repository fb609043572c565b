//! Emulator of finished x86-64 code. Code for AVX-512 and AMX can thus be tested on any machine.
//! The emulator also finds errors that processors do not report.
//!
//! The decoder of iced-x86 decodes the bytes. The semantics are written from the processor manual
//! (Intel SDM volume 2), never from the tables of the encoder or the lowering.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `program` | decoding once, the check of CPU features, calls, the checks at return |
//! | [`fault`] | the faults of a call |
//! | [`memory`] | buffers at guest addresses; every access is checked |
//! | [`state`] | registers |
//! | `op` | a decoded instruction |
//! | `general` | general-purpose instructions |
//! | `vector` | the common path of vector instructions: fetch, broadcast, compute, mask, write |
//! | `decode` | lookup of the table row of a vector instruction |
//! | `lanes` | loops over lanes |
//! | `integer`, `float`, `compare`, `convert`, `shuffle` | rows: mnemonics with lane arithmetic |
//! | `wide` | fused multiply-adds |
//! | `masks`, `moves` | mask instructions; moves, gathers and tiles |
//! | `cross` | instructions between vectors and general registers |
//! | [`soft`] | float arithmetic in every rounding mode |
//! | [`amx`] | tile instructions |
//! | [`dot`] | VNNI and BF16: lane arithmetic of integer and bfloat16 dot products |
//! | [`half_ops`] | FP16: lane arithmetic of half precision |
//!
//! Some instructions are deliberately not emulated, and count as unknown:
//!
//! - approximations whose bits differ by processor (`vrcp14ps`, `vrsqrt14ps`)
//! - MXCSR, the second byte of a register (`ah`), calls, string instructions
//! - instructions without use in a kernel: `vdpps`, `vmpsadbw`, `vdbpsadbw`, `vfixupimm…`,
//!   `vfpclass…`, `vgetmant…`, `vrange…`
//! - complex half precision, which kernels do not use
//!
//! # Separate lane arithmetic
//!
//! `amx`, `dot` and `half_ops` do not depend on registers and operands. [`amx::decode`] and
//! [`amx::execute`] take the tiles, an address and a stride. `dot` and `half_ops` have functions on
//! the bits of one lane. `a` is the second operand of the instruction, and `b` the third.
//! `fma(x, y, z)` is x·y + z. If several operands are NaN, the result is that of x, then y, then z.

pub mod amx;
mod compare;
mod convert;
mod cross;
mod decode;
pub mod dot;
pub mod fault;
mod float;
mod general;
pub mod half_ops;
mod integer;
mod lanes;
mod masks;
pub mod memory;
mod moves;
mod op;
mod program;
mod shuffle;
pub mod soft;
pub mod state;
mod vector;
mod wide;

pub use fault::{Fault, FaultKind};
pub use memory::Slice;
pub use program::{CallStats, Program};
