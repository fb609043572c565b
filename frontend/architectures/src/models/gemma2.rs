//! `gemma2`: Gemma 2. Every other layer has an attention window. A norm precedes and follows each
//! block, and gates go through GELU. Attention scores and logits have soft limits. The first files
//! lack keys for these limits; the limits of the released models then apply.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{PostNorms, SCORE_CAP, Style, decoder, embed_by_root, limited_scores};
use crate::hyper::{Defaults, Scales, Windows};

pub(super) const STYLE: Style = Style {
    post_norms: Some(PostNorms::USUAL),
    gate: GateAttrs::plain(Activation::Gelu),
    scores: |b, _, scores| limited_scores(b, scores, 50.0),
    embed: embed_by_root,
    ..Style::NEOX
};

/// Number of layers of the model with 27 billion parameters. Its score factor depends on the
/// stream's width instead of the key length. Files have no key for this.
const LAYERS_27B: usize = 46;

pub(super) const DEFAULTS: Defaults = Defaults {
    reads: &[SCORE_CAP, "final_logit_softcapping"],
    scales: |_| Scales { softcap: 30.0, ..Scales::NONE },
    windows: Some(Windows { length: Some(4096), ..Windows::every(2) }),
    attention_scale: |sizes| if sizes.layers == LAYERS_27B { sizes.by_width() } else { sizes.by_key() },
    ..Defaults::USUAL
};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "gemma2", doc: "Gemma 2", defaults: DEFAULTS, build: |b| decoder(b, &STYLE) };
