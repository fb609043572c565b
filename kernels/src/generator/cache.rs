//! KV cache formats in kernels: the formats of keys and values, and code to read and write block
//! formats. [`ixc_ir::cache`] defines the memory layout.
//!
//! ```text
//! append   largest magnitude / least -> half d;  x / d -> integers -> codes: a position's part of a panel
//! values   a position's codes -> integers -> f32           // their d is put on the weights, once for 16 positions
//! keys     dwords of 16 positions -> bytes, for products of bytes
//! ```

use std::fmt;

use ixc_ir::cache::{CachedHead, Codes, is_cached};
use ixc_ir::format::Format;
use ixc_ir::kernel::{Address, Affine, BufferId, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};
use ixc_ir::state::StateKind;
use serde::{Deserialize, Serialize};

use crate::generator::buffer_offset::BufferOffset;
use crate::generator::generate::{GenerateError, check};
use crate::generator::reference::{Buffers, Mismatch};
use crate::generator::signature::BufferContents;
use crate::generator::text::{FieldKind, Value};

/// Number of positions in a strip, which are interleaved.
pub(crate) const STRIP: i64 = KEY_LANES as i64;
/// Number of bytes of an f16.
const HALF: i64 = 2;
/// Largest f16.
const MAX_F16: f32 = 65504.0;

/// Formats of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cache {
    /// Format of keys.
    pub keys: Format,
    /// Format of values.
    pub values: Format,
}

impl Default for Cache {
    /// Returns the formats of a state that does not specify any.
    fn default() -> Cache {
        let format = |name: &str| {
            let row = StateKind::Paged.row();
            row.fields[StateKind::Paged.field(name) as usize].format()
        };
        Cache { keys: format("keys"), values: format("values") }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.keys, self.values)
    }
}

impl Value for Cache {
    const KIND: FieldKind = FieldKind::Cache;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }

    fn read(text: Option<&str>) -> Option<Cache> {
        let (keys, values) = text?.split_once('/')?;
        let format = |name: &str| Format::from_name(name).filter(|format| is_cached(*format));
        Some(Cache { keys: format(keys)?, values: format(values)? })
    }

    fn expected_text() -> String {
        "the formats of keys and values, such as q8_0/f16".into()
    }
}

impl Cache {
    /// Returns the suffix of a kernel's name. It is empty for the default formats.
    pub(crate) fn suffix(&self) -> String {
        if *self == Cache::default() { String::new() } else { format!("_k{}_v{}", self.keys, self.values) }
    }

    /// Returns the layout of one head's keys.
    pub(crate) fn keys(&self, d: u32) -> Field {
        Field { format: self.keys, width: d.into(), keys: true }
    }

    /// Returns the layout of one head's values.
    pub(crate) fn values(&self, dv: u32) -> Field {
        Field { format: self.values, width: dv.into(), keys: false }
    }

    /// Checks that key and value heads consist of whole blocks.
    pub(crate) fn check(&self, name: &str, d: u32, dv: u32) -> Result<(), GenerateError> {
        let fields = [("elements of a key head", d, self.keys), ("elements of a value head", dv, self.values)];
        fields.into_iter().try_for_each(|(what, n, format)| {
            let block = format.block_len() as u32;
            check(name, what, n.into(), n.is_multiple_of(block), format!("a multiple of {block}, for {format}"))
        })
    }
}

/// Layout of the keys or values of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    format: Format,
    /// Number of elements of a key or value at one position.
    pub(crate) width: i64,
    keys: bool,
}

impl Field {
    /// Returns the block structure, or `None` for formats without blocks.
    pub(crate) fn codes(&self) -> Option<Blocks> {
        Codes::from_format(self.format).map(|codes| Blocks { codes, count: self.width / codes.len as i64 })
    }

    /// Returns the contents of the field's buffer, for a kernel's signature.
    pub(crate) fn holds(&self) -> BufferContents {
        match Codes::from_format(self.format) {
            Some(_) => BufferContents::Panels(self.format),
            None => BufferContents::Halves,
        }
    }

    /// Returns the number of bytes of one position. For panels of [`KEY_LANES`] positions, returns
    /// the panel's bytes divided by that number.
    pub(crate) fn position_bytes(&self) -> i64 {
        self.format.row_bytes(self.width.unsigned_abs()).map_or(0, u64::cast_signed)
    }

