//! [`Rewriter`]: changes that a pass makes to a function.
//!
//! ```text
//! %a = silu %x : f32[T, 4]         op 0
//! %b = mul %a, %x : f32[T, 4]      op 1
//! ```
//! after `replace_uses(%x, %a)` except in op 0, and after
//! `insert(Position::After(1), view::Silu { x: %b })`, is
//! ```text
//! %a = silu %x : f32[T, 4]
//! %b = mul %a, %a : f32[T, 4]
//! %2 = silu %b : f32[T, 4]
//! ```
//!
//! Positions are indices of ops in the original function; inserted and erased ops do not change
//! them. An analysis of the original function ([`super::DefUse`]) therefore stays valid until the
//! end.
//!
//! [`Rewriter::finish`] applies all changes and returns a function with these properties:
//! - Every value is defined before it is used.
//! - Every op has the result types that its type rule gives. If a type changes, all types that
//!   depend on it change too.
//! - At least one result of every pure op is used.
//! - Values are numbered in the order of their definitions.
//!
//! The original function may be invalid. An error in it, or in a change, is a [`RewriteError`].

use std::collections::HashMap;

use super::types::{TypeError, result_types};
use super::view::OpView;
use super::{Attr, DefUse, Function, Module, Op, OpKind, Operand, ValueId};

/// Location of a new op. Ops that are inserted at the same location keep the order of insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Location before the op at this position. A position equal to the number of ops means the end
    /// of the function.
    Before(usize),
    /// Location after the op at this position.
    After(usize),
}

/// Reason why a change is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RewriteError {
    /// A position at which the original function has no op.
    #[error("function @{function}: there is no op {at}; expected one below {ops}")]
    NoOp {
        /// Name of the function.
        function: String,
        /// The position.
        at: usize,
        /// Number of ops in the original function.
        ops: usize,
    },
    /// Use of a value that no earlier op defines.
    #[error("function @{function}: value {value} is used before it is defined")]
    Undefined {
        /// Name of the function.
        function: String,
        /// Number of the value.
        value: u32,
    },
    /// Replacement of a value by a value of another type.
    #[error("function @{function}: the replacement has type {found}; expected {expected}")]
    Replaced {
        /// Name of the function.
        function: String,
        /// Type of the new value.
        found: String,
        /// Type of the replaced value.
        expected: String,
    },
    /// Replacement of an op by an op with another number of results.
    #[error("function @{function}: {op} gives {found} values; expected {expected}")]
    Results {
        /// Name of the function.
        function: String,
        /// Mnemonic of the new op.
        op: &'static str,
        /// Number of results of the new op.
        found: usize,
        /// Number of results of the replaced op.
        expected: usize,
    },
    /// An op that its type rule rejects.
    #[error("function @{function}: {error}")]
    Type {
        /// Name of the function.
        function: String,
        /// Error of the type rule.
        #[source]
        error: TypeError,
    },
}

/// A function that is being changed.
#[derive(Clone, Debug)]
pub struct Rewriter<'m> {
    module: &'m Module,
    /// The function with its original ops. Its list of values also has the results of inserted ops.
    function: Function,
    /// Ops inserted before and after each original op, by position.
    inserted: HashMap<usize, [Vec<Op>; 2]>,
    erased: Vec<bool>,
    /// Replacement of each value. A value without a replacement maps to itself.
    replaced: Vec<ValueId>,
}

