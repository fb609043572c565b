//! `mistral3`: Ministral 3 and Devstral 2. Queries are multiplied by a factor that grows with the
//! position, in steps of the original context.

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
