//! The target table: one row per target, the single source for `--target`, `ixc doctor` and the lowerings.
//!
//! A target is a CPU as a compiler sees it: instruction set, features, register files, caches, tile shape. The rows named
//! after an instruction set (`avx2`, `avx512`, `amx`) have the least of it that code of that kind needs, except that `amx`
//! means the first CPU that had it; the others are CPUs. What a kernel may use is what stands in its target's row, not what
//! the machine has: that is compared when code is to run ([`Target::missing`]).
//!
//! To add a CPU: add a row.

use serde::{Deserialize, Serialize};

use crate::cpu::{self, Missing};
use crate::feature::{Feature, Features};
use crate::memory::{Memory, ThirdLevel};

/// What makes machine code of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// Cranelift, for this machine.
    Cranelift,
    /// Ours, for x86-64.
    X64,
}

/// An instruction set: what kernels are written over, and what makes their code. Which ops are one instruction follows from a target's
/// features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    /// What makes the code.
    pub lowering: Lowering,
    /// Bytes of the vectors that generators should use.
    pub vector_bytes: u32,
    /// Vector registers.
    pub vector_registers: u8,
    /// Tile registers, each of 16 rows of 64 bytes; 0 where there are none.
    pub tile_registers: u8,
}

const fn isa(lowering: Lowering, vector_bytes: u32, vector_registers: u8, tile_registers: u8) -> Isa {
    Isa { lowering, vector_bytes, vector_registers, tile_registers }
}

// The table of instruction sets. Kernels for cranelift are those of AVX2, whose bits they give.
const PORTABLE: Isa = isa(Lowering::Cranelift, 32, 16, 0);
const VEX: Isa = isa(Lowering::X64, 32, 16, 0);
const EVEX: Isa = isa(Lowering::X64, 64, 32, 0);
const AMX: Isa = isa(Lowering::X64, 64, 32, 8);

/// One row of the target table.
#[derive(Clone, Copy, Debug)]
pub struct TargetRow {
    /// Name on the command line and in plans.
    pub name: &'static str,
    /// What its kernels are written over.
    pub isa: Isa,
    /// CPU features that the code may use, and so needs.
    pub features: Features,
    /// First-level data cache of a core, in KiB.
    pub l1d_kib: u32,
    /// Second-level cache of a core, in KiB.
    pub l2_kib: u32,
    /// Third-level cache, a core's share of it, in KiB.
    pub l3_kib: u32,
    /// Lines of a set of the second-level cache.
    pub l2_ways: u32,
    /// What the third-level cache holds.
    pub third: ThirdLevel,
    /// What it stands for.
    pub about: &'static str,
}

/// Bytes of cache that a core can count on, for choices that depend on it. A target's row says them ([`TargetRow::caches`]), so that the
/// same target gives the same choices on every machine; `native` means this machine's ([`CoreCaches::here`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoreCaches {
    /// First-level data cache.
    pub l1d: u64,
    /// Second-level cache.
    pub l2: u64,
    /// A core's share of the third-level cache; 0 where there is none.
    pub l3: u64,
}

impl CoreCaches {
    /// Those that CPUID reports here, the third level shared by all CPUs that this process may use; `row`'s for what it does not say.
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
    /// Its caches in bytes.
    pub fn caches(&self) -> CoreCaches {
        let [l1d, l2, l3] = [self.l1d_kib, self.l2_kib, self.l3_kib].map(|kib| u64::from(kib) * 1024);
        CoreCaches { l1d, l2, l3 }
    }

    /// Its caches with their shapes.
    pub fn memory(&self) -> Memory {
        let CoreCaches { l1d, l2, l3 } = self.caches();
        Memory::of([l1d, l2, l3], self.l2_ways, self.third)
    }
}

use Feature as F;
const AVX2: Features = Features::of(&[F::Avx, F::Avx2, F::Fma, F::F16c]);
const AVX512: Features = AVX2.with(&[F::Avx512f, F::Avx512bw, F::Avx512dq, F::Avx512vl]);
const ICELAKE: Features = AVX512.with(&[F::Avx512vnni, F::Avx512vbmi]);
const ZEN4: Features = ICELAKE.with(&[F::Avx512bf16]);
const SAPPHIRE_RAPIDS: Features = ZEN4.with(&[F::AvxVnni, F::Avx512fp16, F::AmxTile, F::AmxInt8, F::AmxBf16]);
const GRANITE_RAPIDS: Features = SAPPHIRE_RAPIDS.with(&[F::AmxFp16]);

use ThirdLevel::{Inclusive, Victims};

