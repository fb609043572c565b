//! The kernel op table, which declares every op once. The enum, the mnemonics, the verifier's
//! operand counts and type rules, and the op reference are derived from it. The interpreter and
//! every lowering match on [`Op`] without a `_` arm, so a new row does not compile until all of
//! them handle it.
//!
//! To add an op, add its row here, then its arm in `interpret.rs`, which is its definition, and
//! then its lowerings in `ixc-codegen`.
//!
//! "Chunk" below means 16 bytes of a vector. Ops that work "per chunk" treat each chunk separately,
//! as x86 does. One definition thus serves 128-, 256- and 512-bit machines.

use serde::{Deserialize, Serialize};

use super::{Elem, Type};
use crate::format::grids::{BYTE_TABLES, TABLES};

/// Kind of an op's immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImmKind {
    /// No immediate.
    None,
    /// An integer or a float, of the result's element type.
    Scalar,
    /// An integer. The op's documentation defines its meaning.
    Int,
    /// Bytes of a vector, as many as the result has.
    Bytes,
}

/// Memory access of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// No access.
    None,
    /// Reads [`Type::bytes`] bytes of the result type at the address.
    Load,
    /// Reads one element of the result type at the address.
    LoadElement,
    /// Writes the operand at the address.
    Store,
    /// Reads the rows of a tile. The immediate is the distance between rows in bytes
    /// ([`Type::extent`]).
    LoadRows,
    /// Writes the rows of a tile. The immediate is the distance between rows in bytes
    /// ([`Type::extent`]).
    StoreRows,
    /// No access. The op takes an affine expression instead of an address.
    Index,
    /// No access. The op names an address, which may be outside its buffer.
    Hint,
}

impl Memory {
    /// Whether the op defines a value.
    pub const fn has_result(self) -> bool {
        match self {
            Memory::None | Memory::Load | Memory::LoadElement | Memory::LoadRows | Memory::Index => true,
            Memory::Store | Memory::StoreRows | Memory::Hint => false,
        }
    }
}

/// Maximum distance in bytes from one row of a tile to the next.
pub const MAX_STRIDE: i64 = i32::MAX as i64;

/// Number of bytes in a lane of 32 bits. `lookup_quarter` selects one of these bytes.
pub const QUARTERS: i64 = 4;

/// A type rule. It takes the operand types, the type of the result or stored value, and the integer
/// immediate (0 if the op has none). `Err` has the expectation.
pub type TypeRule = fn(&[Type], Type, i64) -> Result<(), String>;

/// One row of the op table.
#[derive(Clone, Copy)]
pub struct OpRow {
    /// The op that this row declares.
    pub op: Op,
    /// Mnemonic in IR text.
    pub mnemonic: &'static str,
    /// Number of operands that are values.
    pub operands: usize,
    /// Kind of the op's immediate.
    pub imm: ImmKind,
    /// Memory access of the op.
    pub memory: Memory,
    /// Type rule of the op.
    pub rule: TypeRule,
    /// Documentation of the op in one line.
    pub doc: &'static str,
}

macro_rules! op_table {
    ($($variant:ident $mnemonic:literal $operands:literal $imm:ident $memory:ident $rule:expr, $doc:literal;)*) => {
        /// A kernel op.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Op { $(#[doc = $doc] $variant),* }

        /// The op table, in the order of [`Op`].
        pub static OPS: &[OpRow] = &[$(OpRow {
            op: Op::$variant, mnemonic: $mnemonic, operands: $operands, imm: ImmKind::$imm,
            memory: Memory::$memory, doc: $doc,
            rule: |operands, result, immediate| {
                if !Op::$variant.takes_tiles() {
                    vectors(operands, result)?;
                }
                let rule: TypeRule = $rule;
                rule(operands, result, immediate)
            },
        }),*];
    };
}