    /// Returns the number of bytes of [`KEY_LANES`] positions.
    pub(crate) fn strip_bytes(&self) -> i64 {
        STRIP * self.position_bytes()
    }

    /// Returns the number of bytes of [`ATTENTION_BLOCK`] positions.
    pub(crate) fn block_bytes(&self) -> i64 {
        i64::from(ATTENTION_BLOCK) * self.position_bytes()
    }

    /// Returns a function that reads an element of a position from a buffer.
    pub(crate) fn reader<'a>(
        &self,
        buffers: &Buffers<'a>,
        name: &'static str,
    ) -> Result<impl Fn(usize, usize) -> f64 + use<'a>, Mismatch> {
        let Field { format, width, keys } = *self;
        let bytes = buffers.get(name)?;
        let held = CachedHead { format, width: width as usize, keys, bytes };
        Ok(move |position, element| f64::from(held.at(position, element)))
    }

    /// Returns a bound of the rounding error of an element `x`. `largest` is the largest magnitude
    /// in its block.
    pub(crate) fn rounding(&self, x: f64, largest: f64) -> f64 {
        match Codes::from_format(self.format) {
            // f16 has 11 significant bits.
            None => x.abs() / 2048.0,
            // The error is at most half a step, plus the rounding of the scale. If the element with
            // the largest magnitude is at the end of the range that lacks a code, the error is a
            // whole step.
            Some(codes) => {
                let step = largest / f64::from(-codes.least);
                let lacks = f64::from(-codes.least - codes.most);
                step * (0.51 + lacks) + largest / 2048.0
            }
        }
    }

    /// Returns the number of elements that share a scale.
    pub(crate) fn block_len(&self) -> usize {
        self.format.block_len()
    }
}

/// Block structure of one head's keys or values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    codes: Codes,
    /// Number of blocks of a head.
    pub(crate) count: i64,
}

/// Function that emits `lanes` elements of a block, from an offset on.
pub(crate) type Elements<'a> = &'a dyn Fn(&mut KernelBuilder, Affine, u16) -> ValueId;

impl Blocks {
    /// Returns the number of elements of a block.
    pub(crate) fn len(&self) -> i64 {
        self.codes.len as i64
    }

    /// Returns the number of bytes of a panel.
    pub(crate) fn panel(&self) -> i64 {
        self.codes.panel() as i64
    }

    /// Returns the number of bytes that one position's codes take in a panel.
    pub(crate) fn bytes(&self) -> i64 {
        self.codes.bytes() as i64
    }

    /// Returns the number of dwords that one position's codes take in a panel.
    pub(crate) fn dwords(&self) -> i64 {
        self.bytes() / 4
    }

    /// Returns the number of codes in a byte.
    pub(crate) fn codes_per_byte(&self) -> i64 {
        8 / self.codes.plane.bits as i64
    }

    /// Returns the zero point of unsigned key codes. A code minus the zero point is the integer.
    pub(crate) fn zero(&self) -> i64 {
        self.codes.zero.into()
    }

    /// Returns the first of four elements in a dword. Their codes are the codes number `part` of
    /// the dword's bytes.
    pub(crate) fn element(&self, dword: i64, part: i64) -> i64 {
        let (run, first) = (self.codes.plane.run as i64, dword * 4);
        first / run * run * self.codes_per_byte() + first % run + part * run
    }

    /// Returns the offset, in a panel of keys, of dword `dword` of all positions.
    pub(crate) fn dword(&self, dword: i64) -> i64 {
        self.codes.first() as i64 + dword * STRIP * 4
    }

    /// Returns the offset, in a panel of values, of a position's codes.
    pub(crate) fn position(&self, position: impl Into<Affine>) -> Affine {
        position.into() * self.bytes() + self.codes.first() as i64
    }

    /// Loads the scales of `lanes` positions, from position `first` of the panel at `panel` on.
    pub(crate) fn scales(
        &self,
        b: &mut KernelBuilder,
        lanes: u16,
        buffer: BufferId,
        panel: Affine,
        first: i64,
    ) -> ValueId {
        let d = b.load(Type::f16(lanes), buffer, panel + first * HALF);
        b.op(Op::F16ToF32, Type::f32(lanes), &[d])
    }

