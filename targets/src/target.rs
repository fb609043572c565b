//! Target table, with one row for each target. `--target`, `ixc doctor` and the lowerings use it.
//!
//! A target describes a CPU for the compiler: its instruction set, features, register files, caches
//! and tile shape. Rows with the name of an instruction set (`avx2`, `avx512`) have the min
//! features that code of that kind needs. `amx` means the first CPU with AMX. All other rows are
//! CPUs. A kernel may use the features in its target's row, independent of the machine. Before code
//! runs, [`Target::missing`] compares the row with the machine.
//!
//! To add a CPU, add a row.

use serde::{Deserialize, Serialize};

use crate::cpu::{self, Missing};
use crate::feature::{Feature, Features};
use crate::memory::{Memory, ThirdLevel};

/// Code generator that lowers kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// Cranelift, which generates code for this machine.
    Cranelift,
    /// Code generator of this project for x86-64.
    X64,
}

/// Instruction set: the registers for which kernels are written, and the generator of their code.
/// The features of a target determine which ops are a single instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    /// Code generator for the instruction set.
    pub lowering: Lowering,
    /// Number of bytes in the vectors that generators should use.
    pub vector_bytes: u32,
    /// Number of vector registers.
    pub vector_registers: u8,
    /// Number of tile registers. Each has 16 rows of 64 bytes. The number is 0 without tiles.
    pub tile_registers: u8,
}

const fn isa(lowering: Lowering, vector_bytes: u32, vector_registers: u8, tile_registers: u8) -> Isa {
    Isa { lowering, vector_bytes, vector_registers, tile_registers }
}

// These are the instruction sets of the table. Kernels for Cranelift are the same as those for
// AVX2, and their results have the same bits.
const PORTABLE: Isa = isa(Lowering::Cranelift, 32, 16, 0);
const VEX: Isa = isa(Lowering::X64, 32, 16, 0);
const EVEX: Isa = isa(Lowering::X64, 64, 32, 0);
const AMX: Isa = isa(Lowering::X64, 64, 32, 8);

/// Row of the target table.
#[derive(Clone, Copy, Debug)]
pub struct TargetRow {
    /// Name of the target on the command line and in plans.
    pub name: &'static str,
    /// Instruction set for which the target's kernels are written.
    pub isa: Isa,
    /// CPU features that the code may use. The machine must have them.
    pub features: Features,
    /// Caches that are available to a core.
    pub caches: CacheRow,
    /// Description of the CPUs for which the target is meant.
    pub about: &'static str,
}

/// Caches available to a core, as the target table lists them.
#[derive(Clone, Copy, Debug)]
pub struct CacheRow {
    /// Size of the first-level data cache, in KiB.
    pub l1d_kib: u32,
    /// Size of the second-level cache, in KiB.
    pub l2_kib: u32,
    /// Size of a core's share of the third-level cache, in KiB.
    pub l3_kib: u32,
    /// Associativity of the second-level cache.
    pub l2_ways: u32,
    /// Content of the third-level cache.
    pub third: ThirdLevel,
}

/// Cache sizes that are available to a core, in bytes. Choices that depend on them use a target's
/// row ([`TargetRow::caches`]), so that a target gives the same choices on every machine. For
/// `native`, they are those of this machine ([`CoreCaches::here`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoreCaches {
    /// Size of the first-level data cache.
    pub l1d: u64,
    /// Size of the second-level cache.
    pub l2: u64,
    /// Size of a core's share of the third-level cache. It is 0 without such a cache.
    pub l3: u64,
}

impl CoreCaches {
    /// Returns the caches that CPUID reports on this machine. The size of the third level is
    /// divided by the number of CPUs that this process may use. Sizes that CPUID lacks come from
    /// `row`.
    pub fn here(row: &TargetRow) -> CoreCaches {
        let (found, row) = (cpu::caches(), row.caches());
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        CoreCaches {
            l1d: found.l1d.unwrap_or(row.l1d),
            l2: found.l2.unwrap_or(row.l2),
            l3: found.l3.map_or(row.l3, |all| all / cores),
        }
    }
}