op_table! {
    // constants and indices
    Splat "splat" 0 Scalar None |_, r, _| elem_in(r, &[Elem::I8, Elem::I16, Elem::I32, Elem::F32]), "Every lane is the immediate.";
    Bytes "bytes" 0 Bytes None |_, _, _| Ok(()), "The immediate's bytes as a vector.";
    Iota "iota" 0 None None |_, r, _| elem_in(r, &[Elem::I32]), "Lane `i` is `i`.";
    Index "index" 0 None Index |_, r, _| equal(r, Type::i32(1)), "The affine value, modulo 2^32, as a scalar.";
    // memory
    Load "load" 0 None Load |_, _, _| Ok(()), "Loads the whole vector; no alignment needed.";
    LoadSplat "load_splat" 0 None LoadElement |_, _, _| Ok(()), "Loads one element into every lane.";
    Store "store" 1 None Store |o, r, _| equal(o[0], r), "Stores the vector.";
    Prefetch "prefetch" 0 None Hint |_, r, _| equal(r, Type::i8(1)), "Hint that the cache line at the address will be loaded soon; does nothing else. The address may lie outside its buffer.";
    // lanes
    Broadcast "broadcast" 1 None None |o, r, _| equal(o[0], Type::new(r.elem, 1)), "The scalar in every lane.";
    Extract "extract" 1 Int None |o, r, i| { equal(r, Type::new(o[0].elem, 1))?; check_below(i, i64::from(o[0].lanes)) }, "The lane with the immediate's number, as a scalar.";
    Slice "slice" 1 Int None slice, "Consecutive lanes, starting at the lane with the immediate's number, a multiple of the result's lanes.";
    Concat "concat" 2 None None |o, r, _| { equal(o[0], o[1])?; equal(r, Type::new(o[0].elem, o[0].lanes * 2)) }, "The first operand's lanes, then the second's.";
    JoinLo "join_lo" 2 None None join, "The lower half of the first operand, then the lower half of the second.";
    JoinHi "join_hi" 2 None None join, "The upper half of the first operand, then the upper half of the second.";
    Bitcast "bitcast" 1 None None |o, r, _| if o[0].bytes() == r.bytes() { Ok(()) } else { Err(format!("a result of {} bytes", o[0].bytes())) }, "The same bytes as another type.";
    UnpackLo "unpack_lo" 2 Int None unpack, "Per chunk: interleaves the lower 8 bytes of both operands in units of the immediate's bytes (1, 2, 4, 8).";
    UnpackHi "unpack_hi" 2 Int None unpack, "Per chunk: interleaves the upper 8 bytes of both operands in units of the immediate's bytes (1, 2, 4, 8).";
    SwapPairs "swap_pairs" 1 None None |o, r, _| { equal(o[0], r)?; elem_in(r, &[Elem::F32, Elem::I32])?; lanes_at_least(r, 2) }, "Exchanges lanes 2i and 2i+1.";
    Interleave "interleave" 1 None None |o, r, _| { equal(o[0], r)?; elem_in(r, &[Elem::I16, Elem::F16, Elem::Bf16])?; lanes_at_least(r, 2) }, "Lane 2i is lane i of the operand's lower half, lane 2i+1 is lane i of its upper half.";
    ShuffleBytes "shuffle_bytes" 2 None None |o, r, _| { equal(o[0], r)?; equal(o[1], r)?; elem_in(r, &[Elem::I8])?; lanes_at_least(r, 16) }, "Per chunk, byte i, with c the second operand's byte i: 0 if the top bit of c is set, else the first operand's byte number (c mod 16).";
    Lookup "lookup" 1 Int None |o, r, i| { equal(o[0], r)?; elem_in(r, &[Elem::I32])?; check_below(i, TABLES.len() as i64) }, "Lane i: the table entry whose number is the operand's lane i modulo the table's length, a power of two. The immediate numbers the table in `TABLES` of `ir/src/format/grids.rs`.";
    LookupQuarter "lookup_quarter" 2 Int None |o, r, i| { elem_in(r, &[Elem::I32])?; equal(o[0], Type::i8(r.lanes.saturating_mul(4)))?; equal(o[1], o[0])?; check_below(i, QUARTERS * TABLES.len() as i64) }, "Lane i: the table entry whose number is a + 256 * b modulo the table's length, where a and b are the bytes 4i+q of the first and second operand. The immediate is 4 times the number of the table, as for `lookup`, plus q.";
    LookupByte "lookup_byte" 2 Int None |o, r, i| { same2(o, r, &[Elem::I8])?; check_below(i, BYTE_TABLES.len() as i64) }, "Lane i: the table entry whose number is a + 256 * b modulo the table's length, a power of two. a and b are the lanes i of the first and second operand. The immediate numbers the table in `BYTE_TABLES` of `ir/src/format/grids.rs`.";
    Multishift "multishift" 2 None None |o, r, _| { same2(o, r, &[Elem::I8])?; lanes_at_least(r, 8) }, "Per 8 bytes, as 64 bits: byte i is the first operand's 8 bits that start at bit s, where s is the second operand's byte i modulo 64. After the last bit the first one follows again.";
    // float arithmetic
    Add "add" 2 None None float2, "Sum.";
    Sub "sub" 2 None None float2, "Difference.";
    Mul "mul" 2 None None float2, "Product.";
    Div "div" 2 None None float2, "Quotient, correctly rounded.";
    Min "min" 2 None None float2, "`a < b ? a : b`.";
    Max "max" 2 None None float2, "`a > b ? a : b`.";
    Sqrt "sqrt" 1 None None |o, r, _| { equal(o[0], r)?; elem_in(r, &[Elem::F32]) }, "Square root, correctly rounded.";
    Fma "fma" 3 None None |o, r, _| { equal(o[0], r)?; equal(o[1], r)?; equal(o[2], r)?; elem_in(r, &[Elem::F32]) }, "`a * b + c`, rounded once.";
    // integer arithmetic
    IAdd "iadd" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Wrapping sum.";
    ISub "isub" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Wrapping difference.";
    IMul "imul" 2 None None |o, r, _| same2(o, r, &[Elem::I16, Elem::I32]), "Wrapping product.";
    IMin "imin" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Signed minimum.";
    IMax "imax" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Signed maximum.";
    IAbs "iabs" 1 None None |o, r, _| { equal(o[0], r)?; elem_in(r, &[Elem::I8, Elem::I16, Elem::I32]) }, "Wrapping absolute value.";
    Sign "sign" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "The first operand; negated (wrapping) where the second is negative, 0 where the second is 0.";
    And "and" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Bitwise and.";
    Or "or" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Bitwise or.";
    Xor "xor" 2 None None |o, r, _| same2(o, r, &[Elem::I8, Elem::I16, Elem::I32]), "Bitwise exclusive or.";
    Shl "shl" 1 Int None shift, "Shift left by the immediate.";
    ShrU "shr_u" 1 Int None shift, "Logical shift right by the immediate.";
    ShrS "shr_s" 1 Int None shift, "Arithmetic shift right by the immediate.";
    // comparison
    CmpEq "cmp_eq" 2 None None |o, r, _| same2(o, r, &[Elem::I32]), "All ones where equal, else zeros.";
    CmpGt "cmp_gt" 2 None None |o, r, _| same2(o, r, &[Elem::I32]), "All ones where signed greater, else zeros.";
    CmpLtF "cmp_lt_f" 2 None None |o, r, _| { equal(o[0], o[1])?; elem_in(o[0], &[Elem::F32])?; equal(r, Type::i32(o[0].lanes)) }, "All ones where the first float is less (false with NaN), else zeros.";
    Select "select" 3 None None |o, r, _| { equal(o[0], Type::i32(r.lanes))?; equal(o[1], r)?; equal(o[2], r)?; elem_in(r, &[Elem::F32, Elem::I32]) }, "The second operand where the mask is set, else the third. The mask is the first operand: each lane all ones or all zeros.";
    // conversion
    ToF32 "to_f32" 1 None None |o, r, _| convert(o, r, Elem::I32, Elem::F32), "Signed integer to float, rounded to nearest even.";
    ToI32 "to_i32" 1 None None |o, r, _| convert(o, r, Elem::F32, Elem::I32), "Float to the nearest integer, ties to even; `i32::MIN` if out of range or NaN.";
    F16ToF32 "f16_to_f32" 1 None None |o, r, _| convert(o, r, Elem::F16, Elem::F32), "Half to single, exact; a NaN becomes quiet.";
    F32ToF16 "f32_to_f16" 1 None None |o, r, _| convert(o, r, Elem::F32, Elem::F16), "Single to half, rounded to nearest even.";
    ToBf16 "to_bf16" 1 None None |o, r, _| convert(o, r, Elem::F32, Elem::Bf16), "Single to bf16, rounded to nearest even. A denormal becomes a zero of the same sign, a NaN becomes quiet.";
    Bf16ToF32 "bf16_to_f32" 1 None None |o, r, _| convert(o, r, Elem::Bf16, Elem::F32), "bf16 to single, exact: appends 16 zero bits, also to a NaN.";
    ToBf16Pairs "to_bf16_pairs" 2 None None |o, r, _| { elem_in(r, &[Elem::Bf16])?; lanes_at_least(r, 2)?; equal(o[0], Type::f32(r.lanes / 2))?; equal(o[1], o[0]) }, "Lane 2i is `to_bf16` of the first operand's lane i, lane 2i+1 that of the second's.";
    ExtendS "extend_s" 1 None None widen, "Sign extension, lane by lane (i8 to i16 or i32, i16 to i32).";
    ExtendU "extend_u" 1 None None widen, "Zero extension, lane by lane (i8 to i16 or i32, i16 to i32).";
    NarrowS "narrow_s" 1 None None |o, r, _| widen(&[r], o[0], 0), "Signed saturation to a narrower integer, lane by lane.";
    // dot products
    Dot2U8S8 "dot2_u8s8" 2 None None |o, r, _| { equal(o[0], Type::i8(r.lanes * 2))?; equal(o[1], o[0])?; elem_in(r, &[Elem::I16]) }, "Lane i: the first operand's unsigned bytes 2i and 2i+1 times the second's signed ones, added with signed saturation.";
    Dot2S16 "dot2_s16" 2 None None |o, r, _| { equal(o[0], Type::i16(r.lanes * 2))?; equal(o[1], o[0])?; elem_in(r, &[Elem::I32]) }, "Lane i: the products of both operands' signed words 2i and 2i+1, added with wrapping.";
    Dot4U8S8 "dot4_u8s8" 3 None None |o, r, _| { equal(o[0], r)?; equal(o[1], Type::i8(r.lanes.saturating_mul(4)))?; equal(o[2], o[1])?; elem_in(r, &[Elem::I32]) }, "Lane i: the first operand's lane i, plus the products of the second's unsigned bytes 4i to 4i+3 and the third's signed ones; exact products, wrapping sums.";
    Dot2Bf16 "dot2_bf16" 3 None None |o, r, _| { equal(o[0], r)?; equal(o[1], Type::bf16(r.lanes.saturating_mul(2)))?; equal(o[2], o[1])?; elem_in(r, &[Elem::F32]) }, "Lane i: the first operand's lane i, plus the product of the others' lanes 2i+1, then plus the product of their lanes 2i. These are two fused multiply-adds, each rounded to nearest even. Denormal inputs and results become zeros of the same sign; a result is denormal if, rounded to 24 bits, it is below 2^-126.";
    // reductions; the order is fixed: upper half onto lower half until one lane is left
    ReduceAdd "reduce_add" 1 None None reduce, "Sum of all lanes: adds the upper half to the lower half until one lane is left.";
    ReduceMax "reduce_max" 1 None None reduce, "Maximum of all lanes: combines the upper and the lower half by `max` (floats) or `imax` (integers) until one lane is left.";
    ReduceMin "reduce_min" 1 None None reduce, "Minimum of all lanes: combines the upper and the lower half by `min` (floats) or `imin` (integers) until one lane is left.";
    // tiles
    TileZero "tile_zero" 0 None None |_, r, _| { tile(r)?; elem_in(r, &[Elem::I32, Elem::F32]) }, "A tile of zeros.";
    TileLoad "tile_load" 0 Int LoadRows |_, r, i| { tile(r)?; stride(i, 0) }, "Loads a tile. Row i is at the address plus i times the immediate, in bytes; any alignment, and rows may overlap.";
    TileStore "tile_store" 1 Int StoreRows |o, r, i| { equal(o[0], r)?; tile(r)?; stride(i, r.row_bytes()) }, "Stores a tile. Row i is at the address plus i times the immediate, in bytes; rows must not overlap.";
    TileDotBf16 "tile_dot_bf16" 3 None None |o, r, _| tile_dot(o, r, Elem::F32, Elem::Bf16), "`acc[m][n]` plus two sums over k: of `a[m][2k] * b[k][2n]`, and of `a[m][2k+1] * b[k][2n+1]`. Each sum starts from +0 and adds its products in the order of k by fused multiply-adds; both are added, then added to `acc`. Denormal inputs and results become zeros of the same sign.";
    TileDotS8S8 "tile_dot_s8s8" 3 None None |o, r, _| tile_dot(o, r, Elem::I32, Elem::I8), "`acc[m][n]` plus the sum over k and j in 0..4 of signed `a[m][4k+j]` times signed `b[k][4n+j]`; exact products, wrapping sums.";
    TileDotS8U8 "tile_dot_s8u8" 3 None None |o, r, _| tile_dot(o, r, Elem::I32, Elem::I8), "`acc[m][n]` plus the sum over k and j in 0..4 of signed `a[m][4k+j]` times unsigned `b[k][4n+j]`; exact products, wrapping sums.";
    TileDotU8S8 "tile_dot_u8s8" 3 None None |o, r, _| tile_dot(o, r, Elem::I32, Elem::I8), "`acc[m][n]` plus the sum over k and j in 0..4 of unsigned `a[m][4k+j]` times signed `b[k][4n+j]`; exact products, wrapping sums.";
    TileDotU8U8 "tile_dot_u8u8" 3 None None |o, r, _| tile_dot(o, r, Elem::I32, Elem::I8), "`acc[m][n]` plus the sum over k and j in 0..4 of unsigned `a[m][4k+j]` times unsigned `b[k][4n+j]`; exact products, wrapping sums.";
}

