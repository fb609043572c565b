//! `vaultgemma`: VaultGemma. Like Gemma 2, but without norms after blocks (transformers
//! `vaultgemma`). No GGUF file of this model is known.

use super::gemma2;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, HeadSizes};

const STYLE: Style = Style { post_norms: None, ..gemma2::STYLE };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "vaultgemma",
    doc: "VaultGemma",
    defaults: Defaults { attention_scale: HeadSizes::by_key, ..gemma2::DEFAULTS },
    build: |b| decoder(b, &STYLE),
};
