//! Interpretation of all ranks of a group in one process. Each rank's interpreter stops at a
//! collective until the other ranks have reached it.
//!
//! ```
//! use ixc_ir::graph::interpret::{Value, ranks::RankInterpreter};
//! use ixc_ir::graph::parse::parse;
//!
//! let graph = |rank: u32| parse(&format!("func @f(%x: f32[T, 1]) -> (f32[T, 2]) {{
//!   %g = ranks.begin {{rank = {rank}, ranks = 2}}
//!   %y, %g1 = all_gather %g, %x
//!   return %y
//! }}"));
//! let (modules, weights) = ([graph(0)?, graph(1)?], vec![]);
//! let mut group = RankInterpreter::new(modules.iter().map(|module| (module, &weights as _)))?;
//! let x = Value::F32 { dims: vec![1, 1], data: vec![3.0] };
//! let y = Value::F32 { dims: vec![1, 2], data: vec![3.0, 3.0] };
//! assert_eq!(group.run("f", &[x])?, [[y.clone()], [y]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::call::{Call, Env};
use super::{InterpretError, Interpreter, Value, WeightSource, step_arguments};
use crate::graph::op::OpKind;
use crate::graph::ranks::{Collective, CollectiveKind, Exchange, Schedule, verify_ranks};
use crate::graph::{Function, Module, TokenOwner, Type};

/// Interpreters of all ranks. Each has its own states.
pub struct RankInterpreter<'a> {
    ranks: Vec<Interpreter<'a>>,
}

/// State of one rank's evaluation: the values so far and the next op.
struct Position<'m> {
    env: Env<'m>,
    /// Index of the next op in the function.
    next: usize,
}

impl<'a> RankInterpreter<'a> {
    /// Returns interpreters at the start of a sequence, from the graph and the weights of each
    /// rank.
    ///
    /// # Errors
    /// Fails if the verifier rejects a graph, or if the graphs of the ranks do not match.
    pub fn new(
        ranks: impl IntoIterator<Item = (&'a Module, &'a dyn WeightSource)>,
    ) -> Result<RankInterpreter<'a>, InterpretError> {
        let ranks = ranks.into_iter().map(|(module, weights)| Interpreter::new(module, weights));
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        verify_ranks(&ranks.iter().map(|rank| rank.module).collect::<Vec<_>>())?;
        Ok(RankInterpreter { ranks })
    }

    /// Sets the maximum number of positions of a sequence, as [`Interpreter::with_context`] does.
    #[must_use]
    pub fn with_context(self, context: u64) -> RankInterpreter<'a> {
        RankInterpreter { ranks: self.ranks.into_iter().map(|rank| rank.with_context(context)).collect() }
    }

    /// Runs one step of a model on all ranks, and returns each rank's results of `@step`.
    ///
    /// # Errors
    /// See [`RankInterpreter::run`].
    pub fn step(&mut self, tokens: &[u32], positions: &[u32], rows: &[u32]) -> Result<Vec<Vec<Value>>, InterpretError> {
        self.run("step", &step_arguments(tokens, positions, rows)?)
    }

    /// Evaluates a function on all ranks with the same arguments, and returns each rank's results.
    ///
    /// # Errors
    /// See [`Interpreter::run`].
    pub fn run(&mut self, function: &str, args: &[Value]) -> Result<Vec<Vec<Value>>, InterpretError> {
        let modules: Vec<&'a Module> = self.ranks.iter().map(|rank| rank.module).collect();
        let mut positions = Vec::with_capacity(modules.len());
        for (rank, module) in self.ranks.iter().zip(&modules) {
            let found = module.functions.iter().find(|own| own.name == function);
            let found: &Function = found.ok_or_else(|| InterpretError::NoFunction { name: function.to_string() })?;
            let mut env = Env { function: found, values: vec![None; found.values.len()] };
            rank.bind(&mut env, args.to_vec())?;
            positions.push(Position { env, next: 0 });
        }
        let mut schedule = Schedule::new(&modules, function);
        loop {
            for (rank, position) in self.ranks.iter_mut().zip(&mut positions) {
                rank.run_to_collective(position)?;
            }
            match schedule.advance()? {
                Exchange::All(kind) => self.exchange(kind, &mut positions)?,
                Exchange::Message { from, to } => {
                    let sent = self.ranks[from].operand(&positions[from])?;
                    positions[from].give(vec![Value::Token]);
                    positions[to].give(vec![sent, Value::Token]);
                }
                Exchange::End => break,
            }
        }
        self.ranks.iter().zip(&positions).map(|(rank, position)| rank.results(&position.env)).collect()
    }

    /// Computes a collective of all ranks and sets its results on each rank.
    fn exchange(&self, kind: CollectiveKind, positions: &mut [Position<'_>]) -> Result<(), InterpretError> {
        let given = self.ranks.iter().zip(&*positions).map(|(rank, position)| rank.operand(position));
        let parts = given.collect::<Result<Vec<Value>, _>>()?;
        let result = match kind {
            CollectiveKind::AllGather => gather(&parts),
            CollectiveKind::AllReduce | CollectiveKind::Send(_) | CollectiveKind::Recv(_) => reduce(&parts),
        };
        positions.iter_mut().for_each(|position| position.give(vec![result.clone(), Value::Token]));
        Ok(())
    }
}

