//! AMD's CPUs.
//!
//! The vector part of Zen 4 was measured on a Zen 4 machine: throughput and latency of each class
//! at 32 and 64 bytes. Loops of two classes showed which pipes (ports) the classes share. If each
//! class has two pipes, an instruction pair takes 1.0 cycles if both pipes are shared. It takes
//! 0.67 if one pipe is shared, and 0.5 if no pipe is shared. Pipes 0 and 1 multiply; 2 and 3 add
//! floats. A 64-byte vector takes a pipe twice.
//!
//! Zen 3 follows LLVM 19; it shares the rows of Zen 4 where LLVM and the measurements agree. Zen 5
//! is modelled from general knowledge: like Zen 4, but with whole 64-byte pipes and more integer
//! ports.

use super::CostSource::{Llvm, Measured, Unverified};
use super::{AVX512, CpuModel, Port, Row, WideVectors, both, narrow, same};
use crate::class::Class as C;

const fn port(key: char, name: &'static str) -> Port {
    Port { key, name }
}

const PORTS_ZEN3: &[Port] = &[
    port('a', "alu0"),
    port('b', "alu1"),
    port('c', "alu2"),
    port('d', "alu3"),
    port('u', "bru"),
    port('l', "agu0"),
    port('m', "agu1"),
    port('n', "agu2"),
    port('s', "st0"),
    port('t', "st1"),
    port('0', "fp0"),
    port('1', "fp1"),
    port('2', "fp2"),
    port('3', "fp3"),
    port('x', "fp45"),
];
const PORTS_ZEN5: &[Port] = &[
    port('a', "alu0"),
    port('b', "alu1"),
    port('c', "alu2"),
    port('d', "alu3"),
    port('e', "alu4"),
    port('f', "alu5"),
    port('u', "bru"),
    port('l', "agu0"),
    port('m', "agu1"),
    port('n', "agu2"),
    port('o', "agu3"),
    port('s', "st0"),
    port('t', "st1"),
    port('0', "fp0"),
    port('1', "fp1"),
    port('2', "fp2"),
    port('3', "fp3"),
    port('x', "fp45"),
];

/// Zen 4, 2022.
pub static ZEN4: CpuModel = CpuModel {
    name: "zen4",
    about: "AMD Zen 4 (2022): 64-byte vectors in two halves",
    front_end: 6,
    ports: PORTS_ZEN3,
    closed_by_wide: "",
    wide: WideVectors::Halves,
    lacks: &[],
    tables: &[ZEN4_ROWS],
};

const ZEN4_ROWS: &[Row] = &[
    narrow(C::Nothing, "", 0, Unverified),
    narrow(C::IntAlu, "abcd", 1, Measured),
    narrow(C::IntMove, "", 0, Measured),
    narrow(C::IntShift, "bc", 1, Measured),
    narrow(C::Lea, "abcd", 1, Measured),
    narrow(C::LeaThree, "abcd+abcd", 2, Measured),
    narrow(C::IntMul, "b", 3, Measured),
    narrow(C::Branch, "au", 1, Llvm),
    narrow(C::Return, "lmn&au", 5, Llvm),
    // There are three accesses per cycle. At most two of these are vector loads, and at most one is
    // a vector store.
    narrow(C::LoadInt, "lmn", 4, Measured),
    narrow(C::StoreInt, "lmn&st", 1, Measured),
    same(C::Load, "lm", 7, 7, Measured),
    same(C::BroadcastNarrow, "lm", 7, 7, Measured),
    same(C::Store, "lmn&s", 1, 1, Measured),
    both(C::VecMove, "", "", 0, Measured),
    both(C::Zero, "", "", 0, Unverified),
    same(C::VecAdd, "0123", 1, 1, Measured),
    same(C::VecCompare, "0123", 1, 1, Measured),
    same(C::VecSign, "01", 2, 2, Measured),
    same(C::Logic, "0123", 1, 1, Measured),
    narrow(C::Blend, "01", 1, Measured),
    same(C::BlendMask, "0123", 1, 1, Measured),
    same(C::Shift, "23", 1, 1, Measured),
    same(C::ShiftCount, "23", 2, 2, Measured),
    same(C::Shuffle, "123", 1, 1, Measured),
    same(C::ShuffleBytes, "12", 2, 2, Measured),
    same(C::Align, "12", 2, 2, Measured),
    same(C::Pack, "12", 2, 2, Measured),
    same(C::Extract, "12", 3, 4, Measured),
    same(C::ExtractStore, "", 0, 0, Measured),
    same(C::Insert, "12", 1, 1, Measured),
    same(C::InsertLoad, "12", 1, 1, Measured),
    same(C::Permute, "12", 4, 5, Measured),
    same(C::PermuteWords, "12", 4, 5, Measured),
    same(C::PermuteBytes, "12", 4, 5, Measured),
    same(C::PermuteTwo, "12", 4, 5, Measured),
    same(C::PermuteTwoWords, "12", 4, 5, Measured),
    same(C::PermuteTwoBytes, "12", 4, 5, Measured),
    same(C::Multishift, "01", 3, 3, Measured),
    same(C::Broadcast, "12", 1, 1, Measured),
    narrow(C::ExtendShort, "12", 2, Measured),
    same(C::Extend, "12", 2, 4, Measured),
    same(C::Narrow, "12", 4, 5, Measured),
    both(C::NarrowStore, "12", "12", 4, Measured),
    same(C::FloatAdd, "23", 3, 3, Measured),
    same(C::FloatMul, "01", 3, 3, Measured),
    same(C::Fma, "01", 4, 4, Measured),
    same(C::FloatCompare, "23", 2, 2, Measured),
    same(C::FloatRound, "23", 3, 3, Measured),
    same(C::FloatScale, "23+23", 3, 3, Measured),
    same(C::FloatDiv, "1:3", 11, 11, Measured),
    same(C::FloatSqrt, "1:5", 15, 15, Measured),
    narrow(C::FloatDivShort, "1:3", 11, Measured),
    narrow(C::FloatSqrtShort, "1:5", 15, Measured),
    narrow(C::HorizontalAdd, "2:2+1+1", 4, Measured),
    same(C::MulWord, "01", 3, 3, Measured),
    same(C::MulDword, "01", 3, 3, Measured),
    same(C::DotInt, "01", 4, 4, Measured),
    same(C::DotBf16, "01", 6, 6, Measured),
    same(C::Convert, "23", 3, 3, Measured),
    same(C::HalfToFloat, "12+23", 4, 6, Measured),
    both(C::HalfToFloatLoad, "23", "12:2+23:2", 4, Measured),
    same(C::FloatToHalf, "12+23", 6, 7, Measured),
    narrow(C::FloatToHalfStore, "12+23&s", 6, Measured),
    same(C::FloatToBf16, "12+23", 6, 7, Measured),
    same(C::FloatToBf16Two, "12+23", 6, 7, Measured),
    same(C::CompareMask, "01", 3, 3, Measured),
    narrow(C::MaskLogic, "23", 1, Measured),
    narrow(C::MaskShift, "12", 1, Measured),
    narrow(C::MaskFromInt, "x", 5, Measured),
    narrow(C::MaskToInt, "x:2", 5, Measured),
    same(C::MaskToVector, "0123", 1, 1, Measured),
    narrow(C::VecToInt, "x", 3, Measured),
    narrow(C::VecToIntAny, "x+12", 4, Measured),
    narrow(C::IntToVec, "x", 3, Measured),
    narrow(C::IntToVecAny, "x+12", 4, Measured),
    both(C::IntBroadcast, "x", "x", 4, Measured),
    narrow(C::ElementInsert, "12", 1, Measured),
    narrow(C::ElementExtract, "12", 1, Measured),
    narrow(C::UpperZero, "0123:4", 0, Measured),
];

