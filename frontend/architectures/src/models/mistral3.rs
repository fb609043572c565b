//! `mistral3`: Ministral 3 and Devstral 2: queries of far positions are multiplied by a number that grows with each context that they are away.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Temperature};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral3",
    doc: "Ministral 3, Devstral 2",
    defaults: Defaults {
        reads: &["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"],
        temperature: Temperature::OfContext,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