impl Position<'_> {
    /// Sets the results of the collective at this position, and moves to the next op.
    fn give(&mut self, results: Vec<Value>) {
        let function = self.env.function;
        self.env.set(&function.ops[self.next], results);
        self.next += 1;
    }
}

impl Interpreter<'_> {
    /// Evaluates ops up to the next collective, or to the end of the function.
    fn run_to_collective(&mut self, position: &mut Position<'_>) -> Result<(), InterpretError> {
        let function = position.env.function;
        while let Some(op) = function.ops.get(position.next)
            && Collective::from_op(function, op).is_none()
        {
            let results = self.eval(op, &position.env)?;
            position.env.set(op, results);
            position.next += 1;
        }
        Ok(())
    }

    /// Returns the operand `x` of the collective at this position, as f32.
    fn operand(&self, Position { env, next }: &Position<'_>) -> Result<Value, InterpretError> {
        let value = match env.function.ops[*next].operand("x").value() {
            Some(value) => env.get(value),
            None => unreachable!("verified: x is a value"),
        };
        Ok(Value::F32 { dims: self.dims(value), data: self.floats(value)?.into_owned() })
    }
}

/// Evaluates a collective of a group that has only one rank.
pub(super) fn single_rank(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let group = call.op.operand("group").value().map(|group| call.env.function.ty(group));
    let Some(Type::Token(TokenOwner::Ranks(group))) = group else { unreachable!("verified: {group:?} is a group") };
    if group.ranks > 1 || !matches!(call.op.kind, OpKind::AllReduce | OpKind::AllGather) {
        let op = call.mnemonic();
        return Err(InterpretError::OtherRanks { op, rank: group.rank, ranks: group.ranks });
    }
    let x = Value::F32 { dims: call.dims("x"), data: call.f32s("x")?.into_owned() };
    Ok(vec![x, Value::Token])
}

/// Returns the dimensions and the elements of a rank's operand.
fn elements(part: &Value) -> (&[usize], &[f32]) {
    match part {
        Value::F32 { dims, data } => (dims, data),
        other => unreachable!("given as f32: {other:?}"),
    }
}

/// Sums the operands of all ranks, in the order of the ranks.
fn reduce(parts: &[Value]) -> Value {
    let (dims, first) = elements(&parts[0]);
    let mut sum = first.to_vec();
    for part in &parts[1..] {
        sum.iter_mut().zip(elements(part).1).for_each(|(sum, x)| *sum += x);
    }
    Value::F32 { dims: dims.to_vec(), data: sum }
}

/// Concatenates the rows of the operands of all ranks, in the order of the ranks.
fn gather(parts: &[Value]) -> Value {
    let (dims, first) = elements(&parts[0]);
    let width = dims.last().copied().unwrap_or(1).max(1);
    let mut data = Vec::with_capacity(first.len() * parts.len());
    for row in 0..first.len() / width {
        parts.iter().for_each(|part| data.extend_from_slice(&elements(part).1[row * width..][..width]));
    }
    let dims = [&dims[..dims.len().saturating_sub(1)], &[width * parts.len()]].concat();
    Value::F32 { dims, data }
}
