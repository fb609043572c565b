//! Table of quantisation settings by module, with targets in the notation of compressed-tensors
//! (`compressed_tensors.utils.match`).
//!
//! ```text
//! model.layers.0.mlp.down_proj     a module by its name
//! re:.*self_attn\.(q|k|v)_proj$    modules whose names match the pattern from their start
//! Linear                           modules of this class: all matrices
//! ```
//!
//! If several targets match a module, a name takes precedence over a pattern, and a pattern over a
//! class. Patterns are tried in alphabetical order.

use std::collections::BTreeMap;

use regex_automata::meta::{Config as Limits, Regex};
use regex_automata::{Anchored, Input};

use super::config::Config;
use super::error::CheckpointError;

/// Prefix of a target that is a pattern.
const PATTERN: &str = "re:";
/// Class name of all matrices.
const MATRICES: &str = "Linear";
/// Maximum memory for a compiled pattern, in bytes.
const MAX_PATTERN: usize = 1 << 20;
/// Maximum number of patterns. Each pattern is matched with the name of each tensor, so this bounds
/// the time.
const MAX_PATTERNS: usize = 1024;

/// Settings of modules, by module name, pattern or class.
#[derive(Clone, Debug)]
pub(super) struct Targets<T> {
    names: BTreeMap<Box<str>, T>,
    patterns: BTreeMap<Box<str>, (Regex, T)>,
    matrices: Option<T>,
}

impl<T: Copy> Targets<T> {
    pub(super) fn none() -> Targets<T> {
        Targets { names: BTreeMap::new(), patterns: BTreeMap::new(), matrices: None }
    }

    /// Returns a table in which all modules have the setting `what`.
    pub(super) fn for_all(what: T) -> Targets<T> {
        Targets { matrices: Some(what), ..Targets::none() }
    }

    /// Adds the setting `what` for a target. If the target already has a setting, it is replaced.
    ///
    /// # Errors
    /// When a pattern is invalid or too large, or when there are too many patterns.
    pub(super) fn add(&mut self, said: &Config, target: &str, what: T) -> Result<(), CheckpointError> {
        let Some(pattern) = target.strip_prefix(PATTERN) else {
            if target == MATRICES {
                self.matrices = Some(what);
            }
            // Other class names are stored like module names. They match no module.
            self.names.insert(target.into(), what);
            return Ok(());
        };
        if let Some((_, before)) = self.patterns.get_mut(target) {
            *before = what;
            return Ok(());
        }
        if self.patterns.len() >= MAX_PATTERNS {
            return Err(said.wrong("targets", "more patterns", format!("at most {MAX_PATTERNS}")));
        }
        let limits = Limits::new().nfa_size_limit(Some(MAX_PATTERN)).hybrid_cache_capacity(MAX_PATTERN);
        let regex = Regex::builder().configure(limits).build(pattern).map_err(|error| {
            // The inner error, if there is one, states the reason.
            let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            let reason: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            let found: String = format!("{target:?} ({reason})").chars().take(256).collect();
            said.wrong("targets", found, "regular expressions without back references and lookaheads")
        })?;
        self.patterns.insert(target.into(), (regex, what));
        Ok(())
    }

    /// Returns the setting of a module; `None` if no target matches it.
    pub(super) fn setting(&self, module: &str) -> Option<T> {
        let begins = |regex: &Regex| regex.is_match(Input::new(module).anchored(Anchored::Yes));
        let named = self.names.get(module).copied();
        let matched = || self.patterns.values().find(|(regex, _)| begins(regex)).map(|(_, what)| *what);
        named.or_else(matched).or(self.matrices)
    }

    /// Returns all settings.
    pub(super) fn values(&self) -> impl Iterator<Item = T> {
        let patterns = self.patterns.values().map(|(_, what)| what);
        self.names.values().chain(patterns).chain(&self.matrices).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns an empty configuration that was read from a file with this name.
    fn config(name: &str) -> Config {
        let path = std::env::temp_dir().join(format!("ixc-targets-{name}-{}.json", std::process::id()));
        std::fs::write(&path, "{}").unwrap();
        let config = Config::open(Path::new(&path)).unwrap();
        std::fs::remove_file(path).unwrap();
        config
    }

    #[test]
    fn targets_match_by_name_then_pattern_then_class() {
        let mut targets = Targets::none();
        let said = config("matches");
        let all = [
            ("Linear", 9),
            (r"re:.*self_attn\..*", 1),
            ("re:.*experts", 2),
            ("model.layers.1.self_attn.q_proj", 3),
            ("Linear", 0),
            ("re:model", 9),
            ("re:model", 8),
        ];
        for (target, what) in all {
            targets.add(&said, target, what).unwrap();
        }
        assert_eq!(targets.setting("model.layers.1.self_attn.q_proj"), Some(3));
        assert_eq!(targets.setting("model.layers.0.self_attn.q_proj"), Some(1));
        assert_eq!(targets.setting("model.layers.0.mlp.experts.7.up_proj"), Some(2));
        assert_eq!(targets.setting("model.layers.0.mlp.up_proj"), Some(8));
        // Patterns match from the start of a name, so `re:model` does not match this name.
        assert_eq!(targets.setting("lm_head.model"), Some(0));
        assert_eq!(Targets::<u8>::none().setting("lm_head"), None);
        assert_eq!(Targets::for_all(7).setting("lm_head"), Some(7));
    }

    #[test]
    fn invalid_target_patterns_are_refused() {
        let said = config("refusals");
        for pattern in ["re:(", "re:(?!x).*", r"re:(a)\1", "re:(a{1000}){1000}"] {
            let error = Targets::none().add(&said, pattern, 0).unwrap_err().to_string();
            assert!(error.contains("\"targets\"") && !error.contains("pattern 0"), "{pattern}: {error}");
            assert!(!error.contains('\n'), "{pattern}: {error}");
        }
        let mut targets = Targets::none();
        let added = (0..2000).map(|number| targets.add(&said, &format!("re:{number}"), 0));
        assert!(added.last().unwrap().unwrap_err().to_string().contains("at most 1024"));
    }
}
