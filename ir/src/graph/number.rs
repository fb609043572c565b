//! Canonical numbering: values are numbered in the order of their definitions, parameters first.
//! Values without a definition are dropped.
//!
//! Passes that delete and insert ops leave gaps in the numbers. Printed text has consecutive
//! numbers. `parse(print(m)) == canonical(m)` for every module that verifies, and
//! `canonical(canonical(m)) == canonical(m)`.
//!
//! ```text
//! values: %3 = silu %0, %1 = add %3, %3     becomes     %1 = silu %0, %2 = add %1, %1
//! ```

use super::{Function, Module, Operand, ValueId};

/// Returns the module with every function in canonical numbering. The verifier must accept the
/// module.
pub fn canonical(module: &Module) -> Module {
    let functions = module.functions.iter().map(canonical_function).collect();
    Module { weights: module.weights.clone(), states: module.states.clone(), functions }
}

/// Returns the function in canonical numbering. The verifier must accept the function.
pub fn canonical_function(function: &Function) -> Function {
    let order = definition_order(function);
    let mut numbers = vec![ValueId(u32::MAX); function.values.len()];
    for (&value, number) in order.iter().zip(0..) {
        numbers[value.index()] = ValueId(number);
    }
    let number = |value: &ValueId| numbers[value.index()];
    let mut out = function.clone();
    out.values = order.iter().map(|value| function.values[value.index()].clone()).collect();
    out.params = function.params.iter().map(number).collect();
    out.results = function.results.iter().map(number).collect();
    for op in &mut out.ops {
        for operand in &mut op.operands {
            if let Operand::Value(value) = operand {
                *value = number(value);
            }
        }
        op.results = op.results.iter().map(number).collect();
    }
    out
}

/// Returns all values in the order of their definitions, parameters first.
pub fn definition_order(function: &Function) -> Vec<ValueId> {
    function.params.iter().chain(function.ops.iter().flat_map(|op| &op.results)).copied().collect()
}