/// Zen 3, 2020.
pub static ZEN3: CpuModel = CpuModel {
    name: "zen3",
    about: "AMD Zen 3 (2020)",
    front_end: 6,
    ports: PORTS_ZEN3,
    closed_by_wide: "",
    wide: WideVectors::None,
    lacks: ZEN3_LACKS,
    tables: &[ZEN3_ROWS, ZEN4_ROWS],
};

/// Classes that Zen 3 lacks: AVX-512 and VNNI.
const ZEN3_LACKS: &[C] = &{
    let mut all = [C::DotInt; AVX512.len() + 1];
    let mut i = 0;
    while i < AVX512.len() {
        all[i] = AVX512[i];
        i += 1;
    }
    all
};

const ZEN3_ROWS: &[Row] = &[
    narrow(C::Blend, "01", 1, Llvm),
    narrow(C::VecSign, "01", 1, Llvm),
    narrow(C::Shift, "12", 1, Llvm),
    narrow(C::ShiftCount, "12", 1, Llvm),
    narrow(C::Shuffle, "12", 1, Llvm),
    narrow(C::ShuffleBytes, "12", 1, Llvm),
    narrow(C::Align, "12", 1, Llvm),
    narrow(C::Pack, "12", 1, Llvm),
    narrow(C::Extract, "0", 4, Llvm),
    narrow(C::Insert, "1", 2, Llvm),
    narrow(C::Permute, "1+", 5, Llvm),
    narrow(C::Broadcast, "1", 2, Llvm),
    narrow(C::ExtendShort, "12", 1, Llvm),
    narrow(C::Extend, "12+12:2", 4, Llvm),
    narrow(C::FloatCompare, "01", 1, Llvm),
    narrow(C::MulWord, "03", 3, Llvm),
    narrow(C::MulDword, "03", 3, Llvm),
    narrow(C::HalfToFloat, "23+23", 4, Llvm),
    narrow(C::HalfToFloatLoad, "23:2", 4, Llvm),
    narrow(C::FloatToHalf, "23+23", 6, Llvm),
    narrow(C::FloatToHalfStore, "23+23&s", 6, Unverified),
    narrow(C::VecToInt, "x", 1, Llvm),
    narrow(C::UpperZero, "0123", 0, Llvm),
];

/// Zen 5, 2024.
pub static ZEN5: CpuModel = CpuModel {
    name: "zen5",
    about: "AMD Zen 5 (2024): Zen 4 with whole 64-byte pipes and wider integers",
    front_end: 8,
    ports: PORTS_ZEN5,
    closed_by_wide: "",
    wide: WideVectors::Whole,
    lacks: &[],
    tables: &[ZEN5_ROWS, ZEN4_ROWS],
};

const ZEN5_ROWS: &[Row] = &[
    narrow(C::IntAlu, "abcdef", 1, Unverified),
    narrow(C::IntShift, "abc", 1, Unverified),
    narrow(C::Lea, "abcdef", 1, Unverified),
    narrow(C::IntMul, "abc", 3, Unverified),
    narrow(C::Return, "lmno&au", 5, Unverified),
    narrow(C::LoadInt, "lmno", 4, Unverified),
    narrow(C::StoreInt, "lmno&st", 1, Unverified),
    same(C::Load, "lm", 7, 7, Unverified),
    both(C::Store, "lmno&st", "lmno&s&t", 1, Unverified),
    // Integer vector ops have a latency of two cycles on this core.
    same(C::VecAdd, "0123", 2, 2, Unverified),
    same(C::VecCompare, "0123", 2, 2, Unverified),
    same(C::Logic, "0123", 2, 2, Unverified),
    same(C::Shift, "23", 2, 2, Unverified),
];
