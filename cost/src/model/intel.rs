//! Intel's CPUs.
//!
//! Rows marked `Llvm` are from LLVM 19, checked one by one against `llvm-mca --instruction-tables`
//! with one instruction of each class. LLVM models the client CPU, which has one 64-byte
//! multiplier. The server CPU has a second multiplier on port 5. Rows that include it are marked
//! `Unverified`. Sapphire Rapids' tiles are from `FACTS.md`.

use super::CostSource::{Llvm, Manual, Unverified};
use super::{AVX512, CpuModel, Port, Row, WideVectors, both, narrow};
use crate::class::Class as C;

const fn port(key: char, name: &'static str) -> Port {
    Port { key, name }
}

const PORTS_HASWELL: &[Port] = &[
    port('0', "p0"),
    port('1', "p1"),
    port('2', "p2"),
    port('3', "p3"),
    port('4', "p4"),
    port('5', "p5"),
    port('6', "p6"),
    port('7', "p7"),
    port('d', "div"),
];
const PORTS_ICELAKE: &[Port] = &[
    port('0', "p0"),
    port('1', "p1"),
    port('2', "p2"),
    port('3', "p3"),
    port('4', "p4"),
    port('5', "p5"),
    port('6', "p6"),
    port('7', "p7"),
    port('8', "p8"),
    port('9', "p9"),
    port('d', "div"),
];
const PORTS_GOLDEN_COVE: &[Port] = &[
    port('0', "p0"),
    port('1', "p1"),
    port('2', "p2"),
    port('3', "p3"),
    port('4', "p4"),
    port('5', "p5"),
    port('6', "p6"),
    port('7', "p7"),
    port('8', "p8"),
    port('9', "p9"),
    port('A', "p10"),
    port('B', "p11"),
    port('d', "div"),
    port('T', "tile"),
];

/// Haswell, 2013. It has three vector ports, but integer products run only on port 0, and all
/// shuffles on port 5.
pub static HASWELL: CpuModel = CpuModel {
    name: "haswell",
    about: "Intel Haswell (2013), also for the target avx2",
    front_end: 4,
    ports: PORTS_HASWELL,
    closed_by_wide: "",
    wide: WideVectors::None,
    lacks: &[],
    tables: &[HASWELL_ROWS],
};

