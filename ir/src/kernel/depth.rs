//! A limit of recursion for the deserialisation of kernels.
//!
//! A loop's body holds statements, which may be loops. A few bytes of a hostile plan open each
//! further level, and each level takes native stack. Each thread counts its current levels and
//! rejects the first one beyond the limit, in every serde format.

use std::cell::Cell;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::Stmt;

/// Maximum nesting of loops that can be read. No verified kernel is deeper.
pub(super) const MAX_DEPTH: usize = 64;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Guard of a level. Dropping it leaves the level, also after an error.
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

/// Reads a loop's body, unless it is nested deeper than [`MAX_DEPTH`].
pub(super) fn deserialize_body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Stmt>, D::Error> {
    let Some(_level) = Level::enter() else {
        return Err(D::Error::custom(format_args!("loops are nested deeper than {MAX_DEPTH}")));
    };
    Vec::deserialize(deserializer)
}
