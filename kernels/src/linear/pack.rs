//! Packing: conversion of 16 rows of a weight in its file layout to a strip.
//!
//! The codes of a sub-block are unpacked to bytes for each of 16 rows. Four neighbouring codes form
//! a dword. The dwords of 8 rows by 8 groups are transposed, so that a vector holds one group of
//! four columns of all rows. Low and high bits are then shifted to their positions. Scales are
//! transposed as bytes, and floats of two bytes as words. Vectors have 32 bytes on every target,
//! because shuffles limit the speed and wider shuffles are not faster.
//!
//! ```text
//! row r: | q0 q1 q2 q3 | q4 .. |     ->     group g: | q[4g..4g+4] of row 0 | of row 1 | .. of row 15 |
//! ```

use ixc_ir::format::grids::{FourBytes, Grid};
use ixc_ir::format::packed::{self, CodesOfScales, STRIP as STRIP_ROWS};
use ixc_ir::format::{Codec, Float, Format, Quants, Scales};
use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Op, Type, ValueId};

use super::SUB;
use super::file::{self, Block, Shift, bits};
use super::packed::strip::VECTOR;
use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check_word};
use crate::generator::reference::{Mismatch, Run, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::linear;

const STRIP: i64 = STRIP_ROWS as i64;
/// Number of columns of floats that are transposed together.
const FLOATS: i64 = 16;
/// Number of bytes of a vector, which has half of a strip's rows.
const HALF: i64 = VECTOR / 2;

/// Maximum number of columns of a call.
const MAX_COLUMNS: i64 = 1 << 24;

/// Rows of a strip in the file layout. Row `r` begins at `first + r * row_bytes`.
pub struct Rows {
    pub buffer: BufferId,
    pub first: Affine,
    pub row_bytes: Affine,
    /// Number of rows that exist. The numbers of missing rows are packed as 0.
    pub count: i64,
}

impl Rows {
    /// Returns the address of byte `at` of row `r`.
    fn at(&self, r: i64, at: Affine) -> Affine {
        self.first.clone() + self.row_bytes.clone() * r + at
    }
}

/// Destination of the packed blocks of a strip.
pub struct Place {
    pub format: Format,
    pub buffer: BufferId,
    pub offset: Affine,
}

impl Place {
    fn store(&self, b: &mut KernelBuilder, at: Affine, value: ValueId) {
        b.store(self.buffer, self.offset.clone() + at, value);
    }
}

spec! {
    /// Packing of 16 rows of a weight in its file layout into a strip.
    pub struct Pack "pack" {
        /// Packed format of the strip.
        pub to: Format,
    }
}

/// Rows of the kernel catalogue: representative specs with names, one for each packed format.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("pack_f32_r16", 8, "pack to=f32_r16"),
    row("pack_f16_r16", 8, "pack to=f16_r16"),
    row("pack_bf16_r16", 8, "pack to=bf16_r16"),
    row("pack_q8_0_r16", 8, "pack to=q8_0_r16"),
    row("pack_q4_0_r16", 8, "pack to=q4_0_r16"),
    row("pack_q4_k_r16", 8, "pack to=q4_k_r16"),
    row("pack_q5_k_r16", 8, "pack to=q5_k_r16"),
    row("pack_q6_k_r16", 8, "pack to=q6_k_r16"),
    row("pack_mxfp4_r16", 8, "pack to=mxfp4_r16"),
    row("pack_nvfp4_r16", 32, "pack to=nvfp4_r16"),
    row("pack_iq4_xs_r16", 8, "pack to=iq4_xs_r16"),
    row("pack_q2_k_r16", 8, "pack to=q2_k_r16"),
    row("pack_q3_k_r16", 8, "pack to=q3_k_r16"),
    row("pack_iq3_xxs_r16", 8, "pack to=iq3_xxs_r16"),
    row("pack_iq3_s_r16", 8, "pack to=iq3_s_r16"),
    row("pack_iq2_xxs_r16", 8, "pack to=iq2_xxs_r16"),
    row("pack_iq2_xs_r16", 8, "pack to=iq2_xs_r16"),
    row("pack_iq2_s_r16", 8, "pack to=iq2_s_r16"),
    row("pack_i8_row_r16", 32, "pack to=i8_row_r16"),
    row("pack_i4_row_r16", 32, "pack to=i4_row_r16"),
    row("pack_i4_g128_r16", 16, "pack to=i4_g128_r16"),
];

