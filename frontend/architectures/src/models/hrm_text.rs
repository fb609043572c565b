//! `hrm_text`: HRM-Text. It has two stacks of layers, which are computed several times, each time
//! with their own KV caches. The output of the lower stack is an input of the upper stack. The
//! upper stack's output is the input of the next cycle. Norms have no weights, and a sigmoid gates
//! the output of attention (transformers `hrm_text`).
//!
//! ```text
//! h = scale * token_embd[id],  l = z_l_init                 // l is the same for all tokens
//! h_cycles times:   l_cycles times:   l = norm(layers 0..n of (h + l))
//!                   h = norm(layers n..2n of (h + l))       // n = hrm.layers_per_stack
//! ```
//!
//! `block_count` counts each computation of a layer. In transformers, if the caller marks the
//! tokens of a prompt, they attend to later prompt tokens, too (`hrm.prefix_lm`). Here and in
//! llama.cpp, attention is always causal.

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

/// Two stacks of layers. In each cycle, the lower stack is computed `lower_cycles` times, then the
/// upper stack once.
struct Stacks {
    /// Number of layers in each stack.
    layers: u64,
    /// Number of cycles.
    cycles: u64,
    /// Number of times that a cycle computes the lower stack.
    lower_cycles: u64,
}

impl Stacks {
    /// Reads the number of layers and repetitions of the stacks.
    fn read(keys: &Keys<'_>) -> Result<Stacks, GgufError> {
        let count = keys.required_size(COUNT, 1, MAX_ROUNDED)?;
        let layers = keys.required_size("hrm.layers_per_stack", 1, (count / 2).max(1))?;
        let cycles = keys.required_size("hrm.h_cycles", 1, MAX_ROUNDED)?;
        let lower_cycles = keys.required_size("hrm.l_cycles", 1, MAX_ROUNDED)?;
        // Each computation of a layer has its own KV cache, and `block_count` counts each.
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

/// Builds the layers `layers` on `x`, then a norm. Layers that the graph leaves out are skipped.
fn stack(b: &mut Builder<'_>, layers: std::ops::Range<usize>, mut x: ValueId) -> Result<ValueId, ArchError> {
    for layer in layers.filter(|layer| *layer < b.hyper.layers.len()).collect::<Vec<_>>() {
        x = attention(b, layer, x, &STYLE)?;
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.plain_norm(x)
}
