//! `hyperclovax`: HyperCLOVA X SEED Think. Scaled like `granite`, except that logits are
//! multiplied. In most models a norm precedes and follows each block. No GGUF file by others is
//! known: keys are Granite's.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const POST_NORMS: [&str; 2] = ["post_attention_norm", "post_ffw_norm"];

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hyperclovax",
    doc: "HyperCLOVA X SEED Think",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        logits_multiplied: true,
        ..Defaults::USUAL
    },
    build: |b| {
        let post_norms = b.has(&format!("blk.0.{}.weight", POST_NORMS[0])).then_some(POST_NORMS);
        decoder(b, &Style { post_norms, ..Style::LLAMA })
    },
};
