//! CPU features that matter to kernels: whether this CPU has them, and the benefit of each.

use ixc_targets::cpu;
use ixc_targets::{Feature as Kind, Target};
use serde::Serialize;

/// A CPU feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Name in `/proc/cpuinfo`.
    pub name: &'static str,
    /// Whether this CPU has the feature and the system saves its registers.
    pub present: bool,
    /// Benefit of the feature for kernels.
    pub gives: &'static str,
}

/// A target, with the features that it needs and this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetState {
    /// Name of the target.
    pub name: &'static str,
    /// Features that this machine lacks; empty if it can run the target.
    pub missing: Vec<String>,
    /// Missing features as one line of text.
    pub lacks: String,
    /// Whether `--target native` selects this target on this machine.
    pub chosen: bool,
}

/// Returns every target, in the order of the table.
pub fn targets() -> Vec<TargetState> {
    let native = Target::native();
    let state = |target: Target| TargetState {
        name: target.name(),
        missing: target.missing().iter().map(ToString::to_string).collect(),
        lacks: cpu::list(&target.missing()),
        chosen: target == native,
    };
    Target::all().map(state).collect()
}

/// Returns the features that kernels could use.
pub fn features() -> Vec<Feature> {
    let present = cpu::present();
    let feature = |kind: Kind| Feature { name: kind.name(), present: present.has(kind), gives: kind.gives() };
    Kind::ALL.iter().copied().map(feature).collect()
}

/// Returns the CPU's own name.
pub fn cpu_name() -> String {
    cpu::name().unwrap_or_else(|| format!("unknown {} CPU", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_target_lacks_no_features() {
        let chosen: Vec<_> = targets().into_iter().filter(|target| target.chosen).collect();
        assert_eq!(chosen.len(), 1);
        assert!(chosen[0].missing.is_empty());
    }
}
