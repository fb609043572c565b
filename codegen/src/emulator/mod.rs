//! Executes finished x86-64 code, so that what is generated for AVX-512 and AMX can be tested on any machine, and checks
//! what no processor checks.
//!
//! The bytes are decoded with iced-x86's decoder; the semantics are written from the processor manual (Intel SDM volume 2),
//! never from the encoder's or the lowering's tables.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`fault`] | what can go wrong |
//! | [`memory`] | buffers at guest addresses; every access is checked |
//! | [`state`] | registers |
//! | [`soft`] | float arithmetic in every rounding mode |
//! | [`amx`] | tile instructions |
//! | [`dot`] | VNNI and BF16: lane maths of integer and bfloat16 dot products |
//! | [`half_ops`] | FP16: lane maths of half precision |
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
pub mod dot;
pub mod fault;
pub mod half_ops;
pub mod memory;
pub mod soft;
pub mod state;
