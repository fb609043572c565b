//! `starcoder`: SantaCoder and StarCoder. Like `gpt2`, but all query heads share one key head.

use super::gpt2;
use crate::architecture::Architecture;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "starcoder", doc: "SantaCoder, StarCoder", ..gpt2::ARCHITECTURE };
