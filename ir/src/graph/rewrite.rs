//! [`Rewriter`]: how a pass changes a function.
//!
//! ```text
//! %a = silu %x : f32[T, 4]         op 0
//! %b = mul %a, %x : f32[T, 4]      op 1
//! ```
//! with `replace_uses(%x, %a)` but for op 0, and `insert(Position::After(1), view::Silu { x: %b })`, is
//! ```text
//! %a = silu %x : f32[T, 4]
//! %b = mul %a, %a : f32[T, 4]
//! %2 = silu %b : f32[T, 4]
//! ```
//!
//! Positions are those of the function as it was given, whatever is inserted or erased: an analysis of it ([`super::DefUse`]) stays right
//! until the end. [`Rewriter::finish`] puts all in its place and leaves a function where every value is defined before it is taken, every
//! op has the results that its type rule gives (a type that changes changes those behind it), no pure op is without use, and values are
//! numbered in the order of their definitions.
//!
//! Takes any function; what is wrong in it, or in a change, is a [`RewriteError`].

use std::collections::HashMap;

use super::types::{TypeError, result_types};
use super::view::OpView;
use super::{Attr, DefUse, Function, Module, Op, OpKind, Operand, ValueId};

/// Where an op is put: behind others that were put there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before the op at a position; before the function's end where it is the number of ops.
    Before(usize),
    /// After the op at a position.
    After(usize),
}

/// Why a change is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RewriteError {
    /// A position beyond the ops.
    #[error("function @{function}: there is no op {at}; expected one below {ops}")]
    NoOp {
        /// The function.
        function: String,
        /// The position.
        at: usize,
        /// How many there are.
        ops: usize,
    },
    /// A value that no op before defines.
    #[error("function @{function}: value {value} is taken before it is defined")]
    Undefined {
        /// The function.
        function: String,
        /// Number of the value.
        value: u32,
    },
    /// A value in place of one of another type.
    #[error("function @{function}: {found} in place of {expected}")]
    Replaced {
        /// The function.
        function: String,
        /// Type of the value.
        found: String,
        /// Type of the value that it replaces.
        expected: String,
    },
    /// An op in place of one with another number of results.
    #[error("function @{function}: {op} gives {found} values; expected {expected}")]
    Results {
        /// The function.
        function: String,
        /// The op.
        op: &'static str,
        /// How many values it gives.
        found: usize,
        /// How many the op gives that it replaces.
        expected: usize,
    },
    /// An op that its type rule refuses.
    #[error("function @{function}: {error}")]
    Type {
        /// The function.
        function: String,
        /// What the rule says.
        #[source]
        error: TypeError,
    },
}

/// A function that is being changed.
#[derive(Clone, Debug)]
pub struct Rewriter<'m> {
    module: &'m Module,
    /// The function with its own ops; values of those that are inserted are there, too.
    function: Function,
    /// By position, what stands before the op and what after it.
    inserted: HashMap<usize, [Vec<Op>; 2]>,
    erased: Vec<bool>,
    /// What each value was replaced by, itself where it was not.
    replaced: Vec<ValueId>,
}

