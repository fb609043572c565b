//! CPU features that matter to kernels: which are here, and what one that is missing would give.

use ixc_targets::cpu;
use ixc_targets::{Feature as Kind, Target};
use serde::Serialize;

/// A CPU feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// As `/proc/cpuinfo` spells it.
    pub name: &'static str,
    /// Whether this CPU has it and the system saves its registers.
    pub present: bool,
    /// What it is good for.
    pub gives: &'static str,
}

/// A target and what this machine lacks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetState {
    /// Its name.
    pub name: &'static str,
    /// What it needs and this machine lacks; it runs where there is nothing.
    pub missing: Vec<String>,
    /// The same in one line.
    pub lacks: String,
    /// Whether it is what `--target native` means here.
    pub chosen: bool,
}

/// Every target, in the order of the table.
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

/// The features that kernels could use.
pub fn features() -> Vec<Feature> {
    let present = cpu::present();
    let feature = |kind: Kind| Feature { name: kind.name(), present: present.has(kind), gives: kind.gives() };
    Kind::ALL.iter().copied().map(feature).collect()
}

/// The CPU's own name.
pub fn cpu_name() -> String {
    cpu::name().unwrap_or_else(|| format!("unknown {} CPU", std::env::consts::ARCH))
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