const HASWELL_ROWS: &[Row] = &[
    narrow(C::Nothing, "", 0, Unverified),
    narrow(C::IntAlu, "0156", 1, Llvm),
    narrow(C::IntMove, "0156", 1, Llvm),
    narrow(C::IntShift, "06", 1, Llvm),
    narrow(C::Lea, "15", 1, Llvm),
    narrow(C::LeaThree, "1", 3, Unverified),
    narrow(C::IntMul, "1", 3, Llvm),
    narrow(C::Branch, "06", 1, Llvm),
    narrow(C::Return, "23&06", 7, Llvm),
    narrow(C::LoadInt, "23", 5, Llvm),
    narrow(C::StoreInt, "237&4", 1, Llvm),
    narrow(C::Load, "23", 7, Llvm),
    narrow(C::BroadcastNarrow, "23+5+015", 9, Llvm),
    narrow(C::Store, "237&4", 1, Llvm),
    narrow(C::VecMove, "", 0, Unverified),
    narrow(C::Zero, "", 0, Llvm),
    narrow(C::VecAdd, "15", 1, Llvm),
    narrow(C::VecCompare, "15", 1, Llvm),
    narrow(C::VecSign, "15", 1, Llvm),
    narrow(C::Logic, "015", 1, Llvm),
    narrow(C::Blend, "5+5", 2, Llvm),
    narrow(C::Shift, "0", 1, Llvm),
    narrow(C::ShiftCount, "0+5", 4, Unverified),
    narrow(C::Shuffle, "5", 1, Llvm),
    narrow(C::ShuffleBytes, "5", 1, Llvm),
    narrow(C::Align, "5", 1, Llvm),
    narrow(C::Pack, "5", 1, Llvm),
    narrow(C::Extract, "5", 3, Llvm),
    narrow(C::ExtractStore, "", 0, Unverified),
    narrow(C::Insert, "5", 3, Llvm),
    narrow(C::InsertLoad, "015", 1, Unverified),
    narrow(C::Permute, "5", 3, Llvm),
    narrow(C::Broadcast, "5", 3, Llvm),
    narrow(C::ExtendShort, "5", 1, Llvm),
    narrow(C::Extend, "5", 3, Llvm),
    narrow(C::FloatAdd, "1", 3, Llvm),
    narrow(C::FloatMul, "01", 5, Llvm),
    narrow(C::Fma, "01", 5, Llvm),
    narrow(C::FloatCompare, "1", 3, Llvm),
    narrow(C::FloatRound, "1+1", 6, Llvm),
    narrow(C::FloatDiv, "0+0+15&d:14", 21, Llvm),
    narrow(C::FloatSqrt, "0+0+15&d:14", 21, Llvm),
    narrow(C::FloatDivShort, "0&d:7", 13, Llvm),
    narrow(C::FloatSqrtShort, "0&d:7", 11, Llvm),
    narrow(C::HorizontalAdd, "1+5+5", 5, Llvm),
    narrow(C::MulWord, "0", 5, Llvm),
    narrow(C::MulDword, "0+0", 10, Llvm),
    narrow(C::Convert, "1", 3, Llvm),
    narrow(C::HalfToFloat, "0+5", 6, Unverified),
    narrow(C::HalfToFloatLoad, "0", 2, Llvm),
    narrow(C::FloatToHalf, "1+5", 6, Llvm),
    narrow(C::FloatToHalfStore, "1+5", 6, Unverified),
    narrow(C::VecToInt, "0", 1, Llvm),
    narrow(C::VecToIntAny, "0+5", 2, Llvm),
    narrow(C::IntToVec, "5", 1, Llvm),
    narrow(C::IntToVecAny, "5+5", 2, Llvm),
    narrow(C::ElementInsert, "5", 1, Llvm),
    narrow(C::ElementExtract, "5", 1, Llvm),
    narrow(C::UpperZero, "+++", 0, Llvm),
];

/// Skylake-X, 2017. Work on 64 bytes runs on port 0 (joined with port 1) and port 5.
pub static SKYLAKE_X: CpuModel = CpuModel {
    name: "skylake-x",
    about: "Intel Skylake-X (2017) with both 64-byte multipliers, also for the target avx512",
    front_end: 4,
    ports: PORTS_HASWELL,
    closed_by_wide: "1",
    wide: WideVectors::Whole,
    lacks: &[],
    tables: &[SKYLAKE_X_ROWS, HASWELL_ROWS],
};

