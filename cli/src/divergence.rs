//! Divergence of a changed model's predictions from those of the unchanged model, over a text. It
//! shows the accuracy that deferred experts and requantised weights cost.

use std::path::Path;

use ixc_compile::model::Model;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_measure::kl_divergence::{Divergence, divergence};
use ixc_runtime::engine;

use super::BadInput;
use super::output::count_text;

/// Default text for the comparison.
pub const TEXT: &str = "The river had been rising since the morning, and by noon the lower road was under water. Nobody in the village \
was surprised: it had done so every spring that anyone could remember, and the houses stood on the hill for that reason. The miller \
counted the sacks that were still dry, wrote the number on the door with a piece of chalk, and went to look for his brother, who had \
promised to bring the cart before the bridge was closed. In the schoolroom the children were asked to work out how long it would take \
to fill a barrel of 120 litres from a pipe that gives 8 litres a minute, if a tap at the bottom lets out 3. Most of them answered 24 \
minutes; one said that it depended on who was watching the tap.";
/// Max number of compared positions, and max bytes of their logits.
const MAX_POSITIONS: usize = 256;
const MAX_BYTES: usize = 64 << 20;

/// Returns the number of positions to compare for a model.
pub fn positions(model: &Model) -> usize {
    usize::try_from(model.arch.hyper.context_length).unwrap_or(MAX_POSITIONS).min(MAX_POSITIONS)
}

/// Returns a divergence as text.
pub fn divergence_text(divergence: &Divergence) -> String {
    format!(
        "over {} of text: divergence {:.5} nats on average, {:.5} at most; the same likeliest token at {:.1} %",
        count_text(divergence.positions as u64, "token"),
        divergence.mean,
        divergence.max,
        100.0 * divergence.agreement
    )
}

/// A model, and the options to load it with. Without a path it is the built-in model.
#[derive(Clone, Copy, Debug)]
pub struct ModelSetup<'a> {
    pub path: Option<&'a Path>,
    pub options: &'a LoadOptions,
}

/// Computes the divergence of the changed model's logits from the unchanged model's.
///
/// # Errors
/// When a model cannot be opened or run, or the text has no tokens.
pub fn compare(
    unchanged: ModelSetup<'_>,
    changed: ModelSetup<'_>,
    positions: usize,
    text: &str,
) -> anyhow::Result<Divergence> {
    let context = Some(positions as u64);
    let open = |ModelSetup { path, options }: ModelSetup<'_>| {
        let run = engine::EngineOptions { context, ..options.run.clone() };
        LoadedModel::open(path, &LoadOptions { run, ..options.clone() })
    };
    let mut model = open(unchanged)?;
    let row = model.vocabulary().max(1);
    // Limit the text to four bytes per position, since a token seldom has fewer than four bytes.
    let end = text.floor_char_boundary(text.len().min(4 * positions));
    let mut tokens = model.encode_prompt(&text[..end])?;
    tokens.truncate(positions.min(MAX_BYTES / 4 / row).max(1));
    if tokens.is_empty() {
        return Err(
            BadInput("the text has no tokens; expected at least one token, whose logits are compared".into()).into()
        );
    }
    let expected = model.logits(&tokens)?;
    drop(model);
    let found = open(changed)?.logits(&tokens)?;
    divergence(&expected, &found, row).ok_or_else(|| {
        BadInput(
            "the logits of this model cannot be compared: some are NaN or infinite, or their numbers differ".into(),
        )
        .into()
    })
}
