//! CPU features that matter to kernels: which are here, and what one that is missing would give.

use ixc_codegen::target::{TARGETS, Target};
use serde::Serialize;

/// A CPU feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// As `/proc/cpuinfo` spells it.
    pub name: &'static str,
    /// Whether this CPU has it.
    pub present: bool,
    /// What it is good for.
    pub gives: &'static str,
}

/// A target and what this machine lacks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetState {
    /// Its name.
    pub name: &'static str,
    /// Features that it needs and this CPU lacks; it runs where there are none.
    pub missing: Vec<&'static str>,
    /// Whether it is what `--target native` means here.
    pub chosen: bool,
}

/// Every target, worst first.
pub fn targets() -> Vec<TargetState> {
    let native = Target::native();
    let state = |row: &ixc_codegen::target::TargetRow| TargetState {
        name: row.name,
        missing: row.target.missing_features(),
        chosen: row.target == native,
    };
    TARGETS.iter().map(state).collect()
}

/// Names and purposes of the features below, in the order in which they came.
const GIVES: [(&str, &str); 12] = [
    ("avx2", "256-bit integer vectors: needed by target avx2"),
    ("fma", "fused multiply-add: needed by target avx2"),
    ("f16c", "half precision in hardware: needed by target avx2"),
    ("avx_vnni", "int8 dot products in one instruction instead of two; no target uses it yet"),
    ("avx512f", "512-bit vectors, twice as many registers; no target uses it yet"),
    ("avx512bw", "512-bit vectors of bytes; no target uses it yet"),
    ("avx512_vnni", "512-bit int8 dot products; no target uses it yet"),
    ("avx512vbmi", "table look-ups over 64 bytes, for 4-bit formats; no target uses it yet"),
    ("avx512_bf16", "bfloat16 dot products; no target uses it yet"),
    ("amx_tile", "tile registers, for prefill; no target uses it yet"),
    ("amx_int8", "int8 tile products, for prefill; no target uses it yet"),
    ("amx_bf16", "bfloat16 tile products, for prefill; no target uses it yet"),
];

/// The features that kernels could use.
pub fn features() -> Vec<Feature> {
    let present = present();
    GIVES.iter().map(|&(name, gives)| Feature { name, present: present.contains(&name), gives }).collect()
}

/// The CPU's own name.
#[cfg(target_arch = "x86_64")]
pub fn cpu_name() -> String {
    let brand = raw_cpuid::CpuId::new().get_processor_brand_string();
    brand.map_or_else(|| "unknown x86-64 CPU".to_owned(), |brand| brand.as_str().trim().to_owned())
}

/// The CPU's own name.
#[cfg(not(target_arch = "x86_64"))]
pub fn cpu_name() -> String {
    format!("{} CPU", std::env::consts::ARCH)
}

#[cfg(target_arch = "x86_64")]
fn present() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    // What std detects also says that the system saves the registers; AMX it cannot detect, so that is CPUID's word.
    let amx = raw_cpuid::CpuId::new().get_extended_feature_info();
    let amx = |test: fn(&raw_cpuid::ExtendedFeatures) -> bool| amx.as_ref().is_some_and(test);
    [
        ("avx2", has!("avx2")),
        ("fma", has!("fma")),
        ("f16c", has!("f16c")),
        ("avx_vnni", has!("avxvnni")),
        ("avx512f", has!("avx512f")),
        ("avx512bw", has!("avx512bw")),
        ("avx512_vnni", has!("avx512vnni")),
        ("avx512vbmi", has!("avx512vbmi")),
        ("avx512_bf16", has!("avx512bf16")),
        ("amx_tile", amx(raw_cpuid::ExtendedFeatures::has_amx_tile)),
        ("amx_int8", amx(raw_cpuid::ExtendedFeatures::has_amx_int8)),
        ("amx_bf16", amx(raw_cpuid::ExtendedFeatures::has_amx_bf16)),
    ]
    .into_iter()
    .filter_map(|(name, here)| here.then_some(name))
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn present() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_target_is_chosen_and_it_lacks_nothing() {
        let chosen: Vec<_> = targets().into_iter().filter(|target| target.chosen).collect();
        assert_eq!(chosen.len(), 1);
        assert!(chosen[0].missing.is_empty());
    }
}
