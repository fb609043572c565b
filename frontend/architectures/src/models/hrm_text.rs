//! `hrm_text`: HRM-Text. Two stacks of layers, repeated several times, each time with their own
//! keys and values. The output of the lower stack is input of the upper one, whose output is the
//! stream of the next cycle. Norms have no weights, and sigmoids gate the output of attention
//! (transformers `hrm_text`).
//!
//! ```text
//! h = scale * token_embd[id],  l = z_l_init                 // of every token
//! h_cycles times:   l_cycles times:   l = norm(layers 0..n of (h + l))
//!                   h = norm(layers n..2n of (h + l))       // n = hrm.layers_per_stack
//! ```
//!
//! `block_count` counts each computation of a layer. In transformers, tokens of a prompt attend to
//! later ones (`hrm.prefix_lm`) if the caller marks the prompt. Here and in llama.cpp, attention is
//! always causal.

use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{OutputGate, Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{COUNT, Defaults, Keys, MAX_ROUNDED, Norms};

const STYLE: Style = Style { output_gate: OutputGate::Own(Unary::Sigmoid), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hrm_text",
    doc: "HRM-Text",
    defaults: Defaults {
        norms: Norms::UnweightedRms,
        reads: &[COUNT, "embedding_scale"],
        adjust: |keys, hyper| {
            hyper.layers.truncate(2 * Stacks::read(keys)?.layers as usize);
            Ok(())
        },
        ..Defaults::USUAL
    },
    build,
};

/// Two stacks of layers: the lower one is computed several times, then the upper one once, and all
/// of this is repeated.
struct Stacks {
    /// Layers of each stack.
    layers: u64,
    /// Number of times that both stacks are computed.
    cycles: u64,
    /// Number of times that the lower stack is computed in each cycle.
    lower_cycles: u64,
}

impl Stacks {
    /// Reads the stacks of a file.
    fn read(keys: &Keys<'_>) -> Result<Stacks, GgufError> {
        let count = keys.required_size(COUNT, 1, MAX_ROUNDED)?;
        let layers = keys.required_size("hrm.layers_per_stack", 1, (count / 2).max(1))?;
        let cycles = keys.required_size("hrm.h_cycles", 1, MAX_ROUNDED)?;
        let lower_cycles = keys.required_size("hrm.l_cycles", 1, MAX_ROUNDED)?;
        // Each computation of a layer has its own keys and values, and is counted.
        let all = layers.saturating_mul(cycles).saturating_mul(lower_cycles + 1);
        if count != all {
            let limit = format!("{all}: hrm.layers_per_stack * hrm.h_cycles * (hrm.l_cycles + 1)");
            return Err(keys.metadata.bad_value(&keys.name(COUNT), count, limit));
        }
        Ok(Stacks { layers, cycles, lower_cycles })
    }
}

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let Stacks { layers, cycles, lower_cycles } = Stacks::read(&b.keys())?;
    let each = layers as usize;
    let mut upper = b.embed()?;
    let mut lower = None;
    for round in 0..cycles * lower_cycles {
        if round > 0 {
            b.next_round();
        }
        let x = match lower {
            None => b.bias(upper, "hrm.z_l_init", b.hyper.embedding_length)?,
            Some(lower) => b.add(lower, upper)?,
        };
        let result = stack(b, 0..each, x)?;
        lower = Some(result);
        if (round + 1) % lower_cycles == 0 {
            let x = b.add(result, upper)?;
            upper = stack(b, each..2 * each, x)?;
        }
    }
    let x = b.requested_rows(upper)?;
    b.output(x)
}

/// Builds the layers on `x`, then a norm. Skips layers that the graph leaves out.
fn stack(b: &mut Builder<'_>, layers: std::ops::Range<usize>, mut x: ValueId) -> Result<ValueId, ArchError> {
    for layer in layers.filter(|layer| *layer < b.hyper.layers.len()).collect::<Vec<_>>() {
        x = attention(b, layer, x, &STYLE)?;
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.plain_norm(x)
}
