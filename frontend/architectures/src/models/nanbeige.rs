//! `nanbeige`: Nanbeige 4.2. Llama with layers that are repeated (`num_loops`), each time with
//! their own keys and values. The last norm is also applied between repetitions, unless files
//! disable this (`skip_loop_final_norm`).

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nanbeige",
    doc: "Nanbeige 4.2",
    defaults: Defaults { reads: &["num_loops"], ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for round in 0..b.hyper.rounds {
        if round > 0 {
            b.next_round();
            if b.hyper.normed_rounds {
                x = b.norm(x, "output_norm.weight")?;
            }
        }
        for layer in b.layers() {
            x = attention(b, layer, x, &STYLE)?;
            x = feed_forward(b, layer, x, &STYLE)?;
        }
    }
    b.logits(x)
}
