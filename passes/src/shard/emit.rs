//! Construction of the function of one rank from the function of the whole model. Weights and
//! states enter the rank's module when an op uses them.

use std::collections::HashMap;
use std::ops::Range;

use ixc_ir::graph::number::canonical_function;
use ixc_ir::graph::types::{CacheShape, result_types};
use ixc_ir::graph::{
    Attr, DefUse, Dim, Function, Group, Module, Op, OpKind, OpView, Operand, Shard, StateId, TokenOwner, Type, ValueId,
    WeightId, view,
};

use super::Division;
use crate::error::ShardError;

/// A cut of one dimension of a weight or a value: the ranges that a rank has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DimCut {
    /// Number of the dimension that is cut.
    pub(super) dim: usize,
    /// Ranges in rising order. Adjacent ranges are merged.
    pub(super) ranges: Vec<Range<u64>>,
}

impl DimCut {
    /// Returns a cut with one range.
    pub(super) fn from_range(dim: usize, range: Range<u64>) -> DimCut {
        DimCut { dim, ranges: vec![range] }
    }

    /// Returns the size of the dimension in the cut.
    pub(super) fn size(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// Returns the part of `0..total` that a rank has. The sizes of the parts differ by at most one.
pub(super) fn part(total: u64, group: Group) -> Range<u64> {
    // A rank's end is at most `total`, so the quotient fits 64 bits.
    let end = |rank: u32| (u128::from(total) * u128::from(rank) / u128::from(group.ranks)) as u64;
    end(group.rank)..end(group.rank + 1)
}

/// Builder of one rank's function.
pub(super) struct Emitter<'m> {
    /// Module of the whole model.
    pub(super) source: &'m Module,
    /// Function of the whole model.
    pub(super) old: &'m Function,
    pub(super) def_use: DefUse,
    pub(super) by: Division,
    pub(super) group: Group,
    module: Module,
    function: Function,
    /// Value of the rank's function for each value of the whole model's function.
    values: Vec<Option<ValueId>>,
    token: ValueId,
    weights: HashMap<(WeightId, Option<DimCut>), WeightId>,
    /// Weights of the rank's module by name.
    names: HashMap<String, WeightId>,
    states: HashMap<StateId, StateId>,
}

impl<'m> Emitter<'m> {
    /// Starts a function in the module of the rank.
    pub(super) fn new(
        source: &'m Module,
        old: &'m Function,
        by: Division,
        group: Group,
        module: Module,
    ) -> Result<Emitter<'m>, ShardError> {
        let names = module.weights.iter().map(|weight| weight.name.clone()).zip((0..).map(WeightId)).collect();
        let mut emitter = Emitter {
            source,
            old,
            def_use: DefUse::from_function(old),
            by,
            group,
            module,
            function: Function { name: old.name.clone(), ..Function::default() },
            values: vec![None; old.values.len()],
            token: ValueId(0),
            weights: HashMap::new(),
            names,
            states: HashMap::new(),
        };
        for &param in &old.params {
            let ty = match old.ty(param) {
                Type::Token(TokenOwner::State(_) | TokenOwner::Ranks(_)) => {
                    return Err(emitter.refuse("a parameter is a token; expected tensors only"));
                }
                ty @ (Type::Token(TokenOwner::Experts) | Type::Tensor { .. }) => ty.clone(),
            };
            let name = old.values[param.index()].name.as_deref();
            let value = emitter.function.add_value(name, ty);
            emitter.function.params.push(value);
            emitter.values[param.index()] = Some(value);
        }
        let is_slice = |weight: WeightId| source.weights[weight.index()].choice.shard.is_some();
        if old.ops.iter().any(|op| op.kind == OpKind::RanksBegin || op.weights().any(is_slice)) {
            return Err(emitter.refuse("it is already the part of one rank"));
        }
        let begin = view::RanksBegin { rank: group.rank.into(), ranks: group.ranks.into() };
        emitter.token = emitter.insert(&begin)?[0];
        Ok(emitter)
    }

    /// Ends the function and returns the module of the rank.
    pub(super) fn finish(mut self) -> Module {
        self.module.functions.push(canonical_function(&self.function));
        self.module
    }

    /// Returns the error that the function cannot be divided.
    pub(super) fn refuse(&self, problem: impl Into<String>) -> ShardError {
        ShardError::Function { function: self.old.name.clone(), by: self.by.word(), problem: problem.into() }
    }

