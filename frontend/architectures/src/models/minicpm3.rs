//! `minicpm3`: MiniCPM 3. Latent attention ([`crate::layers::mla`]) with the scales of `minicpm`.
//! Keys and values of all heads are one matrix. Norms of latent rows have another epsilon than the
//! other norms; files have no key for it.

use super::minicpm;
use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::Defaults;
use crate::layers::key_absorption;
use crate::layers::mla::decoder;

const STYLE: Style = Style::NEOX;

/// Epsilon of the norms of latent rows: the default of the norms' class, whatever the configuration
/// has.
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