const SKYLAKE_X_ROWS: &[Row] = &[
    // LLVM adds an arithmetic µop to 64-byte loads; this row does not.
    both(C::Load, "23", "23", 7, Llvm).wide_from(Unverified),
    both(C::BroadcastNarrow, "23+5", "23+5", 8, Llvm),
    both(C::Store, "237&4", "237&4", 1, Llvm),
    both(C::VecMove, "", "", 0, Unverified),
    both(C::Zero, "", "", 0, Llvm),
    both(C::VecAdd, "015", "05", 1, Llvm).wide_from(Unverified),
    both(C::VecCompare, "01", "0", 1, Llvm),
    both(C::VecSign, "01", "0", 1, Llvm),
    both(C::Logic, "015", "05", 1, Llvm),
    narrow(C::Blend, "015+015", 2, Llvm),
    both(C::BlendMask, "015", "05", 1, Llvm).wide_from(Unverified),
    both(C::Shift, "01", "0", 1, Llvm),
    both(C::ShiftCount, "01+5", "0+5", 2, Unverified),
    both(C::Shuffle, "5", "5", 1, Llvm),
    both(C::ShuffleBytes, "5", "5", 1, Llvm),
    both(C::Align, "5", "5", 1, Llvm),
    both(C::Pack, "5", "5", 1, Llvm),
    both(C::Extract, "5", "5", 3, Llvm),
    both(C::ExtractStore, "", "", 0, Unverified),
    both(C::Insert, "5", "5", 3, Llvm),
    both(C::InsertLoad, "015", "05", 1, Unverified),
    both(C::Permute, "5", "5", 3, Llvm),
    both(C::PermuteWords, "5+5", "5+5", 6, Llvm),
    both(C::PermuteTwo, "5", "5", 3, Llvm),
    both(C::PermuteTwoWords, "5+5+015", "5+5+05", 7, Llvm).wide_from(Unverified),
    both(C::Broadcast, "5", "5", 3, Llvm),
    both(C::Extend, "5", "5", 3, Llvm),
    both(C::Narrow, "5+5", "5+5", 4, Llvm),
    both(C::NarrowStore, "5+5", "5+5", 4, Unverified),
    both(C::FloatAdd, "01", "05", 4, Llvm),
    both(C::FloatMul, "01", "05", 4, Llvm),
    both(C::Fma, "01", "05", 4, Llvm),
    both(C::FloatCompare, "01", "05", 4, Llvm),
    both(C::FloatRound, "01+01", "05+05", 8, Llvm),
    both(C::FloatScale, "01", "05", 4, Llvm),
    Row { wide_latency: 18, ..both(C::FloatDiv, "0&d:5", "0+0+5&d:10", 11, Llvm) },
    Row { wide_latency: 20, ..both(C::FloatSqrt, "0&d:6", "0+0+5&d:12", 12, Llvm) },
    narrow(C::FloatDivShort, "0&d:3", 11, Llvm),
    narrow(C::FloatSqrtShort, "0&d:3", 12, Llvm),
    narrow(C::HorizontalAdd, "01+5+5", 6, Llvm),
    both(C::MulWord, "01", "05", 5, Llvm),
    both(C::MulDword, "01+01", "05+05", 10, Llvm),
    both(C::Convert, "01", "05", 4, Llvm),
    both(C::HalfToFloat, "01+5", "0+5", 7, Llvm),
    both(C::HalfToFloatLoad, "01", "05", 4, Llvm),
    both(C::FloatToHalf, "01+5", "05+5", 7, Llvm),
    both(C::FloatToHalfStore, "01+5", "05+5", 7, Unverified),
    both(C::CompareMask, "5", "5", 4, Llvm),
    narrow(C::MaskLogic, "0", 1, Llvm),
    narrow(C::MaskShift, "5", 4, Llvm),
    narrow(C::MaskFromInt, "5", 1, Llvm),
    narrow(C::MaskToInt, "0", 3, Llvm),
    both(C::MaskToVector, "015", "05", 1, Llvm),
    narrow(C::VecToInt, "0", 2, Llvm),
    narrow(C::VecToIntAny, "0+5", 3, Llvm),
    both(C::IntBroadcast, "5", "5", 3, Llvm),
    narrow(C::UpperZero, "+++", 0, Llvm),
];

/// Ice Lake servers, 2021. They have two stores per cycle, a second port for shuffles within 16
/// bytes, VNNI and VBMI.
pub static ICELAKE: CpuModel = CpuModel {
    name: "icelake",
    about: "Intel Ice Lake servers (2021)",
    front_end: 5,
    ports: PORTS_ICELAKE,
    closed_by_wide: "1",
    wide: WideVectors::Whole,
    lacks: &[],
    tables: &[ICELAKE_ROWS, SKYLAKE_X_ROWS, HASWELL_ROWS],
};