impl Definition for Pack {
    fn name(&self) -> String {
        format!("pack_{}", self.to)
    }

    /// Returns the signature. The dim is the number of packed blocks. For floats, the dims are
    /// columns / 16 and columns % 16.
    fn signature(&self) -> Signature {
        let from = self.to.unpacked_format().unwrap_or(self.to);
        let signature = Signature::new()
            .read("rows", BufferContents::Table(from, "to"))
            .write("y", BufferContents::Strip(self.to, "to"));
        let signature = signature.dim_of_task("blocks");
        if self.to.is_quantised() { signature } else { signature.dim_of_task("rest") }
    }

    fn generate(&self, name: String, _: Vectors) -> Result<Kernel, GenerateError> {
        let Pack { to } = *self;
        let from = to.unpacked_format().unwrap_or(to);
        check_word(&name, "format of the result", to, to.unpacked_format().is_some(), "a packed one")?;
        let mut b = KernelBuilder::new(name);
        let (unit, rest): (i64, Option<DimId>);
        let blocks;
        match to.codec() {
            Codec::Float(_) => {
                unit = FLOATS;
                blocks = b.dim("blocks", 0, MAX_COLUMNS / FLOATS);
                rest = Some(b.dim("rest", 0, FLOATS - 1));
            }
            Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => {
                unit = to.block_len() as i64;
                blocks = b.dim("blocks", 1, MAX_COLUMNS / unit);
                rest = None;
            }
        }
        let bytes = |format: Format| {
            let whole = blocks * (unit / format.block_len() as i64 * format.block_bytes() as i64);
            let all = rest.map_or(whole.clone(), |rest| whole + rest * format.block_bytes() as i64);
            all + format.tail_bytes() as i64
        };
        let rows = b.read("rows", bytes(from) * STRIP);
        let y = b.buffer("y", BufferKind::Write, bytes(to) * STRIP);
        let rows = Rows { buffer: rows, first: Affine::constant(0), row_bytes: bytes(from), count: STRIP };
        let place = Place { format: to, buffer: y, offset: Affine::constant(0) };
        match (to.codec(), rest) {
            (Codec::Float(float), Some(rest)) => floats(&mut b, *float, &rows, blocks.into(), rest.into(), &place),
            _ => quants(&mut b, &rows, blocks.into(), 0, &place),
        }
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let y = run.output().get("y")?;
        let mut expected = vec![0; y.len()];
        packed::pack(self.to, run.input().get("rows")?, &mut expected);
        equal("y", y, &expected)
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let rest = i64::from(rows) % FLOATS;
        if self.to.is_quantised() { vec![rows.into()] } else { vec![rows.into(), rest] }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Packs rows of `k` columns, which are whole blocks of the file format. The last packed block may
/// have fewer columns.
pub fn pack_columns(b: &mut KernelBuilder, rows: &Rows, k: i64, to: &Place) {
    let len = to.format.block_len() as i64;
    match to.format.codec() {
        Codec::Float(float) => floats(b, *float, rows, (k / FLOATS).into(), (k % FLOATS).into(), to),
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => {
            quants(b, rows, (k / len).into(), k % len, to)
        }
    }
}

/// Packs `blocks` packed blocks, and `rest` additional columns.
fn quants(b: &mut KernelBuilder, rows: &Rows, blocks: Affine, rest: i64, to: &Place) {
    let from = to.format.unpacked_format().unwrap_or(to.format);
    let each = to.format.block_len() as i64 / from.block_len() as i64;
    let (from_bytes, to_bytes) = (each * from.block_bytes() as i64, STRIP * to.format.block_bytes() as i64);
    let block = |b: &mut KernelBuilder, number: Affine, blocks: i64| {
        let to = Place { offset: to.offset.clone() + number.clone() * to_bytes, ..*to };
        for i in 0..blocks {
            let at = number.clone() * from_bytes + i * from.block_bytes() as i64;
            let blocks = (0..STRIP).map(|r| {
                (r < rows.count).then(|| Block { buffer: rows.buffer, offset: rows.at(r, at.clone()), format: from })
            });
            pack_block(b, linear::quants(from), &blocks.collect::<Vec<_>>(), i, &to);
        }
    };
    if blocks != Affine::constant(0) {
        b.for_each("b", blocks.clone(), |b, i| block(b, i.into(), each));
    }
    if rest > 0 {
        block(b, blocks.clone(), rest / from.block_len() as i64);
    }
    if from.has_row_scale() {
        let (from_at, to_at) = (from.tail_field("d") as i64, to.format.tail_field("d") as i64);
        for r in 0..STRIP {
            let d = match r < rows.count {
                true => b.load(Type::i32(1), rows.buffer, rows.at(r, blocks.clone() * from_bytes + from_at)),
                false => b.splat_int(Type::i32(1), 0),
            };
            to.store(b, blocks.clone() * to_bytes + (to_at + 4 * r), d);
        }
    }
}

/// Packs block `number` of each row's part of a packed block.
fn pack_block(b: &mut KernelBuilder, codec: &Quants, rows: &[Option<Block>], number: i64, to: &Place) {
    let field = |name: &str| to.format.field(name) as i64;
    let format = to.format;
    for (name, float, _) in codec.numbers() {
        let bytes = float.packed_storage().bytes() as i64;
        let floats = format.unpacked_format().map_or(1, |from| (from.block_len() / from.d_columns()) as i64);
        for i in 0..floats {
            for (r, row) in (0..).zip(rows) {
                let float = match row {
                    Some(row) => file::number_bits(b, float, row.buffer, row.field(name) + i * float.bytes() as i64),
                    None => b.splat_int(file::whole(float.packed_storage().bytes()), 0),
                };
                to.store(b, Affine::constant(field(name) + bytes * ((number * floats + i) * STRIP + r)), float);
            }
        }
    }
    if format.has_field("pad") {
        let zero = b.splat_int(Type::i8(HALF as u16), 0);
        to.store(b, Affine::constant(field("pad")), zero);
    }
    let subs = format.unpacked_format().map_or(1, |from| from.block_len() as i64 / SUB);
    if let Some(grid) = codec.grid() {
        pack_grid(b, grid, rows, subs as usize, to);
    }
    // Formats without a grid have their codes in planes.
    let of_planes = if codec.grid().is_some() { 0 } else { subs };
    for sub in 0..of_planes {
        for (half, rows) in rows.chunks_exact(STRIP_ROWS / 2).enumerate() {
            let codes: Vec<ValueId> = rows
                .iter()
                .map(|row| {
                    let codes = match row {
                        Some(row) => row.codes(b, sub),
                        None => b.splat_int(file::BYTES, 0),
                    };
                    // Codes of eight bits are stored as the bytes that kernels multiply.
                    let codes = if codec.low.bits == 8 { file::bytes(b, codec, codes) } else { codes };
                    b.bitcast(Type::i32(8), codes)
                })
                .collect();
            let groups: Vec<ValueId> =
                exchange(b, &codes).into_iter().map(|group| b.bitcast(file::BYTES, group)).collect();
            for (vector, bytes) in vectors(b, codec, &groups).into_iter().enumerate() {
                let vector = (number * subs + sub) * codec.vectors().1 as i64 + vector as i64;
                to.store(b, Affine::constant(field("quants") + vector * VECTOR + half as i64 * HALF), bytes);
            }
        }
    }
    match codec.scales {
        Scales::None | Scales::Row => {}
        Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => match codec.codes_of_scales() {
            CodesOfScales::Bytes | CodesOfScales::Nibbles => pack_scales(b, codec, rows, to),
            // These codes of scales are packed together with the signs or with the high bits.
            CodesOfScales::AboveSigns | CodesOfScales::High { .. } => {}
        },
        Scales::Multiples { columns } => {
            let each = subs * SUB / columns as i64;
            for (r, row) in (0..).zip(rows) {
                for s in 0..each {
                    let scale = match row {
                        Some(row) => b.load(Type::i8(1), row.buffer, row.field("scales") + s),
                        None => b.splat_int(Type::i8(1), 0),
                    };
                    to.store(b, Affine::constant(field("scales") + STRIP * (number * each + s) + r), scale);
                }
            }
        }
    }
}

/// Packs the indices of a grid, the signs, and other bits that are stored with them. Each vector
/// has four bytes of each sub-block and row. Eight rows are transposed at a time.
fn pack_grid(b: &mut KernelBuilder, grid: &Grid, rows: &[Option<Block>], subs: usize, to: &Place) {
    let at = |name: &str, at: usize| Affine::constant((to.format.field(name) + at) as i64);
    let vectors: Vec<FourBytes> = (0..grid.vectors()).map(|vector| grid.vector(vector)).collect();
    for (i, own) in vectors.iter().enumerate() {
        // Vectors from the same field of the file are packed together, with the first of them.
        let is_own = |other: &FourBytes| other.field == own.field;
        if vectors[..i].iter().any(is_own) {
            continue;
        }
        for from in (0..own.stride * subs).step_by(HALF as usize) {
            for (half, rows) in rows.chunks_exact(STRIP_ROWS / 2).enumerate() {
                let bytes = rows.iter().map(|row| {
                    let Some(row) = row else { return b.splat_int(Type::i32(8), 0) };
                    let mut bytes = b.load(file::BYTES, row.buffer, row.field(own.field) + from as i64);
                    if own.step == 2 {
                        // The order takes the low bytes of four words, and then their high bytes.
                        let order = [0, 2, 4, 6, 1, 3, 5, 7].map(|byte| [byte, byte + 8]);
                        let order: Vec<u8> = (0..2).flat_map(|eight| order.map(|byte| byte[eight])).collect();
                        let order = b.bytes(file::BYTES, order.repeat(2));
                        bytes = b.same(Op::ShuffleBytes, &[bytes, order]);
                    }
                    b.bitcast(Type::i32(8), bytes)
                });
                let bytes: Vec<ValueId> = bytes.collect();
                for (dword, bytes) in exchange(b, &bytes).into_iter().enumerate() {
                    // Finds the vector that contains these bytes.
                    let place = from + 4 * dword;
                    let whose = vectors.iter().enumerate().filter(|(_, other)| is_own(other)).find(|(_, other)| {
                        place % other.stride == if other.step == 2 { 4 * other.first } else { other.first }
                    });
                    let Some((vector, _)) = whose else { continue };
                    let vector = place / own.stride * grid.vectors() + vector;
                    to.store(b, at("quants", vector * VECTOR as usize + half * HALF as usize), bytes);
                }
            }
        }
    }
    let Some(high) = grid.high() else { return };
    let (unit, each) = (high.bytes, Type::i8((high.bytes * subs) as u16));
    let all: Vec<ValueId> = rows
        .iter()
        .map(|row| {
            let bytes = match row {
                Some(row) => b.load(each, row.buffer, row.field("high")),
                None => b.splat_int(each, 0),
            };
            if unit == 2 { bytes } else { b.op(Op::Concat, Type::i8(16), &[bytes, bytes]) }
        })
        .collect();
    for (place, sixteen) in interleave(b, all, unit as i64).into_iter().take(unit * subs).enumerate() {
        to.store(b, at("high", place * STRIP_ROWS), sixteen);
    }
}

/// Returns the vectors of a sub-block for 8 rows: vectors of high bits, then vectors of low bits.
fn vectors(b: &mut KernelBuilder, codec: &Quants, groups: &[ValueId]) -> Vec<ValueId> {
    let (low, mut all) = (codec.low.bits as i64, Vec::new());
    if low == 8 {
        return groups.to_vec();
    }
    if let Some(high) = codec.high {
        let width = high.bits as i64;
        for groups in groups.chunks_exact(8 / high.bits) {
            let mut vector = None;
            for (place, group) in (0..).zip(groups) {
                // Shifts the bits from their position in the code to the position of the group.
                let to = width * place;
                let shift = if to <= low { Shift::right(low - to) } else { Shift::shift_left(to - low) };
                let bits = bits(b, *group, shift, ((1 << width) - 1) << to);
                vector = Some(match vector {
                    Some(vector) => b.same(Op::Or, &[vector, bits]),
                    None => bits,
                });
            }
            all.extend(vector);
        }
    }
    for groups in groups.chunks_exact(8 / codec.low.bits) {
        let mask = (1 << low) - 1;
        let first = if codec.high.is_some() { bits(b, groups[0], Shift::NONE, mask) } else { groups[0] };
        all.push((1..).zip(&groups[1..]).fold(first, |all, (place, group)| {
            let next = bits(b, *group, Shift::shift_left(low * place), mask << (low * place));
            b.same(Op::Or, &[all, next])
        }));
    }
    all
}

/// Packs the scales of a block, and its minimums, in the layout of [`super::packed`].
fn pack_scales(b: &mut KernelBuilder, codec: &Quants, rows: &[Option<Block>], to: &Place) {
    let ty = Type::i8(16);
    let nibbles = codec.codes_of_scales() == CodesOfScales::Nibbles;
    let all: Vec<ValueId> = rows
        .iter()
        .map(|row| match (row, codec.scales) {
            (Some(row), Scales::Coded(scales)) if nibbles => row.scale_codes(b, &scales),
            (Some(row), _) => row.scales(b),
            (None, _) => b.splat_int(ty, 0),
        })
        .collect();
    let columns = interleave(b, all, 1);
    let at = |name: &str, at: i64| Affine::constant(to.format.field(name) as i64 + at);
    if codec.scales != Scales::SixBits {
        // A block has sixteen or eight scales.
        let count = codec.scale_group_len().map_or(0, |columns| to.format.block_len() / columns);
        for (s, scales) in (0..).zip(columns.into_iter().take(count)) {
            if nibbles {
                let both = nibbles_of_rows(b, scales);
                to.store(b, at("scales", s * STRIP / 2), both);
            } else {
                to.store(b, at("scales", s * STRIP), scales);
            }
        }
        return;
    }
    let (scales, minimums) = columns.split_at(columns.len() / 2);
    for (s, (scales, minimums)) in (0..).zip(scales.iter().zip(minimums)) {
        let top = bits(b, *minimums, Shift::shift_left(2), 0xc0);
        let both = b.same(Op::Or, &[*scales, top]);
        to.store(b, at("scales", s * STRIP), both);
        let both = nibbles_of_rows(b, *minimums);
        to.store(b, at("mins", s * STRIP / 2), both);
    }
}

/// Packs the low nibbles of 16 bytes, one for each row. Rows 0 to 7 become the low nibbles of eight
/// bytes, and rows 8 to 15 the high nibbles.
fn nibbles_of_rows(b: &mut KernelBuilder, rows: ValueId) -> ValueId {
    let ty = b.ty(rows);
    let low = bits(b, rows, Shift::NONE, 15);
    let high = bits(b, rows, Shift::shift_left(4), 0xf0);
    let high = b.op_imm(Op::UnpackHi, ty, &[high, high], 8);
    let both = b.same(Op::Or, &[low, high]);
    b.op_imm(Op::Slice, Type::i8(8), &[both], 0)
}

/// Packs floats: 16 columns `sixteens` times, and then `rest` columns.
fn floats(b: &mut KernelBuilder, float: Float, rows: &Rows, sixteens: Affine, rest: Affine, to: &Place) {
    let bytes = float.bytes() as i64;
    if sixteens != Affine::constant(0) {
        b.for_each("b", sixteens.clone(), |b, i| {
            for part in 0..bytes / 2 {
                // Each iteration loads 32 bytes of each row.
                let from = i * (FLOATS * bytes) + part * HALF;
                let vectors: Vec<ValueId> = (0..STRIP)
                    .map(|r| match r < rows.count {
                        true => b.load(file::BYTES, rows.buffer, rows.at(r, from.clone())),
                        false => b.splat_int(file::BYTES, 0),
                    })
                    .collect();
                let column = i * FLOATS + part * (HALF / bytes);
                for (at, vector) in transpose_rows(b, float, vectors) {
                    to.store(b, column.clone() * (STRIP * bytes) + at, vector);
                }
            }
        });
    }
    if rest == Affine::constant(0) {
        return;
    }
    let ty = if bytes == 2 { Type::i16(1) } else { Type::i32(1) };
    b.for_each("column", rest, |b, i| {
        let column = sixteens.clone() * FLOATS + i;
        for r in 0..STRIP {
            let value = match r < rows.count {
                true => b.load(ty, rows.buffer, rows.at(r, column.clone() * bytes)),
                false => b.splat_int(ty, 0),
            };
            to.store(b, column.clone() * (STRIP * bytes) + r * bytes, value);
        }
    });
}

/// Transposes 32 bytes of floats of each of 16 rows. Returns parts of columns, each with its byte
/// offset.
fn transpose_rows(b: &mut KernelBuilder, float: Float, rows: Vec<ValueId>) -> Vec<(i64, ValueId)> {
    let mut all = Vec::new();
    match float {
        Float::F32 => {
            for (half, rows) in (0..).zip(rows.chunks_exact(STRIP_ROWS / 2)) {
                let rows: Vec<ValueId> = rows.iter().map(|row| b.bitcast(Type::i32(8), *row)).collect();
                let columns = exchange(b, &rows);
                all.extend((0..).zip(columns).map(|(c, column)| (c * VECTOR + half * HALF, column)));
            }
        }
        Float::F16 | Float::Bf16 => {
            // Each half of a vector then has 8 elements of a column, and a column is joined from
            // the halves of two vectors.
            for (c, pair) in (0..).zip(interleave(b, rows, 2).chunks_exact(2)) {
                let (low, high) = (b.same(Op::JoinLo, pair), b.same(Op::JoinHi, pair));
                all.extend([(c * HALF, low), ((8 + c) * HALF, high)]);
            }
        }
    }
    all
}

/// Transposes eight vectors of eight dwords each.
fn exchange(b: &mut KernelBuilder, rows: &[ValueId]) -> Vec<ValueId> {
    let ty = b.ty(rows[0]);
    let mut unpack = |op, x, y, unit| b.op_imm(op, ty, &[x, y], unit);
    let mut quads = [Vec::new(), Vec::new()];
    for (four, quad) in rows.chunks_exact(4).zip(&mut quads) {
        let (l0, h0) = (unpack(Op::UnpackLo, four[0], four[1], 4), unpack(Op::UnpackHi, four[0], four[1], 4));
        let (l1, h1) = (unpack(Op::UnpackLo, four[2], four[3], 4), unpack(Op::UnpackHi, four[2], four[3], 4));
        quad.extend([unpack(Op::UnpackLo, l0, l1, 8), unpack(Op::UnpackHi, l0, l1, 8)]);
        quad.extend([unpack(Op::UnpackLo, h0, h1, 8), unpack(Op::UnpackHi, h0, h1, 8)]);
    }
    let mut columns = Vec::new();
    for op in [Op::JoinLo, Op::JoinHi] {
        for (x, y) in quads[0].iter().zip(&quads[1]) {
            columns.push(b.op(op, ty, &[*x, *y]));
        }
    }
    columns
}

/// Transposes 16 vectors in each chunk of 16 bytes, with elements of `unit` bytes. The bits of an
/// element's index are those of its row, then those of its column. An interleaving of the first
/// half of the rows with the second half rotates these bits by one. Four steps thus exchange row
/// and column.
fn interleave(b: &mut KernelBuilder, mut rows: Vec<ValueId>, unit: i64) -> Vec<ValueId> {
    let ty = b.ty(rows[0]);
    for _ in 0..4 {
        let (first, second) = rows.split_at(rows.len() / 2);
        let pairs = first.iter().zip(second);
        rows =
            pairs.flat_map(|(x, y)| [Op::UnpackLo, Op::UnpackHi].map(|op| b.op_imm(op, ty, &[*x, *y], unit))).collect();
    }
    rows
}
