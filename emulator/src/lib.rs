//! Executes finished x86-64 code, so that what is generated for AVX-512 and AMX can be tested on any machine, and checks
//! what no processor checks.
//!
//! The bytes are decoded with iced-x86's decoder; the semantics are written from the processor manual (Intel SDM volume 2),
//! never from the encoder's or the lowering's tables.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `program` | decoding once, the feature fence, calling, the checks at return |
//! | [`fault`] | what can go wrong |
//! | [`memory`] | buffers at guest addresses; every access is checked |
//! | [`state`] | registers |
//! | `op` | a decoded instruction |
//! | `general` | general-purpose instructions |
//! | `vector` | the one path of vector instructions: fetch, broadcast, compute, mask, write |
//! | `decode` | which row a vector instruction is of |
//! | `lanes` | loops over lanes |
//! | `integer`, `float`, `compare`, `convert`, `shuffle` | rows: a mnemonic and its lane maths |
//! | `wide` | fused multiply-adds |
//! | `masks`, `moves`, `cross` | mask instructions; moves, gathers and tiles; between vectors and general registers |
//! | [`soft`] | float arithmetic in every rounding mode |
//! | [`amx`] | tile instructions |
//! | [`dot`] | VNNI and BF16: lane maths of integer and bfloat16 dot products |
//! | [`half_ops`] | FP16: lane maths of half precision |
//!
//! What is deliberately not emulated is an unknown instruction: approximations whose bits differ by processor (`vrcp14ps`,
//! `vrsqrt14ps`), MXCSR, the second byte of a register (`ah`), calls, string instructions, and what no kernel has had a use
//! for yet (`vdpps`, `vmpsadbw`, `vdbpsadbw`, `vfixupimm…`, `vfpclass…`, `vgetmant…`, `vrange…`, complex half precision).
//!
//! # Lane maths apart
//!
//! `amx`, `dot` and `half_ops` know nothing of registers and operands: [`amx::decode`] and [`amx::execute`] take the tiles,
//! an address and a stride; `dot` and `half_ops` are functions over the bits of one lane. An operand `a` is the instruction's
//! second, `b` its third; `fma(x, y, z)` is x·y + z, and of several NaN x's wins, then y's, then z's.

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