impl TargetRow {
    /// Returns the sizes of the caches in bytes.
    pub fn caches(&self) -> CoreCaches {
        let CacheRow { l1d_kib, l2_kib, l3_kib, .. } = self.caches;
        let [l1d, l2, l3] = [l1d_kib, l2_kib, l3_kib].map(|kib| u64::from(kib) * 1024);
        CoreCaches { l1d, l2, l3 }
    }

    /// Returns the caches with their shapes.
    pub fn memory(&self) -> Memory {
        let CoreCaches { l1d, l2, l3 } = self.caches();
        Memory::new(l1d, l2, l3, self.caches.l2_ways, self.caches.third)
    }
}

use Feature as F;
const AVX2: Features = Features::from_list(&[F::Avx, F::Avx2, F::Fma, F::F16c]);
const AVX512: Features = AVX2.with(&[F::Avx512f, F::Avx512bw, F::Avx512dq, F::Avx512vl]);
const ICELAKE: Features = AVX512.with(&[F::Avx512vnni, F::Avx512vbmi]);
const ZEN4: Features = ICELAKE.with(&[F::Avx512bf16]);
const SAPPHIRE_RAPIDS: Features = ZEN4.with(&[F::AvxVnni, F::Avx512fp16, F::AmxTile, F::AmxInt8, F::AmxBf16]);
const GRANITE_RAPIDS: Features = SAPPHIRE_RAPIDS.with(&[F::AmxFp16]);

use ThirdLevel::{Inclusive, Victims};

const fn caches(l1d_kib: u32, l2_kib: u32, l3_kib: u32, l2_ways: u32, third: ThirdLevel) -> CacheRow {
    CacheRow { l1d_kib, l2_kib, l3_kib, l2_ways, third }
}

const fn row(name: &'static str, isa: Isa, features: Features, caches: CacheRow, about: &'static str) -> TargetRow {
    TargetRow { name, isa, features, caches, about }
}

/// Target table. [`Target::native`] takes the supported target with the most features. If several
/// have equally many, it takes the last of them.
pub static TARGETS: &[TargetRow] = &[
    row(
        "portable",
        PORTABLE,
        Features::from_list(&[]),
        caches(32, 256, 2048, 8, Inclusive),
        "every machine that Cranelift supports",
    ),
    row("avx2", VEX, AVX2, caches(32, 256, 2048, 8, Inclusive), "any x86-64 CPU with AVX2, FMA and F16C"),
    row("avx512", EVEX, AVX512, caches(32, 1024, 1408, 16, Victims), "any x86-64 CPU with AVX-512 F, BW, DQ and VL"),
    row("amx", AMX, SAPPHIRE_RAPIDS, caches(48, 2048, 1920, 16, Victims), "same as sapphire-rapids"),
    row("haswell", VEX, AVX2, caches(32, 256, 2048, 8, Inclusive), "Intel, 2013"),
    row("zen3", VEX, AVX2, caches(32, 512, 4096, 8, Victims), "AMD, 2020"),
    row(
        "alder-lake",
        VEX,
        AVX2.with(&[F::AvxVnni]),
        caches(48, 1280, 2560, 10, Victims),
        "Intel without AVX-512, 2021",
    ),
    row("skylake-x", EVEX, AVX512, caches(32, 1024, 1408, 16, Victims), "Intel, 2017"),
    row("icelake", EVEX, ICELAKE, caches(48, 1280, 1536, 20, Victims), "Intel servers, 2021"),
    row("zen4", EVEX, ZEN4, caches(32, 1024, 4096, 8, Victims), "AMD, 2022"),
    row("zen5", EVEX, ZEN4.with(&[F::AvxVnni]), caches(48, 1024, 4096, 16, Victims), "AMD, 2024"),
    row("sapphire-rapids", AMX, SAPPHIRE_RAPIDS, caches(48, 2048, 1920, 16, Victims), "Intel servers, 2023"),
    row("granite-rapids", AMX, GRANITE_RAPIDS, caches(48, 2048, 4096, 16, Victims), "Intel servers, 2024"),
];

