//! Families of ops: each family has one function that selects its ops.
//!
//! Invariant: [`Family::from_op`] is the only match over all ops, and it has no wildcard. A new op
//! therefore does not compile until it has a family. Each selection function gets only ops of its
//! family.

use ixc_ir::kernel::Op;

/// The family of an op: each variant has its own selection function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// An op without operands that defines a vector.
    Nullary(NullaryOp),
    /// Stores a vector.
    Store,
    /// Hint that a cache line will be loaded.
    Prefetch,
    /// An op on tiles.
    Tile(TileOp),
    /// Reads bytes as another type.
    Bitcast,
    /// Copies a scalar to every lane.
    Broadcast,
    /// An op that computes a register from its operands.
    Computation(Computation),
}

/// An op without operands that defines a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullaryOp {
    Splat,
    Bytes,
    Iota,
    Index,
    Load,
    LoadSplat,
}

/// An op on tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileOp {
    Zero,
    Load,
    Store,
    Dot(TileDot),
}

/// A product of tiles, by the types of its factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileDot {
    Bf16,
    S8S8,
    S8U8,
    U8S8,
    U8U8,
}

/// An op that computes a register from its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computation {
    /// Takes consecutive lanes of a vector.
    Slice,
    Combine(CombineOp),
    SwapPairs,
    Interleave,
    Lookup,
    LookupQuarter,
    LookupByte,
    Multishift,
    Binary(BinaryOp),
    Bitwise(Bitwise),
    Comparison(Comparison),
    Unary(UnaryOp),
    Shift(ShiftOp),
    Fma,
    Select,
    Dot4U8S8,
    Dot2Bf16,
    ToBf16,
    ToBf16Pairs,
    Bf16ToF32,
    Extend(Extension),
    NarrowS,
    Reduce(Reduction),
}

/// An op that combines halves or interleaves units of two vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CombineOp {
    Concat,
    JoinLo,
    JoinHi,
    UnpackLo,
    UnpackHi,
}

/// An op of two operands that one instruction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    IAdd,
    ISub,
    IMul,
    IMin,
    IMax,
    Sign,
    Dot2U8S8,
    /// Products of pairs of words.
    Dot2S16,
    ShuffleBytes,
}

/// A bitwise op of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bitwise {
    And,
    Or,
    Xor,
}

/// An op that compares two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `a = b` for integers.
    Equal,
    /// `a > b` for signed integers.
    Greater,
    /// `a < b` for floats; false for NaN.
    LessFloat,
}

/// An op of one operand that one instruction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    Sqrt,
    IAbs,
    ToF32,
    ToI32,
    F16ToF32,
    F32ToF16,
}

/// A shift by an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShiftOp {
    Left,
    /// Shift to the right; the new bits are zeros.
    RightUnsigned,
    /// Shift to the right; the new bits are copies of the sign.
    RightSigned,
}

/// An extension to a wider integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    Sign,
    Zero,
}

/// A reduction of all lanes to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Add,
    Max,
    Min,
}

