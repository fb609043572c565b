//! The target table: one row per target, the single source for `--target`, `ixc doctor` and the lowerings.

use serde::{Deserialize, Serialize};

/// A target that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// Cranelift: runs on every machine that cranelift supports.
    Portable,
    /// AVX2 with FMA and F16C: our own lowering.
    Avx2,
}

/// One row of the target table.
#[derive(Clone, Copy, Debug)]
pub struct TargetRow {
    /// The target.
    pub target: Target,
    /// Name on the command line and in plans.
    pub name: &'static str,
    /// CPU features that it needs, as `/proc/cpuinfo` spells them.
    pub features: &'static [&'static str],
    /// Bytes of the vectors that generators should use.
    pub vector_bytes: u32,
    /// Vector registers.
    pub vector_registers: usize,
}

/// The target table, worst first.
pub static TARGETS: &[TargetRow] = &[
    TargetRow { target: Target::Portable, name: "portable", features: &[], vector_bytes: 32, vector_registers: 16 },
    TargetRow {
        target: Target::Avx2,
        name: "avx2",
        features: &["avx", "avx2", "fma", "f16c"],
        vector_bytes: 32,
        vector_registers: 16,
    },
];

impl Target {
    /// This target's row of the table.
    pub fn row(self) -> &'static TargetRow {
        &TARGETS[self as usize]
    }

    /// Name on the command line and in plans.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The target with this name.
    pub fn from_name(name: &str) -> Option<Target> {
        TARGETS.iter().find(|row| row.name == name).map(|row| row.target)
    }

    /// The features that this machine lacks for the target; empty where it runs natively.
    pub fn missing_features(self) -> Vec<&'static str> {
        self.row().features.iter().copied().filter(|feature| !has_feature(feature)).collect()
    }

    /// The best target that runs on this machine.
    pub fn native() -> Target {
        TARGETS.iter().rev().map(|row| row.target).find(|t| t.missing_features().is_empty()).unwrap_or(Target::Portable)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_feature(name: &str) -> bool {
    match name {
        "avx" => std::arch::is_x86_feature_detected!("avx"),
        "avx2" => std::arch::is_x86_feature_detected!("avx2"),
        "fma" => std::arch::is_x86_feature_detected!("fma"),
        "f16c" => std::arch::is_x86_feature_detected!("f16c"),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has_feature(_: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_enum() {
        for (i, row) in TARGETS.iter().enumerate() {
            assert_eq!(row.target as usize, i);
            assert_eq!(Target::from_name(row.name), Some(row.target));
        }
    }
}