impl Op {
    /// Returns the row of the op table that declares this op.
    pub fn row(self) -> &'static OpRow {
        &OPS[self as usize]
    }

    /// Whether all operands and results of the op are tiles. Those of all other ops are vectors.
    pub const fn takes_tiles(self) -> bool {
        matches!(
            self,
            Op::TileZero
                | Op::TileLoad
                | Op::TileStore
                | Op::TileDotBf16
                | Op::TileDotS8S8
                | Op::TileDotS8U8
                | Op::TileDotU8S8
                | Op::TileDotU8U8
        )
    }

    /// Returns the op with this mnemonic, or `None`.
    pub fn from_mnemonic(mnemonic: &str) -> Option<Op> {
        OPS.iter().find(|row| row.mnemonic == mnemonic).map(|row| row.op)
    }
}

fn vectors(operands: &[Type], result: Type) -> Result<(), String> {
    match operands.iter().chain([&result]).find(|ty| ty.is_tile()) {
        Some(found) => Err(format!("vectors, found {found}; only ops whose names begin with `tile_` take tiles")),
        None => Ok(()),
    }
}

fn tile(ty: Type) -> Result<(), String> {
    if ty.is_tile() { Ok(()) } else { Err(format!("a tile such as tile<16x64xi8>, found {ty}")) }
}