const fn row(
    name: &'static str,
    isa: Isa,
    features: Features,
    [l1d_kib, l2_kib, l3_kib]: [u32; 3],
    l2_ways: u32,
    third: ThirdLevel,
    about: &'static str,
) -> TargetRow {
    TargetRow { name, isa, features, l1d_kib, l2_kib, l3_kib, l2_ways, third, about }
}

/// The target table. [`Target::native`] takes the last of those with the most features that the machine has.
pub static TARGETS: &[TargetRow] = &[
    row(
        "portable",
        PORTABLE,
        Features::of(&[]),
        [32, 256, 2048],
        8,
        Inclusive,
        "every machine that cranelift supports",
    ),
    row("avx2", VEX, AVX2, [32, 256, 2048], 8, Inclusive, "any x86-64 with AVX2, FMA and F16C"),
    row("avx512", EVEX, AVX512, [32, 1024, 1408], 16, Victims, "any x86-64 with AVX-512 F, BW, DQ and VL"),
    row("amx", AMX, SAPPHIRE_RAPIDS, [48, 2048, 1920], 16, Victims, "the same as sapphire-rapids"),
    row("haswell", VEX, AVX2, [32, 256, 2048], 8, Inclusive, "Intel, 2013"),
    row("zen3", VEX, AVX2, [32, 512, 4096], 8, Victims, "AMD, 2020"),
    row("alder-lake", VEX, AVX2.with(&[F::AvxVnni]), [48, 1280, 2560], 10, Victims, "Intel without AVX-512, 2021"),
    row("skylake-x", EVEX, AVX512, [32, 1024, 1408], 16, Victims, "Intel, 2017"),
    row("icelake", EVEX, ICELAKE, [48, 1280, 1536], 20, Victims, "Intel servers, 2021"),
    row("zen4", EVEX, ZEN4, [32, 1024, 4096], 8, Victims, "AMD, 2022"),
    row("zen5", EVEX, ZEN4.with(&[F::AvxVnni]), [48, 1024, 4096], 16, Victims, "AMD, 2024"),
    row("sapphire-rapids", AMX, SAPPHIRE_RAPIDS, [48, 2048, 1920], 16, Victims, "Intel servers, 2023"),
    row("granite-rapids", AMX, GRANITE_RAPIDS, [48, 2048, 4096], 16, Victims, "Intel servers, 2024"),
];

/// A target that kernels are compiled for: a row of [`TARGETS`]. It is serialised as its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target(u8);

impl Target {
    /// `portable`.
    pub const PORTABLE: Target = Target(0);
    /// `avx2`.
    pub const AVX2: Target = Target(1);
    /// `avx512`.
    pub const AVX512: Target = Target(2);
    /// `amx`.
    pub const AMX: Target = Target(3);

    /// Every target, in the order of the table.
    pub fn all() -> impl DoubleEndedIterator<Item = Target> {
        (0..TARGETS.len() as u8).map(Target)
    }

    /// This target's row of the table.
    pub fn row(self) -> &'static TargetRow {
        &TARGETS[usize::from(self.0)]
    }

    /// Name on the command line and in plans.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What kernels are written over.
    pub fn isa(self) -> Isa {
        self.row().isa
    }

    /// What the code may use.
    pub fn features(self) -> Features {
        self.row().features
    }

    /// Whether the code may use a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.row().features.has(feature)
    }

    /// Whether four products of bytes, added to each lane of its vectors (`dot4_u8s8`), are one instruction.
    pub fn has_dot4(self) -> bool {
        self.has(Feature::Avx512vnni) || self.has(Feature::AvxVnni) && self.isa().vector_bytes <= 32
    }

    /// Whether two products of bf16, added to each lane of its vectors (`dot2_bf16`), are one instruction.
    pub fn has_dot2_bf16(self) -> bool {
        self.has(Feature::Avx512bf16)
    }

    /// Whether bytes are taken from anywhere in two vectors, and from any bit of eight bytes, by one instruction (`lookup_byte`, `multishift`).
    pub fn permutes_bytes(self) -> bool {
        self.has(Feature::Avx512vbmi)
    }

    /// The target with this name.
    pub fn from_name(name: &str) -> Option<Target> {
        Target::all().find(|target| target.name() == name)
    }

    /// What this machine lacks for the target; empty where it runs natively. Where tiles are all that is left to ask for, asks
    /// the system for them.
    pub fn missing(self) -> Vec<Missing> {
        cpu::missing(self.features())
    }

    /// The best target that runs on this machine.
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
    fn instruction_sets_are_what_the_features_allow() {
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
    fn what_runs_natively_lacks_nothing_and_nothing_better_does() {
        let native = Target::native();
        assert!(native.missing().is_empty());
        for target in Target::all().filter(|t| t.missing().is_empty()) {
            assert!(target.features().len() <= native.features().len(), "{target:?}");
        }
    }
}
