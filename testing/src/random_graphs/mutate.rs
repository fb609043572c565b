//! Modules with random faults, for tests of code that must reject them.

use super::{Formats, Random, random_module};
use ixc_ir::format::FORMATS;
use ixc_ir::graph::Attr;
use ixc_ir::graph::op::OPS;
use ixc_ir::graph::{Dim, Module, Operand, StateId, TokenOwner, Type, ValueId, WeightId};
use ixc_ir::state::{Rollback, STATES};

/// Returns a random module with one random fault or change. The seed selects one of 20 modules.
pub fn mutated_module(seed: u64) -> Module {
    mutate(&random_module(seed % 20, Formats::All).module, &mut Random::new(seed))
}

/// Returns a copy of a module with one random fault or change. Most copies do not verify. No copy
/// may cause a panic in the tested code.
pub fn mutate(module: &Module, rng: &mut Random) -> Module {
    let mut module = module.clone();
    let (weights, states) = (module.weights.len() as u64 + 1, module.states.len() as u64 + 1);
    let Some(function) = module.functions.first_mut() else { return module };
    let values = function.values.len() as u64 + 1;
    let ops = function.ops.len() as u64;
    let value = ValueId(rng.below(values) as u32);
    if ops == 0 {
        function.results.push(value);
        return module;
    }
    let at = rng.below(ops) as usize;
    let op = &mut function.ops[at];
    match rng.below(12) {
        0 if !op.operands.is_empty() => {
            let i = rng.below(op.operands.len() as u64) as usize;
            op.operands[i] = match rng.below(4) {
                0 => Operand::Value(value),
                1 => Operand::Weight(WeightId(rng.below(weights) as u32)),
                2 => Operand::State(StateId(rng.below(states) as u32)),
                _ => Operand::Absent,
            };
        }
        1 if !op.attrs.is_empty() => {
            let i = rng.below(op.attrs.len() as u64) as usize;
            op.attrs[i] = match rng.below(5) {
                0 => Attr::Int(rng.pick(&[0, -1, 1, 3, i64::MIN, i64::MAX])),
                1 => Attr::Float(rng.pick(&[0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, 1e-45])),
                2 => Attr::Bool(true),
                3 => Attr::Word(rng.pick(&["yarn", "linear", "sigmoid", ""]).to_string()),
                _ => Attr::Format(rng.pick(FORMATS).format),
            };
        }
        2 => op.results.push(value),
        3 => {
            op.results.pop();
        }
        4 => op.kind = rng.pick(OPS).kind,
        5 => {
            op.operands.pop();
        }
        6 => {
            op.attrs.pop();
        }
        7 => function.ops.swap(at, (at + 1) % ops as usize),
        8 => {
            if let Some(data) = function.values.get_mut(value.index()) {
                let sizes = [0, 1, 2, 256, u64::MAX];
                let dims = vec![Dim::Fixed(rng.pick(&sizes)), Dim::Fixed(rng.pick(&sizes))];
                data.ty = Type::new(rng.pick(FORMATS).format, dims);
            }
        }
        9 => {
            if let Some(data) = function.values.get_mut(value.index()) {
                data.ty = Type::Token(TokenOwner::State(StateId(rng.below(states) as u32)));
            }
        }
        10 => {
            if let Some(state) = module.states.get_mut(rng.below(states) as usize) {
                match rng.below(4) {
                    0 => state.window = Some(rng.pick(&[0, 1, u64::MAX])),
                    1 => state.rollback = rng.pick(&Rollback::ALL),
                    2 => state.kind = rng.pick(STATES).kind,
                    _ => {
                        state.fields.pop();
                    }
                }
            }
        }
        _ => {
            if let Some(weight) = module.weights.get_mut(value.index()) {
                weight.shape = vec![rng.pick(&[0, 1, 256, u64::MAX]), rng.pick(&[0, 1, 256, u64::MAX])];
                weight.format = rng.pick(FORMATS).format;
            }
        }
    }
    module
}