    /// Extracts the codes number `part` of each byte of `dwords`. The results are bytes within
    /// dwords.
    pub(crate) fn codes(&self, b: &mut KernelBuilder, dwords: ValueId, part: i64) -> ValueId {
        if self.codes_per_byte() == 1 {
            return dwords;
        }
        let bits = self.codes.plane.bits as i64;
        let mask = b.splat_int(b.ty(dwords), (0x0101_0101 * ((1 << bits) - 1)) as i64);
        let shifted = if part == 0 { dwords } else { b.shift(Op::ShrU, dwords, part * bits) };
        b.same(Op::And, &[shifted, mask])
    }

    /// Converts keys to integers in f32. The codes are byte `byte` of each dword that
    /// [`Blocks::codes`] returns.
    pub(crate) fn key(&self, b: &mut KernelBuilder, codes: ValueId, byte: i64) -> ValueId {
        let ty = b.ty(codes);
        let shifted = if byte == 0 { codes } else { b.shift(Op::ShrU, codes, 8 * byte) };
        let code = if byte == 3 {
            shifted
        } else {
            let mask = b.splat_int(ty, 0xff);
            b.same(Op::And, &[shifted, mask])
        };
        let zero = b.splat_int(ty, self.zero());
        let integer = b.same(Op::ISub, &[code, zero]);
        b.op(Op::ToF32, Type::f32(ty.lanes), &[integer])
    }

    /// Converts elements of a position's value to integers in f32: `lanes` elements from element
    /// `element` of the block on. The position's codes begin at `codes`.
    pub(crate) fn value(
        &self,
        b: &mut KernelBuilder,
        lanes: u16,
        buffer: BufferId,
        codes: Affine,
        element: i64,
    ) -> ValueId {
        let (byte, shift) = self.codes.plane.place(element as usize);
        let (i8s, i32s) = (Type::i8(lanes), Type::i32(lanes));
        let bytes = b.load(i8s, buffer, codes + byte as i64);
        let integer = if self.codes.signed {
            b.op(Op::ExtendS, i32s, &[bytes])
        } else {
            let bytes = b.op(Op::ExtendU, i32s, &[bytes]);
            let shifted = if shift == 0 { bytes } else { b.shift(Op::ShrU, bytes, shift as i64) };
            let top = shift + self.codes.plane.bits == 8;
            let code = if top {
                shifted
            } else {
                let mask = b.splat_int(i32s, (1 << self.codes.plane.bits) - 1);
                b.same(Op::And, &[shifted, mask])
            };
            let zero = b.splat_int(i32s, self.zero());
            b.same(Op::ISub, &[code, zero])
        };
        b.op(Op::ToF32, Type::f32(lanes), &[integer])
    }

