//! `mistral4`: Mistral Small 4. Its layers are those of `deepseek2`.

use super::deepseek2;
use crate::architecture::Architecture;
use crate::hyper::Defaults;
use crate::layers::mla;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral4",
    doc: "Mistral Small 4",
    defaults: Defaults { draft_input: None, ..deepseek2::DEFAULTS },
    build: |b| mla::decoder(b, &deepseek2::STYLE),
};
