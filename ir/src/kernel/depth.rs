//! Limit of the recursion depth for the deserialisation of kernels.
//!
//! The body of a loop holds statements, which may be loops. In a hostile plan, each further level
//! of nesting takes only a few bytes, but uses native stack. Each thread counts its current depth,
//! and rejects a loop beyond the limit, in every serde format.

use std::cell::Cell;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::Stmt;

/// Maximum nesting of loops that can be deserialised. Verified kernels are less deep.
pub(super) const MAX_DEPTH: usize = 64;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Guard of one level of nesting. Its drop leaves the level, also after an error.
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

/// Deserialises a loop's body. Fails if it is nested deeper than [`MAX_DEPTH`].
pub(super) fn deserialize_body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Stmt>, D::Error> {
    let Some(_level) = Level::enter() else {
        return Err(D::Error::custom(format_args!("loops are nested deeper than {MAX_DEPTH}")));
    };
    Vec::deserialize(deserializer)
}
