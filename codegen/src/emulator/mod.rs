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
//! # Contract of the parts that are pure lane maths
//!
//! - `amx`: `Tiles` (`Default` is the state after `tilerelease`; `is_init()`), `decode(&iced_x86::Instruction) ->
//!   Option<TileOp>` once per instruction, and `execute(op: &TileOp, tiles: &mut Tiles, memory: &mut Memory, address: u64,
//!   stride: u64) -> Result<(), Trap>`: `address` is base + displacement (the whole effective address for the
//!   configuration instructions), `stride` index << scale, sign included. Faults are `FaultKind::Tile` with the reason, and
//!   those of [`memory`].
//! - `dot`: functions over the 32 bits of one lane: `fn(accumulator: u32, a: u32, b: u32) -> u32`, `a` the second
//!   operand of the instruction and `b` its third, named as the instruction without `v` (`pdpbusd`, `dpbf16ps`, …);
//!   `cvtneps2bf16(u32) -> u16`.
//! - `half_ops`: functions over the 16 bits of one lane, with a [`soft::Rounding`] where the instruction rounds:
//!   `add(a: u16, b: u16, rounding: Rounding) -> u16`, `sub`, `mul`, `div`, `sqrt(a, rounding)`, `min`, `max`, `fma(x, y, z,
//!   rounding)` = x·y + z (of several NaNs x's wins, then y's, then z's), `compare(a, b, predicate: u8) -> bool`,
//!   conversions `to_f32(u16) -> u32`, `from_f32(u32, Rounding) -> u16`, `to_i16`, `to_u16`, `from_i16`, `from_u16`, `to_i32`,
//!   `from_i32`, …, `round_scale(a, imm)`.

pub mod amx;
mod compare;
mod convert;
mod cross;
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
