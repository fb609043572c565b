//! Bounded recursion while kernels are deserialised.
//!
//! A loop's body holds statements, which may be loops: a few bytes of a hostile plan open each further level, and each takes
//! native stack. A thread counts the levels that it is in, and refuses the first one too many, in every serde format.

use std::cell::Cell;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::Stmt;

/// Deepest nesting of loops that is read; no verified kernel is deeper.
pub(super) const MAX_DEPTH: usize = 64;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Leaves the level also where reading it fails.
struct Level;

impl Level {
    fn enter() -> Option<Level> {
        let depth = DEPTH.get();
        (depth < MAX_DEPTH).then(|| {
            DEPTH.set(depth + 1);
            Level
        })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// A loop's body, where it is not nested deeper than [`MAX_DEPTH`].
pub(super) fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Stmt>, D::Error> {
    let Some(_level) = Level::enter() else {
        return Err(D::Error::custom(format_args!("loops are nested deeper than {MAX_DEPTH}")));
    };
    Vec::deserialize(deserializer)
}
