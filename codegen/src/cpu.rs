//! What the CPU and the system under us allow: CPUID, the register state that the system saves (XCR0), and on Linux the
//! permission to use tiles.
//!
//! A feature is there for us only if all three say so; [`Missing`] says which does not.

use std::fmt;

use crate::target::{Feature, Features};

/// Why a feature can't be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// CPUID does not have it.
    Cpu(Feature),
    /// The CPU has it, but the system does not save its registers (XCR0).
    State {
        /// The feature.
        feature: Feature,
        /// Bits of XCR0 that it needs and that are clear.
        bits: u64,
    },
    /// CPU and system know tiles, but this process may not use them.
    Permission {
        /// What `arch_prctl(ARCH_REQ_XCOMP_PERM)` gave.
        errno: i32,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Cpu(feature) => write!(f, "{} (not in CPUID)", feature.name()),
            Missing::State { feature, bits } => {
                write!(f, "{} (the system does not save its registers: XCR0 lacks {bits:#x})", feature.name())
            }
            Missing::Permission { errno } => write!(
                f,
                "permission for tiles (arch_prctl(ARCH_REQ_XCOMP_PERM) failed: {})",
                std::io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

/// What is missing, in one line: what CPUID lacks together, and of an extension whose first part it lacks only the name.
///
/// ```
/// use ixc_codegen::cpu::{Missing, list};
/// use ixc_codegen::target::Feature::{Avx512bw, Avx512f, Avx512vbmi, AvxVnni};
///
/// let missing = |features: &[_]| features.iter().copied().map(Missing::Cpu).collect::<Vec<_>>();
/// assert_eq!(list(&missing(&[AvxVnni, Avx512f, Avx512bw])), "avx_vnni, AVX-512 (not in CPUID)");
/// assert_eq!(list(&missing(&[Avx512vbmi])), "avx512vbmi (not in CPUID)");
/// ```
pub fn list(missing: &[Missing]) -> String {
    let lacks = |wanted: Feature| missing.contains(&Missing::Cpu(wanted));
    let (mut names, mut others) = (Vec::new(), Vec::new());
    for missing in missing {
        let Missing::Cpu(feature) = missing else {
            others.push(missing.to_string());
            continue;
        };
        let name = feature.extension().filter(|(_, first)| lacks(*first)).map_or(feature.name(), |(name, _)| name);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let cpu = (!names.is_empty()).then(|| format!("{} (not in CPUID)", names.join(", ")));
    cpu.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// What is missing of these features, in their order. Permission for tiles is asked for only where nothing else is.
pub fn missing(features: Features) -> Vec<Missing> {
    let mut missing: Vec<Missing> = features.iter().filter_map(machine::missing).collect();
    if missing.is_empty() && features.has(Feature::AmxTile) {
        missing.extend(machine::tile_permission().err().map(|errno| Missing::Permission { errno }));
    }
    missing
}

/// The features that CPUID and XCR0 report.
pub fn present() -> Features {
    let here: Vec<Feature> = Feature::ALL.iter().copied().filter(|f| machine::missing(*f).is_none()).collect();
    Features::of(&here)
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    use std::sync::OnceLock;

    use super::Missing;
    use crate::target::Feature;

    /// XCR0: SSE and AVX registers.
    const AVX_STATE: u64 = 0b110;
    /// XCR0: mask registers and all of the vector registers.
    const AVX512_STATE: u64 = 0b1110_0110;
    /// XCR0: tile configuration and tiles.
    const TILE_STATE: u64 = 0b11 << 17;

    /// Where CPUID has the bit of a feature: leaf, subleaf, register (`a`, `b`, `c`, `d`), bit.
    fn place(feature: Feature) -> (u32, u32, char, u32) {
        match feature {
            Feature::Avx => (1, 0, 'c', 28),
            Feature::F16c => (1, 0, 'c', 29),
            Feature::Fma => (1, 0, 'c', 12),
            Feature::Avx2 => (7, 0, 'b', 5),
            Feature::AvxVnni => (7, 1, 'a', 4),
            Feature::Avx512f => (7, 0, 'b', 16),
            Feature::Avx512bw => (7, 0, 'b', 30),
            Feature::Avx512dq => (7, 0, 'b', 17),
            Feature::Avx512vl => (7, 0, 'b', 31),
            Feature::Avx512vnni => (7, 0, 'c', 11),
            Feature::Avx512vbmi => (7, 0, 'c', 1),
            Feature::Avx512bf16 => (7, 1, 'a', 5),
            Feature::Avx512fp16 => (7, 0, 'd', 23),
            Feature::AmxTile => (7, 0, 'd', 24),
            Feature::AmxInt8 => (7, 0, 'd', 25),
            Feature::AmxBf16 => (7, 0, 'd', 22),
            Feature::AmxFp16 => (7, 1, 'a', 21),
        }
    }

    /// The bits of XCR0 that a feature needs.
    fn state(feature: Feature) -> u64 {
        match feature {
            Feature::Avx | Feature::F16c | Feature::Fma | Feature::Avx2 | Feature::AvxVnni => AVX_STATE,
            Feature::Avx512f
            | Feature::Avx512bw
            | Feature::Avx512dq
            | Feature::Avx512vl
            | Feature::Avx512vnni
            | Feature::Avx512vbmi
            | Feature::Avx512bf16
            | Feature::Avx512fp16 => AVX512_STATE,
            Feature::AmxTile | Feature::AmxInt8 | Feature::AmxBf16 | Feature::AmxFp16 => TILE_STATE,
        }
    }

    fn cpuid(leaf: u32, subleaf: u32, register: char, bit: u32) -> bool {
        if leaf > __cpuid(0).eax || subleaf > 0 && subleaf > __cpuid_count(leaf, 0).eax {
            return false;
        }
        let leaf = __cpuid_count(leaf, subleaf);
        let word = match register {
            'a' => leaf.eax,
            'b' => leaf.ebx,
            'c' => leaf.ecx,
            _ => leaf.edx,
        };
        word >> bit & 1 == 1
    }

    fn xcr0() -> u64 {
        // CPUID.1:ECX[27], OSXSAVE: `xgetbv` may be executed.
        if !cpuid(1, 0, 'c', 27) {
            return 0;
        }
        // SAFETY: OSXSAVE says that the CPU has the instruction and that the system allows it.
        unsafe { _xgetbv(0) }
    }

    pub fn missing(feature: Feature) -> Option<Missing> {
        let (leaf, subleaf, register, bit) = place(feature);
        if !cpuid(leaf, subleaf, register, bit) {
            return Some(Missing::Cpu(feature));
        }
        let bits = state(feature) & !xcr0();
        (bits != 0).then_some(Missing::State { feature, bits })
    }

    /// Asks Linux once per process for the right to use tiles, which all threads then have.
    #[cfg(target_os = "linux")]
    pub fn tile_permission() -> Result<(), i32> {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        static PERMISSION: OnceLock<Result<(), i32>> = OnceLock::new();
        *PERMISSION.get_or_init(|| {
            // SAFETY: asks for a permission; touches no memory of ours.
            let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
            let error = std::io::Error::last_os_error();
            if result == 0 { Ok(()) } else { Err(error.raw_os_error().unwrap_or(libc::ENOSYS)) }
        })
    }

    /// Systems other than Linux need no permission.
    #[cfg(not(target_os = "linux"))]
    pub fn tile_permission() -> Result<(), i32> {
        static PERMISSION: OnceLock<()> = OnceLock::new();
        PERMISSION.get_or_init(|| ());
        Ok(())
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::Missing;
    use crate::target::Feature;

    pub fn missing(feature: Feature) -> Option<Missing> {
        Some(Missing::Cpu(feature))
    }

    pub fn tile_permission() -> Result<(), i32> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn agrees_with_the_standard_library_where_that_knows() {
        use std::arch::is_x86_feature_detected as has;
        let known = [
            (Feature::Avx, has!("avx")),
            (Feature::F16c, has!("f16c")),
            (Feature::Fma, has!("fma")),
            (Feature::Avx2, has!("avx2")),
            (Feature::AvxVnni, has!("avxvnni")),
            (Feature::Avx512f, has!("avx512f")),
            (Feature::Avx512bw, has!("avx512bw")),
            (Feature::Avx512dq, has!("avx512dq")),
            (Feature::Avx512vl, has!("avx512vl")),
            (Feature::Avx512vnni, has!("avx512vnni")),
            (Feature::Avx512vbmi, has!("avx512vbmi")),
            (Feature::Avx512bf16, has!("avx512bf16")),
        ];
        for (feature, here) in known {
            assert_eq!(present().has(feature), here, "{}", feature.name());
        }
    }

    #[test]
    fn refusals_say_which_of_the_three_it_is() {
        let texts = [
            Missing::Cpu(Feature::AmxTile),
            Missing::State { feature: Feature::AmxTile, bits: 0x60000 },
            Missing::Permission { errno: 95 },
        ]
        .map(|missing| missing.to_string());
        assert!(texts[0].contains("amx_tile") && texts[0].contains("CPUID"), "{}", texts[0]);
        assert!(texts[1].contains("XCR0 lacks 0x60000"), "{}", texts[1]);
        assert!(texts[2].contains("ARCH_REQ_XCOMP_PERM"), "{}", texts[2]);
    }
}
