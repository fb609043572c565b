//! `hyperclovax`: HyperCLOVA X SEED Think. It is scaled like `granite`, but logits are multiplied
//! by their factor, not divided. In most models, a norm precedes and follows each block. No other
//! program is known to write GGUF files of this model. The keys are those of Granite.

use crate::architecture::Architecture;
use crate::decoder::{PostNorms, Style, decoder};
use crate::hyper::Defaults;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hyperclovax",
    doc: "HyperCLOVA X SEED Think",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        logits_multiplied: true,
        ..Defaults::USUAL
    },
    build: |b| {
        let post_norms = b.has(&format!("blk.0.{}.weight", PostNorms::USUAL.attention)).then_some(PostNorms::USUAL);
        decoder(b, &Style { post_norms, ..Style::LLAMA })
    },
};
