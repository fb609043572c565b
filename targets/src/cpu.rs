//! CPU features that this machine allows. They depend on three sources: CPUID (read by
//! `raw-cpuid`), the register state that the system saves (XCR0), and Linux's permission to use
//! tiles.
//!
//! A feature is available only if all three sources allow it. [`Missing`] names the source that
//! does not.

use std::fmt;

use serde::Serialize;

use crate::feature::{Feature, Features};

/// Reason why a feature cannot be used on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The CPU does not have this feature, according to CPUID.
    Cpu(Feature),
    /// The CPU has the feature, but XCR0 shows that the system does not save its registers.
    State {
        /// Feature that cannot be used.
        feature: Feature,
        /// Bits of XCR0 that the feature needs and that are not set.
        bits: u64,
    },
    /// The CPU and the system support tiles, but this process may not use them.
    Permission {
        /// Error number of `arch_prctl(ARCH_REQ_XCOMP_PERM)`.
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

/// Lists missing features in one line. Features that CPUID lacks are grouped. If an extension's
/// base feature is missing, only the name of the extension appears.
///
/// ```
/// use ixc_targets::cpu::{Missing, list};
/// use ixc_targets::Feature::{Avx512bw, Avx512f, Avx512vbmi, AvxVnni};
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

/// Returns those of `features` that are missing, in their order. Requests permission for tiles only
/// if no other feature is missing.
pub fn missing(features: Features) -> Vec<Missing> {
    let mut missing: Vec<Missing> = features.iter().filter_map(machine::missing).collect();
    if missing.is_empty() && features.has(Feature::AmxTile) {
        missing.extend(machine::tile_permission().err().map(|errno| Missing::Permission { errno }));
    }
    missing
}

/// Returns the features that CPUID and XCR0 report.
pub fn present() -> Features {
    let here: Vec<Feature> = Feature::ALL.iter().copied().filter(|f| machine::missing(*f).is_none()).collect();
    Features::from_list(&here)
}

/// Returns the CPU's name, if CPUID has one.
pub fn name() -> Option<String> {
    machine::name()
}

/// Cache sizes, in bytes, of the CPU that runs this thread. A size is `None` if the CPU does not
/// report it, or has no such cache. The CPUs of one machine may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Caches {
    /// Size of a core's first-level data cache.
    pub l1d: Option<u64>,
    /// Size of the second-level cache of a core, or of a few cores that share it.
    pub l2: Option<u64>,
    /// Size of the whole third-level cache, for all CPUs that share it.
    pub l3: Option<u64>,
}

