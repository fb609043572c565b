//! Checks of layers that can be called separately: each layer must be self-contained.
//!
//! ```text
//! layer 3: steps 0 to 3        bucket by the incoming ids, gate and up, down, combine
//! layer 4: steps 4 to 7        the same; it reads no result of layer 3
//! ```
//!
//! After the check, the layers cover all steps of the plan, one after the other, and have distinct
//! numbers. Their inputs and outputs are buffers with a row for each token. Each layer sorts the
//! routings that it uses, and requests and releases the experts that it reads. A layer has no
//! states and uses no positions.

use std::collections::BTreeSet;
use std::ops::Range;

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{BufferId, ExpertLayer, Output, Plan, RowCount};

use super::{PlanError, Problem, Routing, at, id, range};

/// A layer of routed experts that can be called separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Number of the layer in the model.
    pub number: u32,
    /// Range of the layer's stages in the program.
    pub stages: Range<usize>,
    /// Indices of the layer's routings.
    pub routings: Vec<usize>,
    /// Number of elements of an input row and of an output row.
    pub width: u32,
    /// Number of experts that each row uses.
    pub used: u32,
    /// Number of experts of the layer.
    pub experts: u32,
    /// Buffer of the input rows: f32 `[T, width]`.
    pub rows: BufferId,
    /// Buffer of the expert ids: i32 `[T, used]`.
    pub ids: BufferId,
    /// Buffer of the experts' weights in the sum: f32 `[T, used]`.
    pub weights: BufferId,
    /// Buffer of the output rows: f32 `[T, width]`.
    pub result: BufferId,
}

/// Returns the range of steps of each layer; empty if the plan is that of a whole model.
pub(super) fn steps(plan: &Plan<Kernel>) -> Result<Vec<Range<usize>>, PlanError> {
    let wrong = |expected| at(&"layers", Err(Problem::Shape { expected }));
    match plan.output {
        Output::Logits { .. } | Output::Hidden { .. } if plan.expert_layers.is_empty() => return Ok(Vec::new()),
        Output::Logits { .. } | Output::Hidden { .. } => {
            return wrong("no layers, because a step returns logits or hidden states");
        }
        Output::Experts { .. } => {}
    }
    let (mut all, mut next) = (Vec::with_capacity(plan.expert_layers.len()), 0);
    for layer in &plan.expert_layers {
        let end = next + layer.steps as usize;
        if layer.first as usize != next || layer.steps == 0 || end > plan.steps.len() {
            return wrong("consecutive parts of the steps");
        }
        all.push(next..end);
        next = end;
    }
    if next != plan.steps.len() || all.is_empty() {
        return wrong("all of the steps, each in one layer");
    }
    if !plan.states.is_empty() || !plan.ropes.is_empty() {
        return wrong("no states and no rotary tables");
    }
    Ok(all)
}

/// Checks the layers of a plan. `parts` are the stages of each layer.
pub(super) fn check(
    plan: &Plan<Kernel>,
    routings: &[Routing],
    stages: Vec<Range<usize>>,
) -> Result<Vec<Layer>, PlanError> {
    let Output::Experts { width } = plan.output else { return Ok(Vec::new()) };
    let mut seen = BTreeSet::new();
    let layers = plan.expert_layers.iter().zip(stages);
    let checked = layers.map(|(layer, stages)| {
        let of_layer = check_layer(plan, routings, layer, width, stages);
        let layer = at(&format!("layer {}", layer.layer), of_layer)?;
        // Each layer must have its own number and its own buffer of ids, because its steps sort
        // these ids.
        let numbers = [(0u8, layer.number), (1, layer.ids.0)];
        if numbers.into_iter().any(|number| !seen.insert(number)) {
            let problem = Problem::Shape { expected: "a number and ids that no other layer has" };
            return at(&format!("layer {}", layer.number), Err(problem));
        }
        Ok(layer)
    });
    checked.collect()
}

fn check_layer(
    plan: &Plan<Kernel>,
    routings: &[Routing],
    layer: &ExpertLayer,
    width: u32,
    stages: Range<usize>,
) -> Result<Layer, Problem> {
    let ExpertLayer { layer: number, rows, ids, weights, result, .. } = *layer;
    let words = |buffer: BufferId| {
        let buffer = id("buffer", buffer.0, &plan.buffers)?;
        if buffer.rows != RowCount::Tokens || !buffer.row_bytes.is_multiple_of(4) || !buffer.offset.is_multiple_of(4) {
            return Err(Problem::Shape { expected: "aligned buffers with 32-bit words for each token" });
        }
        Ok(buffer.row_bytes / 4)
    };
    if words(rows)? != u64::from(width) || words(result)? != u64::from(width) {
        return Err(Problem::Shape { expected: "rows of the plan's width" });
    }
    let own: Vec<usize> = (0..routings.len()).filter(|&at| routings[at].ids.buffer == ids).collect();
    let Some(first) = own.first().map(|&at| routings[at]) else {
        return Err(Problem::Shape { expected: "a routing by the layer's ids" });
    };
    let used = words(ids)?;
    range("experts of a row", used, 1, first.experts)?;
    if words(weights)? != used || own.iter().any(|&at| routings[at].experts != first.experts) {
        return Err(Problem::Shape {
            expected: "one weight for each id, and routings over the same number of experts",
        });
    }
    let (used, experts) = (used as u32, first.experts);
    Ok(Layer { number, stages, routings: own, width, used, experts, rows, ids, weights, result })
}