const ICELAKE_ROWS: &[Row] = &[
    narrow(C::StoreInt, "78&49", 1, Llvm),
    both(C::Store, "78&49", "78&49", 1, Llvm),
    both(C::Shuffle, "15", "5", 1, Llvm),
    both(C::ShuffleBytes, "15", "5", 1, Llvm),
    both(C::Pack, "5", "5", 3, Llvm),
    narrow(C::ExtendShort, "15", 1, Llvm),
    both(C::PermuteBytes, "5", "5", 3, Llvm),
    both(C::PermuteTwoBytes, "5+5+015", "5+5+05", 7, Unverified),
    both(C::Multishift, "5", "5", 3, Unverified),
    both(C::DotInt, "01", "05", 5, Llvm),
    // LLVM models the client CPU with one 64-byte multiplier; servers have a second one on port 5.
    both(C::FloatAdd, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::FloatMul, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::Fma, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::FloatScale, "01", "05", 4, Llvm).wide_from(Unverified),
];

/// Sapphire Rapids, 2023. It has six slots, three loads of 32 bytes or two of 64, and tiles.
pub static SAPPHIRE_RAPIDS: CpuModel = CpuModel {
    name: "sapphire-rapids",
    about: "Intel Sapphire Rapids (2023), also for the target amx",
    front_end: 6,
    ports: PORTS_GOLDEN_COVE,
    closed_by_wide: "1",
    wide: WideVectors::Whole,
    lacks: &[],
    tables: &[TILE_ROWS, GOLDEN_COVE_ROWS, ICELAKE_ROWS, SKYLAKE_X_ROWS, HASWELL_ROWS],
};

/// Granite Rapids, 2024. This model treats its core like that of Sapphire Rapids.
pub static GRANITE_RAPIDS: CpuModel = CpuModel {
    name: "granite-rapids",
    about: "Intel Granite Rapids (2024): modelled as Sapphire Rapids",
    front_end: 6,
    ports: PORTS_GOLDEN_COVE,
    closed_by_wide: "1",
    wide: WideVectors::Whole,
    lacks: &[],
    tables: &[TILE_ROWS, GOLDEN_COVE_ROWS, ICELAKE_ROWS, SKYLAKE_X_ROWS, HASWELL_ROWS],
};

/// Alder Lake's P cores, 2021: like the core of Sapphire Rapids, without 64-byte vectors and tiles.
pub static ALDER_LAKE: CpuModel = CpuModel {
    name: "alder-lake",
    about: "Intel Alder Lake, P cores (2021)",
    front_end: 6,
    ports: PORTS_GOLDEN_COVE,
    closed_by_wide: "",
    wide: WideVectors::None,
    lacks: AVX512,
    tables: &[GOLDEN_COVE_ROWS, ICELAKE_ROWS, SKYLAKE_X_ROWS, HASWELL_ROWS],
};

