//! `vaultgemma`: VaultGemma. Like Gemma 2, without norms after blocks (transformers `vaultgemma`).
//! No GGUF files of it are known.

use super::gemma2;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { post_norms: None, ..gemma2::STYLE };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "vaultgemma",
    doc: "VaultGemma",
    defaults: Defaults { scaled_by_width: 0, ..gemma2::DEFAULTS },
    build: |b| decoder(b, &STYLE),
};