/// Target for which kernels are compiled: a row of [`TARGETS`]. Its serialised form is its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target(u8);

impl Target {
    /// Target in the row `portable`.
    pub const PORTABLE: Target = Target(0);
    /// Target in the row `avx2`.
    pub const AVX2: Target = Target(1);
    /// Target in the row `avx512`.
    pub const AVX512: Target = Target(2);
    /// Target in the row `amx`.
    pub const AMX: Target = Target(3);

    /// Returns all targets, in the order of the table.
    pub fn all() -> impl DoubleEndedIterator<Item = Target> {
        (0..TARGETS.len() as u8).map(Target)
    }

    /// Returns this target's row of the table.
    pub fn row(self) -> &'static TargetRow {
        &TARGETS[usize::from(self.0)]
    }

    /// Returns the name of the target on the command line and in plans.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the instruction set for which the target's kernels are written.
    pub fn isa(self) -> Isa {
        self.row().isa
    }

    /// Returns the CPU features that the target's code may use.
    pub fn features(self) -> Features {
        self.row().features
    }

    /// Returns whether the target's code may use a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.row().features.has(feature)
    }

    /// Returns whether one instruction adds four products of bytes to each lane of its vectors
    /// (`dot4_u8s8`).
    pub fn has_dot4(self) -> bool {
        self.has(Feature::Avx512vnni) || self.has(Feature::AvxVnni) && self.isa().vector_bytes <= 32
    }

    /// Returns whether one instruction adds two products of bf16 to each lane of its vectors
    /// (`dot2_bf16`).
    pub fn has_dot2_bf16(self) -> bool {
        self.has(Feature::Avx512bf16)
    }

    /// Returns whether one instruction selects bytes from two whole vectors (`lookup_byte`), and
    /// another selects bits at any offset in eight bytes (`multishift`).
    pub fn permutes_bytes(self) -> bool {
        self.has(Feature::Avx512vbmi)
    }

    /// Returns the target with this name, if the table has one.
    pub fn from_name(name: &str) -> Option<Target> {
        Target::all().find(|target| target.name() == name)
    }

    /// Returns the reasons why this machine cannot run the target's code. The list is empty if it
    /// can. If only tiles are missing, requests them from the system.
    pub fn missing(self) -> Vec<Missing> {
        cpu::missing(self.features())
    }

    /// Returns the best target whose code this machine can run.
    pub fn native() -> Target {
        Target::all()
            .filter(|target| target.missing().is_empty())
            .max_by_key(|target| (target.features().len(), target.0))
            .unwrap_or(Target::PORTABLE)
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.name().to_owned()
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(name: String) -> Result<Target, String> {
        Target::from_name(&name).ok_or_else(|| format!("no target {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_sets_match_the_features() {
        for target in Target::all().filter(|target| target.isa().lowering == Lowering::X64) {
            let isa = target.isa();
            let is_evex = isa.vector_bytes > 32 || isa.vector_registers > 16;
            assert!(!is_evex || target.has(Feature::Avx512vl), "{target:?}");
            assert_eq!(isa.tile_registers > 0, target.has(Feature::AmxTile), "{target:?}");
        }
    }

    #[test]
    fn names_are_unique_and_the_constants_name_their_rows() {
        for target in Target::all() {
            assert_eq!(Target::from_name(target.name()), Some(target));
        }
        let constants = [Target::PORTABLE, Target::AVX2, Target::AVX512, Target::AMX];
        assert_eq!(constants.map(Target::name), ["portable", "avx2", "avx512", "amx"]);
        assert_eq!(Target::AMX.features(), Target::from_name("sapphire-rapids").unwrap().features());
    }

    #[test]
    fn native_target_is_the_best_runnable_one() {
        let native = Target::native();
        assert!(native.missing().is_empty());
        for target in Target::all().filter(|t| t.missing().is_empty()) {
            assert!(target.features().len() <= native.features().len(), "{target:?}");
        }
    }
}
