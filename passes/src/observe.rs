//! `observe`: sums the squares of what each weight is multiplied with, where that is asked for: what an importance matrix is made of.
//!
//! Needs: fused ops. Leaves: the same results, and a `recurrent` state for each weight that rows are multiplied with, named after it: the sum of the
//! squares of each of its columns' numbers, and last how many rows there were, for each of its experts. Where [`Options::inputs`] is false
//! nothing changes. Rows are summed as the product takes them, quantised where it takes them so. Products of heads with a matrix each
//! (`linear.heads`) are left alone.
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
use ixc_ir::graph::{Function, Module, Op, OpKind, Operand, Rewriter, State, StateId, WeightId, view};
use ixc_ir::state::Rollback;

use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// The pass.
pub static PASS: Pass = Pass {
    name: "observe",
    doc: "Sums the squares of what weights are multiplied with, where that is asked for.",
    options: Options::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct Options for "observe" {
        #[doc = "Whether the squares of the rows that products take are summed, for an importance matrix."]
        pub inputs: bool = false,
    }
}

/// What a state's name has before the name of its weight.
pub const PREFIX: &str = "squares.";

/// Runs the pass.
///
/// # Errors
/// None that a verified module has.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    if !context.options.of::<Options>().inputs {
        return Ok(module);
    }
    for i in 0..module.functions.len() {
        let found = factors(&module.functions[i]);
        let mut states: BTreeMap<WeightId, StateId> = BTreeMap::new();
        for factor in &found {
            let weight = &module.weights[factor.weight.index()];
            let name = format!("{PREFIX}{}", weight.name);
            if states.contains_key(&factor.weight) || module.states.iter().any(|state| state.name == name) {
                continue;
            }
            let (experts, columns) = match weight.shape[..] {
                [_, k] => (1, k),
                [experts, _, k] => (experts, k),
                _ => continue,
            };
            states.insert(factor.weight, StateId(module.states.len() as u32));
            module.states.push(State::recurrent(&name, &[experts, columns.saturating_add(1)], Rollback::None));
        }
        let mut rewriter = Rewriter::new(&module, &module.functions[i]);
        let mut tokens = BTreeMap::new();
        for Factor { at, weight, x, ids } in found {
            let Some(&state) = states.get(&weight) else { continue };
            let place = Position::Before(at);
            let sums = match tokens.get(&weight) {
                Some(&token) => token,
                None => {
                    let [token] = rewriter.insert(place, view::StateBegin { state })?;
                    token
                }
            };
            let [token] = rewriter.insert(place, view::ColumnSquares { sums, x, ids })?;
            tokens.insert(weight, token);
        }
        module.functions[i] = rewriter.finish()?;
    }
    Ok(module)
}

/// A weight that rows are multiplied with.
struct Factor {
    /// Position of the product.
    at: usize,
    weight: WeightId,
    x: ixc_ir::graph::ValueId,
    ids: Option<ixc_ir::graph::ValueId>,
}

/// All of a function's.
fn factors(function: &Function) -> Vec<Factor> {
    let mut found = Vec::new();
    for (at, op) in function.ops.iter().enumerate() {
        for &(x, weight) in pairs(op) {
            if let (Operand::Value(x), Operand::Weight(weight)) = (op.operand(x), op.operand(weight)) {
                let ids = match op.kind {
                    OpKind::ExpertSwiglu | OpKind::ExpertDown => match op.operand("ids") {
                        Operand::Value(ids) => Some(ids),
                        Operand::Weight(_) | Operand::State(_) | Operand::Absent => continue,
                    },
                    _ => None,
                };
                found.push(Factor { at, weight, x, ids });
            }
        }
    }
    found
}

/// The operands of a product that are rows, each with the weight that they are multiplied with.
fn pairs(op: &Op) -> &'static [(&'static str, &'static str)] {
    match op.kind {
        OpKind::Linear | OpKind::ExpertDown => &[("x", "w")],
        OpKind::LinearQkv => &[("xq", "wq"), ("xk", "wk"), ("xv", "wv")],
        OpKind::LinearSwiglu | OpKind::ExpertSwiglu => &[("x", "gate"), ("x", "up")],
        _ => &[],
    }
}
