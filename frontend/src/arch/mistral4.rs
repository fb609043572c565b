//! `mistral4`: Mistral Small 4: as `deepseek2`.

use super::Architecture;
use super::hyper::Defaults;
use super::{deepseek2, mla};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral4",
    doc: "Mistral Small 4",
    defaults: Defaults { guess_from: None, ..deepseek2::DEFAULTS },
    build: |b| mla::decoder(b, &deepseek2::STYLE),
};
