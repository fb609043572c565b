//! `observe`: sums the squares of each weight's inputs, on request, for an importance matrix.
//!
//! Needs: fused ops. Leaves: the same results. Each tensor that rows are multiplied with gets a
//! `recurrent` state, named after the tensor. For each expert, the state has the sum of squares of
//! each column of the rows, and then the number of rows. If [`ObserveOptions::inputs`] is false,
//! nothing changes. Rows are summed in the format in which the op takes them, quantised if the op
//! takes quantised rows. If several weights are parts of one tensor (`ffn_gate_up_exps`), only one
//! of them is counted. If each head has its own matrix, the columns of all heads are adjacent in
//! the state, as in the files of llama-imatrix.
//!
//! ```text
//!   %y = linear %x, @w, _, _ : f32[T, 512]                // @w : q4_k[512, 256], %x : a8_super[T, 256]
//! ```
//! becomes
//! ```text
//!   %3 = state.begin @squares.w : token<@squares.w>        // recurrent f32[1, 257]
//!   %4 = column.squares %3, %x, _ : token<@squares.w>
//!   %y = linear %x, @w, _, _ : f32[T, 512]
//! ```

use std::collections::BTreeMap;

use ixc_ir::graph::rewrite::Position;
use ixc_ir::graph::{
    DefUse, Function, Module, Op, OpKind, Operand, Rewriter, State, StateId, ValueId, Weight, WeightId, view,
};
use ixc_ir::state::Rollback;

use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "observe",
    doc: "Sums the squares of the inputs of each product, if `inputs` is true.",
    options: ObserveOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct ObserveOptions for "observe" {
        #[doc = "Whether to sum the squares of the input rows of products, for an importance matrix."]
        pub inputs: bool = false,
    }
}

/// Prefix of a state's name, before the name of its weight.
pub const PREFIX: &str = "squares.";

/// Runs the pass.
///
/// # Errors
/// Never fails for a verified module.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    if !context.options.get::<ObserveOptions>().inputs {
        return Ok(module);
    }
    for i in 0..module.functions.len() {
        let function = &module.functions[i];
        let found = factors(function);
        let mut states: BTreeMap<String, StateId> = BTreeMap::new();
        for factor in &found {
            let weight = &module.weights[factor.weight.index()];
            let name = state_name(weight);
            if states.contains_key(&name) || module.states.iter().any(|state| state.name == name) {
                continue;
            }
            let (experts, columns) = match weight.shape[..] {
                [_, k] => (1, k),
                // The columns of all heads are adjacent.
                [heads, _, k] if is_of_heads(&function.ops[factor.at]) => (1, heads.saturating_mul(k)),
                [experts, _, k] => (experts, k),
                _ => continue,
            };
            states.insert(name.clone(), StateId(module.states.len() as u32));
            module.states.push(State::recurrent(&name, &[experts, columns.saturating_add(1)], Rollback::None));
        }
        let mut rewriter = Rewriter::new(&module, function);
        // Current token of each state, and the one weight whose rows are counted. Other parts of
        // the same tensor are multiplied with the same rows, so they are skipped.
        let mut tokens: BTreeMap<StateId, (ValueId, WeightId)> = BTreeMap::new();
        for Factor { at, weight, mut x, ids } in found {
            let Some(&state) = states.get(&state_name(&module.weights[weight.index()])) else { continue };
            let place = Position::Before(at);
            let sums = match tokens.get(&state) {
                Some((_, counted)) if *counted != weight => continue,
                Some(&(token, _)) => token,
                None => {
                    let [token] = rewriter.insert(place, view::StateBegin { state })?;
                    token
                }
            };
            if is_of_heads(&function.ops[at]) {
                [x] = rewriter.insert(place, view::MergeHeads { x })?;
            }
            let [token] = rewriter.insert(place, view::ColumnSquares { sums, x, ids })?;
            tokens.insert(state, (token, weight));
        }
        module.functions[i] = rewriter.finish()?;
    }
    Ok(module)
}

/// Returns the name of a weight's state: the name of its tensor, which may contain several weights.
fn state_name(weight: &Weight) -> String {
    let tensor = weight.part.as_ref().map_or(&weight.name, |part| &part.tensor);
    format!("{PREFIX}{tensor}")
}

/// A weight of a product, and the rows that are multiplied with it.
struct Factor {
    /// Position of the product in the function.
    at: usize,
    weight: WeightId,
    x: ValueId,
    ids: Option<ValueId>,
}

/// Returns each weight of a product in a function, with its rows.
fn factors(function: &Function) -> Vec<Factor> {
    let def_use = DefUse::from_function(function);
    let mut found = Vec::new();
    for (at, op) in function.ops.iter().enumerate() {
        for &(x, weight) in pairs(op) {
            let weight = match op.operand(weight) {
                Operand::Weight(weight) => Some(weight),
                Operand::Value(value) => def_use.defining(function, value).map(|view::Dequantise { w }| w),
                Operand::State(_) | Operand::Absent => None,
            };
            let (Operand::Value(mut x), Some(weight)) = (op.operand(x), weight) else { continue };
            let ids = match op.kind {
                OpKind::ExpertSwiglu | OpKind::ExpertDown | OpKind::ExpertMatmul => match op.operand("ids") {
                    Operand::Value(ids) => Some(ids),
                    Operand::Weight(_) | Operand::State(_) | Operand::Absent => continue,
                },
                // Heads are merged before their squares are summed. Only floats can be merged, so
                // rows are taken before their quantisation.
                OpKind::LinearHeads => {
                    x = def_use.defining(function, x).map_or(x, |view::Quantise { x, .. }| x);
                    None
                }
                _ => None,
            };
            found.push(Factor { at, weight, x, ids });
        }
    }
    found
}

/// Returns the names of a product's row operands, each with the name of the weight that multiplies
/// the rows.
fn pairs(op: &Op) -> &'static [(&'static str, &'static str)] {
    match op.kind {
        OpKind::Linear | OpKind::LinearHeads | OpKind::ExpertDown => &[("x", "w")],
        OpKind::Matmul | OpKind::HeadsMatmul | OpKind::ExpertMatmul => &[("x", "w")],
        OpKind::LinearQkv => &[("xq", "wq"), ("xk", "wk"), ("xv", "wv")],
        OpKind::LinearSwiglu | OpKind::ExpertSwiglu => &[("x", "gate"), ("x", "up")],
        _ => &[],
    }
}

/// Whether each head has its own matrix.
fn is_of_heads(op: &Op) -> bool {
    matches!(op.kind, OpKind::LinearHeads | OpKind::HeadsMatmul)
}