    /// Returns the error that an op cannot be cut. `operand` is the name of its weight or value.
    pub(super) fn refuse_op(&self, op: &Op, operand: String, problem: impl Into<String>) -> ShardError {
        let (function, op) = (self.old.name.clone(), op.kind.row().mnemonic);
        ShardError::Op { function, by: self.by.word(), op, operand, problem: problem.into() }
    }

    /// Appends an op.
    pub(super) fn push(
        &mut self,
        kind: OpKind,
        operands: Vec<Operand>,
        attrs: Vec<Attr>,
    ) -> Result<Vec<ValueId>, ShardError> {
        let types = result_types(&self.module, &self.function, kind, &operands, &attrs);
        let types = types.map_err(|error| ShardError::Type { function: self.old.name.clone(), error })?;
        Ok(self.function.push(kind, operands, attrs, types))
    }

    /// Appends an op given by its view.
    pub(super) fn insert<V: OpView>(&mut self, op: &V) -> Result<Vec<ValueId>, ShardError> {
        self.push(V::KIND, op.operands(), op.attrs())
    }

    /// Appends a collective of all ranks, and returns its first result.
    pub(super) fn exchange(&mut self, kind: OpKind, x: ValueId) -> Result<ValueId, ShardError> {
        let results = self.push(kind, vec![Operand::Value(self.token), Operand::Value(x)], Vec::new())?;
        self.token = results[1];
        Ok(results[0])
    }

    /// Appends a message to a rank.
    pub(super) fn send(&mut self, x: ValueId, to: u32) -> Result<(), ShardError> {
        self.token = self.insert(&view::Send { group: self.token, x, to: to.into() })?[0];
        Ok(())
    }

    /// Appends a message of rows of this width from a rank.
    pub(super) fn recv(&mut self, rows: ValueId, from: u32, width: u64) -> Result<ValueId, ShardError> {
        let Ok(width) = i64::try_from(width) else {
            return Err(self.refuse(format!("a row of {width} floats is too wide to be received")));
        };
        let results = self.insert(&view::Recv { group: self.token, rows, from: from.into(), width })?;
        self.token = results[1];
        Ok(results[0])
    }

    /// Returns the rank's value for a value of the whole model's function, if the rank has it.
    pub(super) fn value(&self, old: ValueId) -> Option<ValueId> {
        self.values[old.index()]
    }

    /// Sets the rank's value for a value of the whole model's function, whose name it takes.
    pub(super) fn set(&mut self, old: ValueId, new: ValueId) {
        let name = &self.old.values[old.index()].name;
        let slot = &mut self.function.values[new.index()].name;
        if slot.is_none() {
            slot.clone_from(name);
        }
        self.values[old.index()] = Some(new);
    }

    /// Returns the type of a value of the rank's function.
    pub(super) fn ty(&self, value: ValueId) -> &Type {
        self.function.ty(value)
    }

    /// Sets the results of the rank's function.
    pub(super) fn set_results(&mut self, results: Vec<ValueId>) {
        self.function.results = results;
    }

    /// Returns the whole weight in the rank's module.
    pub(super) fn weight(&mut self, old: WeightId) -> WeightId {
        self.weight_of(old, None)
    }

    /// Returns a slice of a weight in the rank's module.
    pub(super) fn slice(&mut self, old: WeightId, cut: &DimCut) -> WeightId {
        self.weight_of(old, Some(cut))
    }

    fn weight_of(&mut self, old: WeightId, cut: Option<&DimCut>) -> WeightId {
        let key = (old, cut.cloned());
        if let Some(&known) = self.weights.get(&key) {
            return known;
        }
        let mut weight = self.source.weights[old.index()].clone();
        if let Some(cut) = cut {
            let of = weight.shape[cut.dim];
            weight.shape[cut.dim] = cut.size();
            let name = weight.name.clone();
            weight.choice.shard = Some(Shard { weight: name, dim: cut.dim as u32, of, ranges: cut.ranges.clone() });
        }
        // Another function may have declared the same weight, which is then shared. Two different
        // slices of a weight need two names.
        let plain = weight.name.clone();
        let mut count = 1;
        let id = loop {
            match self.names.get(&weight.name) {
                Some(&known) if self.module.weights[known.index()] == weight => break known,
                Some(_) => {
                    count += 1;
                    weight.name = format!("{plain}.{count}");
                    // The new name is not the name of the tensor, so the shard records the tensor's
                    // name.
                    let of = weight.shape[0];
                    let whole =
                        || Shard { weight: plain.clone(), dim: 0, of, ranges: vec![Range { start: 0, end: of }] };
                    weight.choice.shard.get_or_insert_with(whole);
                }
                None => {
                    let id = WeightId(self.module.weights.len() as u32);
                    self.names.insert(weight.name.clone(), id);
                    self.module.weights.push(weight);
                    break id;
                }
            }
        };
        self.weights.insert(key, id);
        id
    }