impl<'m> Rewriter<'m> {
    /// Starts to change a function of the module.
    pub fn new(module: &'m Module, function: &Function) -> Rewriter<'m> {
        let erased = vec![false; function.ops.len()];
        let replaced = (0..function.values.len() as u32).map(ValueId).collect();
        Rewriter { module, function: function.clone(), inserted: HashMap::new(), erased, replaced }
    }

    /// Returns the function with its original ops, after the changes made to these ops so far.
    /// Operands may still be values that have replacements.
    pub fn function(&self) -> &Function {
        &self.function
    }

    fn name(&self) -> String {
        self.function.name.clone()
    }

    fn check(&self, at: usize, ops: usize) -> Result<(), RewriteError> {
        if at < ops { Ok(()) } else { Err(RewriteError::NoOp { function: self.name(), at, ops }) }
    }

    fn check_value(&self, value: ValueId) -> Result<(), RewriteError> {
        let undefined = || RewriteError::Undefined { function: self.name(), value: value.0 };
        self.function.values.get(value.index()).map(|_| ()).ok_or_else(undefined)
    }

    fn type_error(&self, error: TypeError) -> RewriteError {
        RewriteError::Type { function: self.name(), error }
    }

    /// Returns the replacement of a value, after following all chained replacements. A value
    /// without a replacement is returned unchanged.
    pub fn resolve(&self, mut value: ValueId) -> ValueId {
        while let Some(&by) = self.replaced.get(value.index())
            && by != value
        {
            value = by;
        }
        value
    }

    /// Returns the op at a position. Operands that have replacements are replaced.
    ///
    /// # Errors
    /// Fails with [`RewriteError::NoOp`].
    pub fn op(&mut self, at: usize) -> Result<&Op, RewriteError> {
        self.check(at, self.function.ops.len())?;
        let operands = self.function.ops[at].operands.iter();
        let operands = operands.map(|operand| operand.map_value(|value| self.resolve(value)));
        self.function.ops[at].operands = operands.collect();
        Ok(&self.function.ops[at])
    }

    /// Inserts an op and returns its results. Its operands are not changed, even if they have
    /// replacements.
    ///
    /// # Errors
    /// Fails if the position does not exist, or if the type rule rejects the op.
    pub fn insert<V: OpView>(&mut self, place: Position, op: V) -> Result<V::Results, RewriteError> {
        let results = self.insert_op(place, V::KIND, op.operands(), op.attrs())?;
        V::Results::try_from(&results)
            .map_err(|_| unreachable!("{:?}: {} results, as its row says", V::KIND, results.len()))
    }

    /// Inserts an op of any kind, such as a copy of another op. Operands are treated as in
    /// [`Rewriter::insert`].
    ///
    /// # Errors
    /// Fails with [`RewriteError::NoOp`] or [`RewriteError::Type`].
    pub fn insert_op(
        &mut self,
        place: Position,
        kind: OpKind,
        operands: Vec<Operand>,
        attrs: Vec<Attr>,
    ) -> Result<Vec<ValueId>, RewriteError> {
        let ops = self.function.ops.len();
        let (at, after) = match place {
            Position::Before(at) => (at, false),
            Position::After(at) => (at, true),
        };
        self.check(at, ops + usize::from(!after))?;
        let types = result_types(self.module, &self.function, kind, &operands, &attrs);
        let types = types.map_err(|error| self.type_error(error))?;
        let results: Vec<ValueId> = types.into_iter().map(|ty| self.function.add_value(None, ty)).collect();
        self.replaced.extend(&results);
        let op = Op { kind, operands, attrs, results: results.clone() };
        self.inserted.entry(at).or_default()[usize::from(after)].push(op);
        Ok(results)
    }

    /// Replaces the op at a position. The new op defines the results of the old op.
    ///
    /// # Errors
    /// Fails with [`RewriteError::NoOp`] or [`RewriteError::Results`].
    pub fn replace<V: OpView>(&mut self, at: usize, op: V) -> Result<(), RewriteError> {
        self.check(at, self.function.ops.len())?;
        let (row, expected) = (V::KIND.row(), self.function.ops[at].results.len());
        if row.results != expected {
            let (op, found) = (row.mnemonic, row.results);
            return Err(RewriteError::Results { function: self.name(), op, found, expected });
        }
        let old = &mut self.function.ops[at];
        (old.kind, old.operands, old.attrs) = (V::KIND, op.operands(), op.attrs());
        Ok(())
    }

    /// Replaces the value `value` by `by` in the operands of the op at position `at`.
    ///
    /// # Errors
    /// Fails with [`RewriteError::NoOp`].
    pub fn replace_uses_in(&mut self, at: usize, value: ValueId, by: ValueId) -> Result<(), RewriteError> {
        self.check(at, self.function.ops.len())?;
        let operands = self.function.ops[at].operands.iter_mut();
        operands.filter(|operand| **operand == Operand::Value(value)).for_each(|operand| *operand = Operand::Value(by));
        Ok(())
    }

    /// Replaces the value `value` by `by` in all original ops and in the function's return.
    /// Inserted ops keep their operands. If the new value has no name, it takes the name of the old
    /// one.
    ///
    /// # Errors
    /// Fails if the types differ ([`RewriteError::Replaced`]), or if a value does not exist
    /// ([`RewriteError::Undefined`]).
    pub fn replace_uses(&mut self, value: ValueId, by: ValueId) -> Result<(), RewriteError> {
        self.check_value(value)?;
        self.check_value(by)?;
        let (value, by) = (self.resolve(value), self.resolve(by));
        let [expected, found] = [value, by].map(|value| self.function.ty(value));
        if expected != found {
            let [expected, found] = [expected, found].map(|ty| ty.text(self.module));
            return Err(RewriteError::Replaced { function: self.name(), found, expected });
        }
        if value != by {
            let name = self.function.values[value.index()].name.take();
            let slot = &mut self.function.values[by.index()].name;
            *slot = slot.take().or(name);
            self.replaced[value.index()] = by;
        }
        Ok(())
    }

    /// Erases the op at a position. Pure ops without uses need no call, because
    /// [`Rewriter::finish`] drops them.
    ///
    /// # Errors
    /// Fails with [`RewriteError::NoOp`]. If another op still uses the erased op's results,
    /// [`Rewriter::finish`] fails.
    pub fn erase(&mut self, at: usize) -> Result<(), RewriteError> {
        self.check(at, self.function.ops.len())?;
        self.erased[at] = true;
        Ok(())
    }

    /// Applies all changes and returns the function.
    ///
    /// # Errors
    /// Fails with [`RewriteError::Undefined`] or [`RewriteError::Type`].
    pub fn finish(mut self) -> Result<Function, RewriteError> {
        let own = self.function.ops.len();
        let mut ops = Vec::with_capacity(own + self.inserted.len());
        for at in 0..=own {
            let [before, after] = self.inserted.remove(&at).unwrap_or_default();
            ops.extend(before);
            if at < own && !self.erased[at] {
                ops.push(self.op(at)?.clone());
            }
            ops.extend(after);
        }
        let results = self.function.results.iter().map(|&result| self.resolve(result)).collect();
        let function = Function { ops: Vec::new(), results, ..self.function };
        Ok(compact(&checked_function(self.module, function, ops)?))
    }
}

/// Returns a function with these ops. Checks that values are defined before their use, and sets the
/// types that the type rules give.
fn checked_function(module: &Module, mut function: Function, ops: Vec<Op>) -> Result<Function, RewriteError> {
    let name = function.name.clone();
    let undefined = |value: ValueId| RewriteError::Undefined { function: name.clone(), value: value.0 };
    let mut defined = vec![false; function.values.len()];
    let define = |value: ValueId, defined: &mut [bool]| {
        defined.get_mut(value.index()).map(|defined| *defined = true).ok_or_else(|| undefined(value))
    };
    let taken = |value: ValueId, defined: &[bool]| match defined.get(value.index()) {
        Some(true) => Ok(()),
        Some(false) | None => Err(undefined(value)),
    };
    function.params.iter().try_for_each(|&param| define(param, &mut defined))?;
    for op in &ops {
        op.values().try_for_each(|(_, value)| taken(value, &defined))?;
        op.results.iter().try_for_each(|&result| define(result, &mut defined))?;
        let types = result_types(module, &function, op.kind, &op.operands, &op.attrs);
        let types = types.map_err(|error| RewriteError::Type { function: name.clone(), error })?;
        for (result, ty) in op.results.iter().zip(types) {
            function.values[result.index()].ty = ty;
        }
    }
    function.results.iter().try_for_each(|&result| taken(result, &defined))?;
    function.ops = ops;
    Ok(function)
}

/// Drops unused pure ops and undefined values. Numbers the values in the order of their
/// definitions.
fn compact(function: &Function) -> Function {
    let mut out = Function { name: function.name.clone(), ..Function::default() };
    let mut moved: Vec<ValueId> = vec![ValueId(u32::MAX); function.values.len()];
    let define = |out: &mut Function, value: ValueId, moved: &mut [ValueId]| {
        let data = &function.values[value.index()];
        moved[value.index()] = out.add_value(data.name.as_deref(), data.ty.clone());
        moved[value.index()]
    };
    for &param in &function.params {
        let param = define(&mut out, param, &mut moved);
        out.params.push(param);
    }
    let live = DefUse::from_function(function).live(function);
    for (op, _) in function.ops.iter().zip(live).filter(|(_, live)| *live) {
        let operands = op.operands.iter().map(|operand| operand.map_value(|value| moved[value.index()]));
        let operands = operands.collect();
        let results = op.results.iter().map(|&result| define(&mut out, result, &mut moved)).collect();
        out.ops.push(Op { kind: op.kind, operands, attrs: op.attrs.clone(), results });
    }
    out.results = function.results.iter().map(|result| moved[result.index()]).collect();
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::graph::parse::parse;
    use crate::graph::verify::verify;
    use crate::graph::view;

    const TEXT: &str = "weight @w : f32[4]
func @f(%x: f32[T, 4], %h: f32[T, 2, 2]) -> (f32[T, 4]) {
  %a = silu %x
  %b = mul %a, %x
  %c = rms_norm %b, @w {eps = 1e-6}
  return %c
}";

    const X: ValueId = ValueId(0);
    const H: ValueId = ValueId(1);
    const A: ValueId = ValueId(2);
    const B: ValueId = ValueId(3);
    const C: ValueId = ValueId(4);

    /// Applies a change to the example function and returns the new text.
    fn apply_change(
        change: impl FnOnce(&mut Rewriter<'_>) -> Result<(), RewriteError>,
    ) -> Result<String, RewriteError> {
        let module = parse(TEXT).unwrap();
        let mut rewriter = Rewriter::new(&module, &module.functions[0]);
        change(&mut rewriter)?;
        let functions = vec![rewriter.finish()?];
        let changed = Module { functions, ..module.clone() };
        verify(&changed).unwrap();
        Ok(changed.to_string().lines().skip(3).map(|line| line.to_owned() + "\n").collect())
    }

    /// Applies a change that must fail, and returns the error message.
    fn wrong(change: impl FnOnce(&mut Rewriter<'_>) -> Result<(), RewriteError>) -> String {
        apply_change(change).unwrap_err().to_string()
    }

    #[test]
    fn inserted_ops_take_their_position_and_redirect_uses() {
        let text = apply_change(|rewriter| {
            let [first] = rewriter.insert(Position::After(0), view::Silu { x: A })?;
            let [second] = rewriter.insert(Position::After(0), view::Silu { x: first })?;
            let [early] = rewriter.insert(Position::Before(0), view::Silu { x: X })?;
            rewriter.replace_uses_in(1, X, early)?;
            rewriter.replace_uses(A, second)?;
            let [late] = rewriter.insert(Position::Before(3), view::Add { a: C, b: X })?;
            rewriter.replace_uses(C, late)
        });
        let expected = "  %2 = silu %x : f32[T, 4]
  %3 = silu %x : f32[T, 4]
  %4 = silu %3 : f32[T, 4]
  %a = silu %4 : f32[T, 4]
  %b = mul %a, %2 : f32[T, 4]
  %7 = rms_norm %b, @w {eps = 1e-6} : f32[T, 4]
  %c = add %7, %x : f32[T, 4]
  return %c
}
";
        assert_eq!(text.unwrap(), expected);
    }

    #[test]
    fn type_changes_propagate_and_unused_ops_are_removed() {
        let text = apply_change(|rewriter| {
            rewriter.replace(0, view::MergeHeads { x: H })?;
            rewriter.replace(1, view::Softcap { x: H, cap: 2.0 })?;
            rewriter.replace(2, view::Quantise { x: A, format: Format::F32 })
        });
        assert_eq!(
            text.unwrap(),
            "  %a = merge_heads %h : f32[T, 4]\n  %c = quantise %a {format = f32} : f32[T, 4]\n  return %c\n}\n"
        );
        let text = apply_change(|rewriter| {
            rewriter.replace(0, view::Silu { x: H })?;
            rewriter.replace(1, view::MergeHeads { x: A })
        });
        let expected = "  %a = silu %h : f32[T, 2, 2]
  %b = merge_heads %a : f32[T, 4]
  %c = rms_norm %b, @w {eps = 1e-6} : f32[T, 4]
  return %c
}
";
        assert_eq!(text.unwrap(), expected);
    }

    #[test]
    fn invalid_rewrites_are_errors() {
        let no_op = "function @f: there is no op 9; expected one below 3";
        assert_eq!(wrong(|rewriter| rewriter.erase(9)), no_op);
        assert_eq!(wrong(|rewriter| rewriter.insert(Position::After(9), view::Silu { x: X }).map(|_| ())), no_op);
        assert_eq!(wrong(|rewriter| rewriter.replace(9, view::Silu { x: X })), no_op);
        let before = wrong(|rewriter| rewriter.insert(Position::Before(9), view::Silu { x: X }).map(|_| ()));
        assert_eq!(before, "function @f: there is no op 9; expected one below 4");
        assert_eq!(wrong(|rewriter| rewriter.erase(1)), "function @f: value 3 is used before it is defined");
        let late = wrong(|rewriter| rewriter.replace_uses_in(0, X, B));
        assert_eq!(late, "function @f: value 3 is used before it is defined");
        assert_eq!(
            wrong(|rewriter| rewriter.replace_uses(X, ValueId(99))),
            "function @f: value 99 is used before it is defined"
        );
        assert_eq!(
            wrong(|rewriter| rewriter.replace_uses(A, H)),
            "function @f: the replacement has type f32[T, 2, 2]; expected f32[T, 4]"
        );
        let split = view::ExpertSplit { ids: X, p: X, now: 1 };
        assert_eq!(
            wrong(|rewriter| rewriter.replace(0, split)),
            "function @f: expert.split gives 4 values; expected 1"
        );
        let merge = wrong(|rewriter| rewriter.insert(Position::After(0), view::MergeHeads { x: A }).map(|_| ()));
        assert!(merge.starts_with("function @f: merge_heads: operand x is f32[T, 4]"), "{merge}");
        let behind = wrong(|rewriter| rewriter.replace(0, view::Silu { x: H }));
        assert!(behind.starts_with("function @f: mul: operand b is f32[T, 4]"), "{behind}");
    }
}