const GOLDEN_COVE_ROWS: &[Row] = &[
    narrow(C::IntAlu, "0156A", 1, Llvm),
    narrow(C::IntMove, "", 0, Unverified),
    narrow(C::StoreInt, "78&49", 1, Unverified),
    both(C::Zero, "", "", 0, Unverified),
    narrow(C::Lea, "0156A", 1, Unverified),
    narrow(C::LeaThree, "1", 2, Unverified),
    narrow(C::LoadInt, "23B", 5, Llvm),
    narrow(C::Return, "23B&06", 7, Llvm),
    // There are two loads of 64 bytes per cycle; LLVM's three loads are for the client CPU.
    both(C::Load, "23B", "23", 8, Unverified),
    both(C::BroadcastNarrow, "23B+5", "23+5", 9, Llvm).wide_from(Unverified),
    // A 64-byte store takes both data ports.
    both(C::Store, "78&49", "78&4&9", 1, Unverified),
    narrow(C::Blend, "015+015+015", 3, Llvm),
    both(C::FloatAdd, "15", "05", 3, Llvm),
    both(C::HalfToFloat, "01+5", "0+5", 8, Llvm),
    both(C::HalfToFloatLoad, "01", "05", 4, Llvm),
    both(C::FloatToHalf, "01+5", "0+5", 8, Llvm),
    both(C::FloatToHalfStore, "01+5", "0+5", 8, Unverified),
    both(C::FloatToBf16, "01+15+5", "0+5+5", 8, Llvm),
    both(C::FloatToBf16Two, "0+1+15+5", "0+0+5+5", 8, Llvm),
    both(C::DotBf16, "0+1+5+5", "0+0+5+5", 8, Llvm),
    both(C::PermuteWords, "01+5", "0+5", 4, Llvm),
    both(C::Multishift, "5", "5", 3, Llvm),
    both(C::Narrow, "15+5", "5+5", 4, Llvm),
    narrow(C::HorizontalAdd, "15+5+5", 5, Llvm),
    both(C::CompareMask, "5", "5", 3, Llvm),
    // LLVM's model has no divider, and only one 64-byte multiplier, like the client CPU.
    Row { wide_latency: 18, ..both(C::FloatDiv, "0&d:5", "0+0+5&d:10", 11, Unverified) },
    Row { wide_latency: 20, ..both(C::FloatSqrt, "0&d:6", "0+0+5&d:12", 12, Unverified) },
    narrow(C::FloatDivShort, "0&d:3", 11, Unverified),
    narrow(C::FloatSqrtShort, "0&d:3", 12, Unverified),
    both(C::FloatMul, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::Fma, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::FloatCompare, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::FloatRound, "01+01", "05+05", 8, Llvm).wide_from(Unverified),
    both(C::FloatScale, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::MulWord, "01", "05", 5, Llvm).wide_from(Unverified),
    both(C::MulDword, "01+01", "05+05", 10, Llvm).wide_from(Unverified),
    both(C::DotInt, "01", "05", 5, Llvm).wide_from(Unverified),
    both(C::Convert, "01", "05", 4, Llvm).wide_from(Unverified),
    both(C::BlendMask, "015", "05", 1, Llvm),
    both(C::VecAdd, "015", "05", 1, Llvm),
    both(C::PermuteTwoWords, "5+5+015", "5+5+05", 7, Llvm),
    both(C::PermuteTwoBytes, "5+5+015", "5+5+05", 5, Llvm),
    narrow(C::MaskFromInt, "5", 3, Llvm),
    narrow(C::VecToInt, "0", 3, Llvm),
    narrow(C::VecToIntAny, "0+15", 4, Llvm),
    narrow(C::IntToVec, "5", 3, Llvm),
    narrow(C::IntToVecAny, "5+15", 4, Llvm),
    both(C::IntBroadcast, "5", "5", 5, Llvm),
    narrow(C::ElementInsert, "15", 1, Llvm),
    narrow(C::ElementExtract, "15", 1, Llvm),
    narrow(C::UpperZero, "", 0, Llvm),
];

/// A tile product (TDP*) starts every 16 cycles and takes 52. TILELOADD reads 16 rows of 64 bytes,
/// two per cycle. TILESTORED writes one row per cycle. A tile with fewer rows counts as a whole
/// tile. Intel does not publish the slots of tile loads and stores; eight and sixteen are assumed.
const TILE_ROWS: &[Row] = &[
    narrow(C::TileDot, "05&T:16", 52, Manual),
    narrow(C::TileLoad, "23:2+23:2+23:2+23:2+23:2+23:2+23:2+23:2", 45, Manual),
    narrow(C::TileStore, STORE_ROWS, 16, Manual),
    narrow(C::TileZero, "", 16, Unverified),
    narrow(C::TileConfig, "T:204", 204, Unverified),
    narrow(C::TileRelease, "T:13", 13, Unverified),
];

const STORE_ROWS: &str = "78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+\
                          78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+78&4&9+78&4&9";