/// Returns the sizes of the caches that CPUID reports.
pub fn caches() -> Caches {
    machine::caches()
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::x86_64::_xgetbv;
    use std::sync::OnceLock;

    use raw_cpuid::native_cpuid::cpuid_count;
    use raw_cpuid::{CacheType, CpuId, CpuIdReaderNative, ExtendedFeatures as Extended, FeatureInfo};

    use super::{Caches, Missing};
    use crate::feature::{Feature, Features};

    /// Bits of XCR0 for the SSE and AVX registers.
    const AVX_STATE: u64 = 0b110;
    /// Bits of XCR0 for the mask registers and all of the vector registers.
    const AVX512_STATE: u64 = 0b1110_0110;
    /// Bits of XCR0 for the tile configuration and the tiles.
    const TILE_STATE: u64 = 0b11 << 17;

    /// State of this CPU, as it was at the first query.
    struct Cpu {
        features: Features,
        /// Value of XCR0, or 0 if the system does not allow reading it.
        state: u64,
    }

    fn cpu() -> &'static Cpu {
        static CPU: OnceLock<Cpu> = OnceLock::new();
        CPU.get_or_init(|| {
            let cpu = CpuId::new();
            let here: Vec<Feature> = Feature::ALL.iter().copied().filter(|feature| in_cpuid(&cpu, *feature)).collect();
            Cpu { features: Features::from_list(&here), state: xcr0(&cpu) }
        })
    }

    /// Returns whether CPUID reports a feature.
    fn in_cpuid(cpu: &CpuId<CpuIdReaderNative>, feature: Feature) -> bool {
        let basic = |has: fn(&FeatureInfo) -> bool| cpu.get_feature_info().is_some_and(|info| has(&info));
        let extended = |has: fn(&Extended) -> bool| cpu.get_extended_feature_info().is_some_and(|info| has(&info));
        match feature {
            Feature::Avx => basic(FeatureInfo::has_avx),
            Feature::F16c => basic(FeatureInfo::has_f16c),
            Feature::Fma => basic(FeatureInfo::has_fma),
            Feature::Avx2 => extended(Extended::has_avx2),
            Feature::AvxVnni => extended(Extended::has_avx_vnni),
            Feature::Avx512f => extended(Extended::has_avx512f),
            Feature::Avx512bw => extended(Extended::has_avx512bw),
            Feature::Avx512dq => extended(Extended::has_avx512dq),
            Feature::Avx512vl => extended(Extended::has_avx512vl),
            Feature::Avx512vnni => extended(Extended::has_avx512vnni),
            Feature::Avx512vbmi => extended(Extended::has_avx512vbmi),
            Feature::Avx512bf16 => extended(Extended::has_avx512_bf16),
            Feature::Avx512fp16 => extended(Extended::has_avx512_fp16),
            Feature::AmxTile => extended(Extended::has_amx_tile),
            Feature::AmxInt8 => extended(Extended::has_amx_int8),
            Feature::AmxBf16 => extended(Extended::has_amx_bf16),
            // This is CPUID.(7, 1):EAX[21], for which `raw-cpuid` 11 has no method. (7, 0):EAX is
            // the number of the last subleaf.
            Feature::AmxFp16 => extended(|_| cpuid_count(7, 0).eax >= 1 && cpuid_count(7, 1).eax >> 21 & 1 == 1),
        }
    }

    /// Returns the mask of the XCR0 bits that a feature needs.
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

    fn xcr0(cpu: &CpuId<CpuIdReaderNative>) -> u64 {
        // The OSXSAVE flag shows that `xgetbv` is allowed.
        if !cpu.get_feature_info().is_some_and(|basic| basic.has_oxsave()) {
            return 0;
        }
        // SAFETY: OSXSAVE guarantees that the CPU has the instruction and that the system allows
        // it.
        unsafe { _xgetbv(0) }
    }

    pub fn missing(feature: Feature) -> Option<Missing> {
        if !cpu().features.has(feature) {
            return Some(Missing::Cpu(feature));
        }
        let bits = state(feature) & !cpu().state;
        (bits != 0).then_some(Missing::State { feature, bits })
    }

    /// Returns the name that CPUID reports.
    pub fn name() -> Option<String> {
        CpuId::new().get_processor_brand_string().map(|brand| brand.as_str().trim().to_owned())
    }

    /// Reads the caches from CPUID's leaf 4, or from 0x8000001D on AMD.
    pub fn caches() -> Caches {
        let mut caches = Caches::default();
        for cache in CpuId::new().get_cache_parameters().into_iter().flatten() {
            let sizes =
                [cache.associativity(), cache.physical_line_partitions(), cache.coherency_line_size(), cache.sets()];
            let bytes = sizes.iter().map(|&size| size as u64).product();
            match (cache.level(), cache.cache_type()) {
                (1, CacheType::Data | CacheType::Unified) => caches.l1d = Some(bytes),
                (2, CacheType::Data | CacheType::Unified) => caches.l2 = Some(bytes),
                (3, CacheType::Data | CacheType::Unified) => caches.l3 = Some(bytes),
                // No tiling depends on instruction caches or on other levels.
                _ => {}
            }
        }
        caches
    }

    /// Requests permission to use tiles from Linux, once per process. The permission is valid for
    /// all threads.
    #[cfg(target_os = "linux")]
    pub fn tile_permission() -> Result<(), i32> {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        static PERMISSION: OnceLock<Result<(), i32>> = OnceLock::new();
        *PERMISSION.get_or_init(|| {
            // SAFETY: requests a permission and touches no memory of this process.
            let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
            let error = std::io::Error::last_os_error();
            if result == 0 { Ok(()) } else { Err(error.raw_os_error().unwrap_or(libc::ENOSYS)) }
        })
    }

    /// Returns success, because systems other than Linux need no permission.
    #[cfg(not(target_os = "linux"))]
    pub fn tile_permission() -> Result<(), i32> {
        static PERMISSION: OnceLock<()> = OnceLock::new();
        PERMISSION.get_or_init(|| ());
        Ok(())
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{Caches, Missing};
    use crate::feature::Feature;

    pub fn missing(feature: Feature) -> Option<Missing> {
        Some(Missing::Cpu(feature))
    }

    pub fn name() -> Option<String> {
        None
    }

    pub fn caches() -> Caches {
        Caches::default()
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
    fn cpu_features_match_the_standard_library() {
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
    fn caches_grow_with_their_level() {
        let Caches { l1d, l2, l3 } = caches();
        let known: Vec<u64> = [l1d, l2, l3].into_iter().flatten().collect();
        assert!(known.is_sorted() && known.iter().all(|bytes| (1 << 10..1 << 34).contains(bytes)), "{known:?}");
    }

    #[test]
    fn missing_feature_messages_distinguish_their_cause() {
        let feature = Feature::AmxTile;
        assert_eq!(Missing::Cpu(feature).to_string(), "amx_tile (not in CPUID)");
        let state = Missing::State { feature, bits: 0x60000 }.to_string();
        assert_eq!(state, "amx_tile (the system does not save its registers: XCR0 lacks 0x60000)");
        // The system's text for this number differs between C libraries.
        let permission = Missing::Permission { errno: 95 }.to_string();
        assert!(
            permission.starts_with("permission for tiles (arch_prctl(ARCH_REQ_XCOMP_PERM) failed: "),
            "{permission}"
        );
        assert!(permission.ends_with("(os error 95))"), "{permission}");
    }
}