impl Family {
    /// Returns the family of an op.
    pub fn from_op(op: Op) -> Family {
        let nullary = Family::Nullary;
        let tile_dot = |factors| Family::Tile(TileOp::Dot(factors));
        let combine = |op| Family::Computation(Computation::Combine(op));
        let binary = |op| Family::Computation(Computation::Binary(op));
        let bitwise = |op| Family::Computation(Computation::Bitwise(op));
        let comparison = |op| Family::Computation(Computation::Comparison(op));
        let unary = |op| Family::Computation(Computation::Unary(op));
        let shift = |op| Family::Computation(Computation::Shift(op));
        let extend = |op| Family::Computation(Computation::Extend(op));
        let reduce = |op| Family::Computation(Computation::Reduce(op));
        match op {
            Op::Splat => nullary(NullaryOp::Splat),
            Op::Bytes => nullary(NullaryOp::Bytes),
            Op::Iota => nullary(NullaryOp::Iota),
            Op::Index => nullary(NullaryOp::Index),
            Op::Load => nullary(NullaryOp::Load),
            Op::LoadSplat => nullary(NullaryOp::LoadSplat),
            Op::Store => Family::Store,
            Op::Prefetch => Family::Prefetch,
            Op::Broadcast => Family::Broadcast,
            Op::Bitcast => Family::Bitcast,
            Op::Extract | Op::Slice => Family::Computation(Computation::Slice),
            Op::Concat => combine(CombineOp::Concat),
            Op::JoinLo => combine(CombineOp::JoinLo),
            Op::JoinHi => combine(CombineOp::JoinHi),
            Op::UnpackLo => combine(CombineOp::UnpackLo),
            Op::UnpackHi => combine(CombineOp::UnpackHi),
            Op::SwapPairs => Family::Computation(Computation::SwapPairs),
            Op::Interleave => Family::Computation(Computation::Interleave),
            Op::ShuffleBytes => binary(BinaryOp::ShuffleBytes),
            Op::Lookup => Family::Computation(Computation::Lookup),
            Op::LookupQuarter => Family::Computation(Computation::LookupQuarter),
            Op::LookupByte => Family::Computation(Computation::LookupByte),
            Op::Multishift => Family::Computation(Computation::Multishift),
            Op::Add => binary(BinaryOp::Add),
            Op::Sub => binary(BinaryOp::Sub),
            Op::Mul => binary(BinaryOp::Mul),
            Op::Div => binary(BinaryOp::Div),
            Op::Min => binary(BinaryOp::Min),
            Op::Max => binary(BinaryOp::Max),
            Op::Sqrt => unary(UnaryOp::Sqrt),
            Op::Fma => Family::Computation(Computation::Fma),
            Op::IAdd => binary(BinaryOp::IAdd),
            Op::ISub => binary(BinaryOp::ISub),
            Op::IMul => binary(BinaryOp::IMul),
            Op::IMin => binary(BinaryOp::IMin),
            Op::IMax => binary(BinaryOp::IMax),
            Op::IAbs => unary(UnaryOp::IAbs),
            Op::Sign => binary(BinaryOp::Sign),
            Op::And => bitwise(Bitwise::And),
            Op::Or => bitwise(Bitwise::Or),
            Op::Xor => bitwise(Bitwise::Xor),
            Op::Shl => shift(ShiftOp::Left),
            Op::ShrU => shift(ShiftOp::RightUnsigned),
            Op::ShrS => shift(ShiftOp::RightSigned),
            Op::CmpEq => comparison(Comparison::Equal),
            Op::CmpGt => comparison(Comparison::Greater),
            Op::CmpLtF => comparison(Comparison::LessFloat),
            Op::Select => Family::Computation(Computation::Select),
            Op::ToF32 => unary(UnaryOp::ToF32),
            Op::ToI32 => unary(UnaryOp::ToI32),
            Op::F16ToF32 => unary(UnaryOp::F16ToF32),
            Op::F32ToF16 => unary(UnaryOp::F32ToF16),
            Op::ToBf16 => Family::Computation(Computation::ToBf16),
            Op::Bf16ToF32 => Family::Computation(Computation::Bf16ToF32),
            Op::ToBf16Pairs => Family::Computation(Computation::ToBf16Pairs),
            Op::ExtendS => extend(Extension::Sign),
            Op::ExtendU => extend(Extension::Zero),
            Op::NarrowS => Family::Computation(Computation::NarrowS),
            Op::Dot2U8S8 => binary(BinaryOp::Dot2U8S8),
            Op::Dot2S16 => binary(BinaryOp::Dot2S16),
            Op::Dot4U8S8 => Family::Computation(Computation::Dot4U8S8),
            Op::Dot2Bf16 => Family::Computation(Computation::Dot2Bf16),
            Op::ReduceAdd => reduce(Reduction::Add),
            Op::ReduceMax => reduce(Reduction::Max),
            Op::ReduceMin => reduce(Reduction::Min),
            Op::TileZero => Family::Tile(TileOp::Zero),
            Op::TileLoad => Family::Tile(TileOp::Load),
            Op::TileStore => Family::Tile(TileOp::Store),
            Op::TileDotBf16 => tile_dot(TileDot::Bf16),
            Op::TileDotS8S8 => tile_dot(TileDot::S8S8),
            Op::TileDotS8U8 => tile_dot(TileDot::S8U8),
            Op::TileDotU8S8 => tile_dot(TileDot::U8S8),
            Op::TileDotU8U8 => tile_dot(TileDot::U8U8),
        }
    }

    /// Returns the computation, if this is one.
    pub fn computation(self) -> Option<Computation> {
        if let Family::Computation(op) = self { Some(op) } else { None }
    }
}
