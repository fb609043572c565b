//! `nanbeige`: Nanbeige 4.2. It is Llama with layers that are computed several times (`num_loops`),
//! each time with their own KV caches. The last norm is also applied between repetitions, unless
//! files disable this (`skip_loop_final_norm`).

use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys, MAX_ROUNDED};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nanbeige",
    doc: "Nanbeige 4.2",
    defaults: Defaults { reads: &[LOOPS], ..Defaults::USUAL },
    build: decoder,
};

/// Key of the number of times that the layers are computed.
const LOOPS: &str = "num_loops";

/// Number of repetitions of the layers, and the norm between repetitions.
struct Loops {
    /// Number of times that the layers are computed.
    count: u64,
    /// Whether the last norm is also applied between repetitions.
    norm_between: bool,
}

impl Loops {
    /// Reads the keys of a file with `layers` layers.
    fn read(keys: &Keys<'_>, layers: usize) -> Result<Loops, GgufError> {
        let most = (MAX_ROUNDED / layers as u64).max(1);
        Ok(Loops {
            count: keys.optional(LOOPS, 0, most)?.unwrap_or(1).max(1),
            norm_between: !keys.metadata.read_or(&keys.name("skip_loop_final_norm"), false)?,
        })
    }
}

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let loops = Loops::read(&b.keys(), b.model_layers)?;
    let mut x = b.embed()?;
    for round in 0..loops.count {
        if round > 0 {
            b.next_round();
            if loops.norm_between {
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