fn stride(found: i64, least: u32) -> Result<(), String> {
    let expected = i64::from(least)..=MAX_STRIDE;
    if expected.contains(&found) {
        return Ok(());
    }
    Err(format!("{} to {MAX_STRIDE} bytes from one row to the next, found {found}", expected.start()))
}

/// Checks a product of tiles: `acc` is M x N, `a` has M rows and `b` has N columns. Each element of
/// `acc` is a sum of products of 4-byte groups, one of `a` and one of `b`.
fn tile_dot(o: &[Type], r: Type, sum: Elem, of: Elem) -> Result<(), String> {
    tile(r)?;
    elem_in(r, &[sum])?;
    equal(o[0], r)?;
    let group = (sum.bytes() / of.bytes()) as u16;
    tile(o[1])?;
    tile(o[2])?;
    equal(o[1], Type::tile(of, r.rows, u16::from(o[2].rows) * group))?;
    equal(o[2], Type::tile(of, o[2].rows, r.lanes.saturating_mul(group)))
}

fn equal(found: Type, expected: Type) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{expected}, found {found}")) }
}

fn elem_in(ty: Type, elems: &[Elem]) -> Result<(), String> {
    if elems.contains(&ty.elem) {
        return Ok(());
    }
    let names: Vec<_> = elems.iter().map(|e| e.name()).collect();
    Err(format!("an element type of {}, found {ty}", names.join(", ")))
}