    /// Returns a state in the rank's module. Its first use decides on a cut of its fields.
    ///
    /// # Errors
    /// Fails if another function cuts the state differently.
    pub(super) fn state(&mut self, old: StateId, cut: Option<&DimCut>) -> Result<StateId, ShardError> {
        if let Some(&known) = self.states.get(&old) {
            return Ok(known);
        }
        let mut state = self.source.states[old.index()].clone();
        if let Some(cut) = cut {
            state.fields.iter_mut().for_each(|field| field.dims[cut.dim] = cut.size().into());
        }
        let known = self.module.states.iter().position(|known| known.name == state.name);
        if known.is_some_and(|known| self.module.states[known] != state) {
            return Err(self.refuse(format!("another function divides the state @{} differently", state.name)));
        }
        let id = StateId(known.unwrap_or(self.module.states.len()) as u32);
        if known.is_none() {
            self.module.states.push(state);
        }
        self.states.insert(old, id);
        Ok(id)
    }

    /// Returns an operand for the rank's function. Dequantises a matrix on its first use, so that a
    /// rank has no unused matrix.
    pub(super) fn operand(&mut self, operand: Operand) -> Result<Operand, ShardError> {
        Ok(match operand {
            Operand::Weight(weight) => Operand::Weight(self.weight(weight)),
            Operand::State(state) => Operand::State(self.state(state, None)?),
            Operand::Absent => Operand::Absent,
            Operand::Value(value) => Operand::Value(self.whole(value)?),
        })
    }

    /// Returns the rank's value for a value of the whole model that is not cut.
    pub(super) fn whole(&mut self, old: ValueId) -> Result<ValueId, ShardError> {
        if let Some(value) = self.value(old) {
            return Ok(value);
        }
        let matrix = self.def_use.defining::<view::Dequantise>(self.old, old);
        let Some(view::Dequantise { w }) = matrix else {
            return Err(self.refuse(format!("{} is not whole on every rank", self.old.label(old))));
        };
        let w = self.weight(w);
        let value = self.insert(&view::Dequantise { w })?[0];
        self.set(old, value);
        Ok(value)
    }

    /// Appends a copy of an op. A `dequantise` is skipped, because it is appended at its first use.
    pub(super) fn copy(&mut self, op: &Op) -> Result<(), ShardError> {
        if op.kind == OpKind::Dequantise {
            return Ok(());
        }
        let operands = op.operands.iter().map(|&operand| self.operand(operand)).collect::<Result<_, _>>()?;
        let results = self.push(op.kind, operands, op.attrs.clone())?;
        op.results.iter().zip(results).for_each(|(&old, new)| self.set(old, new));
        Ok(())
    }

    /// Returns the same results as the whole model's function.
    pub(super) fn return_all(&mut self) -> Result<(), ShardError> {
        let results = self.old.results.iter().map(|&result| self.whole(result)).collect::<Result<_, _>>()?;
        self.set_results(results);
        Ok(())
    }

    /// Returns the size of a dimension of a value of the whole model, if it is a number.
    pub(super) fn size(&self, value: ValueId, dim: usize) -> Option<u64> {
        self.old.ty(value).dims().get(dim).and_then(Dim::fixed)
    }

    /// Returns the key heads of the `paged` state of a token.
    pub(super) fn key_heads(&self, token: ValueId) -> Option<u64> {
        match self.old.ty(token) {
            Type::Token(TokenOwner::State(state)) => {
                Some(CacheShape::from_state(&self.source.states[state.index()])?.heads)
            }
            Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) | Type::Tensor { .. } => None,
        }
    }

    /// Returns the weight of a dequantised matrix; `None` for any other value.
    pub(super) fn matrix(&self, value: ValueId) -> Option<WeightId> {
        self.def_use.defining::<view::Dequantise>(self.old, value).map(|matrix| matrix.w)
    }
}
