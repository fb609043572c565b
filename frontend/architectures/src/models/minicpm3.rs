//! `minicpm3`: MiniCPM 3. It has latent attention ([`crate::layers::mla`]) and the scales of
//! `minicpm`. Keys and values of all heads have one matrix. The epsilon of norms of latent rows
//! differs from that of other norms; files have no key for it.

use super::minicpm;
use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::Defaults;
use crate::layers::key_absorption;
use crate::layers::mla::decoder;

const STYLE: Style = Style::NEOX;

/// Epsilon of the norms of latent rows. It is the default of transformers' class, whatever epsilon
/// the configuration states.
const LATENT_EPS: f64 = 1e-6;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minicpm3",
    doc: "MiniCPM 3",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        scales: minicpm::scales,
        complete: |gguf, name| {
            let made = key_absorption::tensors(&gguf, name)?;
            gguf.with(made)
        },
        adjust: |_, hyper| {
            hyper.default_latent_eps(LATENT_EPS);
            Ok(())
        },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