fn lanes_at_least(ty: Type, lanes: u16) -> Result<(), String> {
    if ty.lanes >= lanes { Ok(()) } else { Err(format!("at least {lanes} lanes, found {ty}")) }
}

fn check_below(value: i64, limit: i64) -> Result<(), String> {
    if (0..limit).contains(&value) { Ok(()) } else { Err(format!("an immediate in 0..{limit}, found {value}")) }
}

fn same2(o: &[Type], r: Type, elems: &[Elem]) -> Result<(), String> {
    equal(o[0], r)?;
    equal(o[1], r)?;
    elem_in(r, elems)
}

fn float2(o: &[Type], r: Type, _: i64) -> Result<(), String> {
    same2(o, r, &[Elem::F32])
}

fn shift(o: &[Type], r: Type, by: i64) -> Result<(), String> {
    equal(o[0], r)?;
    elem_in(r, &[Elem::I16, Elem::I32])?;
    check_below(by, i64::from(r.elem.bytes()) * 8)
}

fn slice(o: &[Type], r: Type, first: i64) -> Result<(), String> {
    let lanes = i64::from(r.lanes);
    if r.elem == o[0].elem
        && r.lanes < o[0].lanes
        && first >= 0
        && first % lanes == 0
        && first <= i64::from(o[0].lanes) - lanes
    // A subtraction, because a sum with a hostile immediate could overflow.
    {
        return Ok(());
    }
    Err(format!(
        "fewer lanes of {}, whose first lane is a multiple of their number, found {r} from {first} of {}",
        o[0].elem.name(),
        o[0]
    ))
}

