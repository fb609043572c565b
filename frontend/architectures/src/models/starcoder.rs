//! `starcoder`: SantaCoder and StarCoder. Like `gpt2`, with one key head for all query heads.

use super::gpt2;
use crate::architecture::Architecture;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "starcoder", doc: "SantaCoder, StarCoder", ..gpt2::ARCHITECTURE };