    /// Quantises a block's elements, and stores them as position `lane` of the panel at `panel`.
    /// Codes of keys are first written to the scratch memory `keys`.
    pub(crate) fn append(
        &self,
        b: &mut KernelBuilder,
        lanes: u16,
        elements: Elements<'_>,
        panel: Address,
        lane: Affine,
        keys: Option<BufferOffset>,
    ) {
        let Address { buffer: to, offset: panel } = panel;
        let plane = self.codes.plane;
        // The codes of a vector's elements must be in adjacent bytes.
        let lanes = lanes.min(plane.run as u16).min(16);
        let (width, i32s) = (i64::from(lanes), Type::i32(lanes));
        let x: Vec<ValueId> =
            (0..self.len() / width).map(|i| elements(b, Affine::constant(i * width), lanes)).collect();
        let fold = |b: &mut KernelBuilder, op: Op, reduce: Op| {
            let all = x[1..].iter().fold(x[0], |all, x| b.same(op, &[all, *x]));
            b.op(reduce, Type::f32(1), &[all])
        };
        let (top, bottom) = (fold(b, Op::Max, Op::ReduceMax), fold(b, Op::Min, Op::ReduceMin));
        let (zero, one) = (b.splat_f32(1, 0.0), b.splat_f32(1, 1.0));
        let below = b.sub(zero, bottom);
        let negative = b.op(Op::CmpLtF, Type::i32(1), &[top, below]);
        let extreme = b.op(Op::Select, Type::f32(1), &[negative, bottom, top]);
        let part = b.splat_f32(1, (self.codes.least as f32).recip());
        let d = b.mul(extreme, part);
        let (most, least) = (b.splat_f32(1, MAX_F16), b.splat_f32(1, -MAX_F16));
        let d = b.same(Op::Min, &[d, most]);
        let d = b.same(Op::Max, &[d, least]);
        let half = b.op(Op::F32ToF16, Type::f16(1), &[d]);
        b.store(to, panel.clone() + lane.clone() * HALF, half);
        let d = b.op(Op::F16ToF32, Type::f32(1), &[half]);
        let magnitude = crate::generator::math::abs(b, d);
        let any = b.op(Op::CmpLtF, Type::i32(1), &[zero, magnitude]);
        let inverse = b.same(Op::Div, &[one, d]);
        let inverse = b.op(Op::Select, Type::f32(1), &[any, inverse, zero]);
        let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
        let (least, most) = (b.splat_int(i32s, self.codes.least.into()), b.splat_int(i32s, self.codes.most.into()));
        let integers: Vec<ValueId> = x
            .into_iter()
            .map(|x| {
                let x = b.mul(x, inverse);
                let q = b.op(Op::ToI32, i32s, &[x]);
                let q = b.same(Op::IMax, &[q, least]);
                b.same(Op::IMin, &[q, most])
            })
            .collect();
        let codes = |byte: i64| {
            let at = self.codes.first() as i64;
            match keys {
                Some(scratch) => (scratch.buffer, Affine::constant(scratch.at + byte)),
                None => (to, panel.clone() + lane.clone() * self.bytes() + (at + byte)),
            }
        };
        // Bytes are narrowed as signed numbers. An unsigned byte above 127 is therefore stored as
        // the value minus 256.
        let plain = self.codes.signed && keys.is_none();
        let mut byte = 0;
        while byte < self.bytes() {
            let first = self.element(byte / 4, 0) + byte % 4;
            let mut sum = None;
            for part in 0..self.codes_per_byte() {
                let q = integers[((first + part * plane.run as i64) / width) as usize];
                let q = if part == 0 { q } else { b.shift(Op::Shl, q, part * plane.bits as i64) };
                sum = Some(sum.map_or(q, |sum| b.iadd(sum, q)));
            }
            let Some(sum) = sum else { break };
            // Sum of the zero points of all codes of a byte, minus 128.
            let zero =
                (0..self.codes_per_byte()).fold(0, |zero, part| zero + (self.zero() << (part * plane.bits as i64)));
            let narrow = if plain {
                b.op(Op::NarrowS, Type::i8(lanes), &[sum])
            } else {
                let sum = if zero == 128 {
                    sum
                } else {
                    let zero = b.splat_int(i32s, zero - 128);
                    b.iadd(sum, zero)
                };
                let narrow = b.op(Op::NarrowS, Type::i8(lanes), &[sum]);
                let up = b.splat_int(Type::i8(lanes), -128);
                b.iadd(narrow, up)
            };
            let (buffer, at) = codes(byte);
            b.store(buffer, at, narrow);
            byte += width;
        }
        if let Some(scratch) = keys {
            for dword in 0..self.dwords() {
                let codes = b.load(Type::i32(1), scratch.buffer, scratch.at + dword * 4);
                b.store(to, panel.clone() + lane.clone() * 4 + self.dword(dword), codes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_formats_read_back_and_invalid_text_is_refused() {
        let cache = |text: &str| Cache::read(Some(text));
        assert_eq!(cache("f16/f16"), Some(Cache::default()));
        assert_eq!(cache("q8_0/q4_0").unwrap().to_string(), "q8_0/q4_0");
        assert_eq!(cache("q8_0/q4_0").unwrap().suffix(), "_kq8_0_vq4_0");
        for wrong in ["", "q8_0", "q8_0/", "q8_0/q4_k", "f32/f16", "q8_0/f16/f16"] {
            assert_eq!(cache(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cached_elements_are_placed_as_the_plane_states() {
        for format in ["q8_0", "q4_0"].map(|name| Format::from_name(name).unwrap()) {
            let codes = Codes::from_format(format).unwrap();
            let blocks = Blocks { codes, count: 1 };
            for dword in 0..blocks.dwords() {
                for part in 0..blocks.codes_per_byte() {
                    let place = codes.plane.place(blocks.element(dword, part) as usize);
                    assert_eq!(place, (dword as usize * 4, part as usize * codes.plane.bits));
                }
            }
        }
    }
}