fn join(o: &[Type], r: Type, _: i64) -> Result<(), String> {
    equal(o[0], r)?;
    equal(o[1], r)?;
    if r.bytes() >= 32 { Ok(()) } else { Err(format!("vectors of at least 32 bytes, found {r}")) }
}

fn unpack(o: &[Type], r: Type, unit: i64) -> Result<(), String> {
    equal(o[0], r)?;
    equal(o[1], r)?;
    if r.bytes() >= 16 && [1, 2, 4, 8].contains(&unit) {
        return Ok(());
    }
    Err(format!("vectors of at least 16 bytes and a unit of 1, 2, 4 or 8, found {r} and {unit}"))
}

fn convert(o: &[Type], r: Type, from: Elem, to: Elem) -> Result<(), String> {
    equal(o[0], Type::new(from, r.lanes))?;
    elem_in(r, &[to])
}

fn widen(o: &[Type], r: Type, _: i64) -> Result<(), String> {
    let pairs = [(Elem::I8, Elem::I16), (Elem::I8, Elem::I32), (Elem::I16, Elem::I32)];
    if o[0].lanes == r.lanes && pairs.contains(&(o[0].elem, r.elem)) {
        return Ok(());
    }
    Err(format!("i8 with i16 or i32, or i16 with i32, with equal numbers of lanes, found {} and {r}", o[0]))
}

fn reduce(o: &[Type], r: Type, _: i64) -> Result<(), String> {
    equal(r, Type::new(o[0].elem, 1))?;
    elem_in(r, &[Elem::I32, Elem::F32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_the_enum_and_mnemonics_are_unique() {
        for (i, row) in OPS.iter().enumerate() {
            assert_eq!(row.op as usize, i, "{}", row.mnemonic);
            assert_eq!(Op::from_mnemonic(row.mnemonic), Some(row.op));
        }
    }
}
