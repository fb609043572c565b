//! `mistral3`: Ministral 3 and Devstral 2. A factor on queries grows with the position, once every
//! original context length.

use ixc_ir::graph::attrs::TemperatureAttrs;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;
use crate::layers::temperature::{SCALE, scale};

const STYLE: Style = Style {
    temper: |b, q, _| {
        let of = TemperatureAttrs { scale: scale(&b.keys(), 0.0)?, length: b.hyper.rope.original_context, offset: 0 };
        b.temperature(q, &of)
    },
    ..Style::LLAMA
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral3",
    doc: "Ministral 3, Devstral 2",
    defaults: Defaults { reads: &[SCALE, "rope.scaling.yarn_log_multiplier"], ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