impl<'m> Rewriter<'m> {
    /// Of a function of the module.
    pub fn new(module: &'m Module, function: &Function) -> Rewriter<'m> {
        let erased = vec![false; function.ops.len()];
        let replaced = (0..function.values.len() as u32).map(ValueId).collect();
        Rewriter { module, function: function.clone(), inserted: HashMap::new(), erased, replaced }
    }

    /// The function with its own ops, as far as they are changed; replaced values stand where they stood.
    pub fn function(&self) -> &Function {
        &self.function
    }

    fn name(&self) -> String {
        self.function.name.clone()
    }

    fn check(&self, at: usize, ops: usize) -> Result<(), RewriteError> {
        if at < ops { Ok(()) } else { Err(RewriteError::NoOp { function: self.name(), at, ops }) }
    }

    fn known(&self, value: ValueId) -> Result<(), RewriteError> {
        let undefined = || RewriteError::Undefined { function: self.name(), value: value.0 };
        self.function.values.get(value.index()).map(|_| ()).ok_or_else(undefined)
    }

    fn refused(&self, error: TypeError) -> RewriteError {
        RewriteError::Type { function: self.name(), error }
    }

    /// What stands for a value now.
    pub fn resolve(&self, mut value: ValueId) -> ValueId {
        while let Some(&by) = self.replaced.get(value.index())
            && by != value
        {
            value = by;
        }
        value
    }

    /// The op at a position, where it takes what stands for its operands now.
    ///
    /// # Errors
    /// [`RewriteError::NoOp`].
    pub fn op(&mut self, at: usize) -> Result<&Op, RewriteError> {
        self.check(at, self.function.ops.len())?;
        let operands = self.function.ops[at].operands.iter();
        let operands = operands.map(|operand| operand.map_value(|value| self.resolve(value)));
        self.function.ops[at].operands = operands.collect();
        Ok(&self.function.ops[at])
    }

    /// Puts an op somewhere, and gives its results. It takes the values that it names, also where others have replaced them.
    ///
    /// # Errors
    /// Where there is no such place, and where the type rule refuses the op.
    pub fn insert<V: OpView>(&mut self, place: Position, op: V) -> Result<V::Results, RewriteError> {
        let results = self.insert_op(place, V::KIND, op.operands(), op.attrs())?;
        V::Results::try_from(&results)
            .map_err(|_| unreachable!("{:?}: {} results, as its row says", V::KIND, results.len()))
    }

    /// [`Rewriter::insert`] for an op of any kind, such as a copy.
    ///
    /// # Errors
    /// As there.
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
        let types = types.map_err(|error| self.refused(error))?;
        let results: Vec<ValueId> = types.into_iter().map(|ty| self.function.add_value(None, ty)).collect();
        self.replaced.extend(&results);
        let op = Op { kind, operands, attrs, results: results.clone() };
        self.inserted.entry(at).or_default()[usize::from(after)].push(op);
        Ok(results)
    }

    /// Puts an op in place of one, whose results become its own.
    ///
    /// # Errors
    /// [`RewriteError::NoOp`], [`RewriteError::Results`].
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

    /// Lets the op at a position take another value where it takes this one.
    ///
    /// # Errors
    /// [`RewriteError::NoOp`].
    pub fn replace_uses_in(&mut self, at: usize, value: ValueId, by: ValueId) -> Result<(), RewriteError> {
        self.check(at, self.function.ops.len())?;
        let operands = self.function.ops[at].operands.iter_mut();
        operands.filter(|operand| **operand == Operand::Value(value)).for_each(|operand| *operand = Operand::Value(by));
        Ok(())
    }

    /// Lets all ops of the function, and its return, take another value where they take this one. What was inserted takes what it took.
    /// A value without a name takes that of the value which it replaces.
    ///
    /// # Errors
    /// For a value of another type ([`RewriteError::Replaced`]), or one that is not there ([`RewriteError::Undefined`]).
    pub fn replace_uses(&mut self, value: ValueId, by: ValueId) -> Result<(), RewriteError> {
        self.known(value)?;
        self.known(by)?;
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

    /// Takes an op away. Pure ops without use go by themselves.
    ///
    /// # Errors
    /// [`RewriteError::NoOp`]; where something still takes its results, [`Rewriter::finish`] says so.
    pub fn erase(&mut self, at: usize) -> Result<(), RewriteError> {
        self.check(at, self.function.ops.len())?;
        self.erased[at] = true;
        Ok(())
    }

    /// The function with all changes.
    ///
    /// # Errors
    /// [`RewriteError::Undefined`], [`RewriteError::Type`].
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
        Ok(compact(&checked(self.module, function, ops)?))
    }
}

