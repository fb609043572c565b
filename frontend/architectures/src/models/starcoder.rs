//! `starcoder`: SantaCoder and StarCoder: `gpt2` whose heads of queries share one of keys.

use super::gpt2;
use crate::architecture::Architecture;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "starcoder", doc: "SantaCoder, StarCoder", ..gpt2::ARCHITECTURE };