/// A function of these ops, whose values are defined before they are taken and have the types that the rules say.
fn checked(module: &Module, mut function: Function, ops: Vec<Op>) -> Result<Function, RewriteError> {
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

/// Drops pure ops without use, and values without definition; numbers values in the order of their definitions.
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
    let live = DefUse::of(function).live(function);
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
    use crate::graph::random::{Formats, mutated, random_module};
    use crate::graph::verify::verify;
    use crate::graph::view;
    use crate::random::Random;

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

    /// What a change leaves, as text.
    fn changed(change: impl FnOnce(&mut Rewriter<'_>) -> Result<(), RewriteError>) -> Result<String, RewriteError> {
        let module = parse(TEXT).unwrap();
        let mut rewriter = Rewriter::new(&module, &module.functions[0]);
        change(&mut rewriter)?;
        let functions = vec![rewriter.finish()?];
        let changed = Module { functions, ..module.clone() };
        verify(&changed).unwrap();
        Ok(changed.to_string().lines().skip(3).map(|line| line.to_owned() + "\n").collect())
    }

    /// What is wrong with a change.
    fn wrong(change: impl FnOnce(&mut Rewriter<'_>) -> Result<(), RewriteError>) -> String {
        changed(change).unwrap_err().to_string()
    }

    #[test]
    fn ops_are_put_where_they_shall_stand_and_uses_follow() {
        let text = changed(|rewriter| {
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
    fn a_type_that_changes_changes_those_behind_it_and_what_nothing_takes_goes() {
        let text = changed(|rewriter| {
            rewriter.replace(0, view::MergeHeads { x: H })?;
            rewriter.replace(1, view::Softcap { x: H, cap: 2.0 })?;
            rewriter.replace(2, view::Quantise { x: A, format: Format::F32 })
        });
        assert_eq!(
            text.unwrap(),
            "  %a = merge_heads %h : f32[T, 4]\n  %c = quantise %a {format = f32} : f32[T, 4]\n  return %c\n}\n"
        );
        let text = changed(|rewriter| {
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
    fn changes_that_leave_no_function_are_errors() {
        let no_op = "function @f: there is no op 9; expected one below 3";
        assert_eq!(wrong(|rewriter| rewriter.erase(9)), no_op);
        assert_eq!(wrong(|rewriter| rewriter.insert(Position::After(9), view::Silu { x: X }).map(|_| ())), no_op);
        assert_eq!(wrong(|rewriter| rewriter.replace(9, view::Silu { x: X })), no_op);
        let before = wrong(|rewriter| rewriter.insert(Position::Before(9), view::Silu { x: X }).map(|_| ()));
        assert_eq!(before, "function @f: there is no op 9; expected one below 4");
        assert_eq!(wrong(|rewriter| rewriter.erase(1)), "function @f: value 3 is taken before it is defined");
        let late = wrong(|rewriter| rewriter.replace_uses_in(0, X, B));
        assert_eq!(late, "function @f: value 3 is taken before it is defined");
        assert_eq!(
            wrong(|rewriter| rewriter.replace_uses(X, ValueId(99))),
            "function @f: value 99 is taken before it is defined"
        );
        assert_eq!(wrong(|rewriter| rewriter.replace_uses(A, H)), "function @f: f32[T, 2, 2] in place of f32[T, 4]");
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

    #[test]
    fn a_damaged_function_is_an_error_and_a_sound_one_verifies() {
        let (mut refused, mut kept) = (0, 0);
        for seed in 0..200 {
            let module = mutated(&random_module(seed % 20, Formats::All).module, &mut Random::new(seed));
            let functions: Result<Vec<_>, _> =
                module.functions.iter().map(|function| Rewriter::new(&module, function).finish()).collect();
            match functions {
                Err(_) => refused += 1,
                // What else was damaged stays for the verifier to say.
                Ok(functions) => {
                    let (before, after) = (verify(&module), verify(&Module { functions, ..module.clone() }));
                    assert!(before.is_err() || after.is_ok(), "seed {seed}: {after:?}");
                    kept += usize::from(after.is_ok());
                }
            }
        }
        assert!(refused > 0 && kept > 0, "{refused} refused, {kept} kept");
    }
}
