//! Work of a rank: bytes that its ops read, and operations that they compute.
//!
//! Activations count nothing: they stay in the processor's caches. The graph is not fused yet, so
//! the number of *stages* is estimated. A stage is a step of a plan, which ends at a barrier. A
//! product with a new input is two stages, since the input is quantised first. Rotating and
//! appending keys is two stages, and attention is two. A measured dense model has the same number
//! of stages.

use std::collections::{HashMap, HashSet};

use ixc_ir::graph::{
    DefUse, Dim, Function, Module, Op, OpKind, OpView, Operand, State, TokenOwner, Type, ValueId, Weight, view,
};

use super::routing::DividedExperts;

/// Number of stages of a product whose input is new: quantisation of the input, and the product.
const PRODUCT_STAGES: u32 = 2;
/// Number of stages of attention: one over parts of the positions, and one that combines the parts.
const ATTENTION_STAGES: u32 = 2;
/// Number of stages that store keys and values: rotation, and writing to the cache.
const APPEND_STAGES: u32 = 2;

/// Size of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Number of tokens of the step.
    pub tokens: u64,
    /// Number of tokens before the step.
    pub position: u64,
}

/// Work of an op on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpWork {
    /// Bytes of weights and states that the op reads, without experts.
    pub bytes: f64,
    /// Mean bytes of experts that the op reads.
    pub expert_bytes: f64,
    /// Number of operations; a multiply-add counts as two.
    pub operations: f64,
    /// Whether the operations are products of floats.
    pub floats: bool,
    /// Expected work of the busiest rank, relative to the mean of all ranks.
    pub busiest: f64,
    /// Number of stages that the op adds to a plan.
    pub stages: u32,
}

/// Bytes of a rank's weights, by kind of weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Bytes of all weights that are not experts.
    pub dense: u64,
    /// Bytes of the weights of experts.
    pub experts: u64,
}

impl WeightBytes {
    /// Returns the bytes of a graph's weights.
    pub fn from_module(module: &Module) -> WeightBytes {
        let mut experts = HashSet::new();
        for function in &module.functions {
            let matrices = Matrices::from_function(function);
            for op in &function.ops {
                if is_expert_product(op.kind) {
                    experts.extend(op.operands.iter().filter_map(|&operand| matrices.weight(operand)));
                }
            }
        }
        let mut sum = WeightBytes::default();
        for (index, weight) in module.weights.iter().enumerate() {
            let part = if experts.contains(&index) { &mut sum.experts } else { &mut sum.dense };
            *part = part.saturating_add(bytes(weight));
        }
        sum
    }

    /// Returns the bytes of all weights together.
    pub fn all(self) -> u64 {
        self.dense.saturating_add(self.experts)
    }
}

/// Finds the weight from which a value was dequantised.
struct Matrices<'f> {
    function: &'f Function,
    def_use: DefUse,
}

impl<'f> Matrices<'f> {
    fn from_function(function: &'f Function) -> Matrices<'f> {
        Matrices { function, def_use: DefUse::from_function(function) }
    }

    /// Returns the index of an operand's weight, directly or through a dequantised value.
    fn weight(&self, operand: Operand) -> Option<usize> {
        match operand {
            Operand::Weight(weight) => Some(weight.index()),
            Operand::Value(value) => {
                self.def_use.defining::<view::Dequantise>(self.function, value).map(|op| op.w.index())
            }
            Operand::State(_) | Operand::Absent => None,
        }
    }
}

/// Counter of the work of a function's ops, which must be given in order.
pub struct WorkCounter<'m> {
    module: &'m Module,
    matrices: Matrices<'m>,
    ranks: u32,
    size: StepSize,
    /// Inputs of products that were already quantised.
    rounded: HashSet<(ValueId, bool)>,
    /// Load of the busiest rank, relative to the mean, for each routing.
    busiest: HashMap<DividedExperts, f64>,
}

impl<'m> WorkCounter<'m> {
    /// Creates a counter at the first op of a function. `ranks` is the number of ranks.
    pub fn new(module: &'m Module, function: &'m Function, ranks: u32, size: StepSize) -> WorkCounter<'m> {
        WorkCounter {
            module,
            matrices: Matrices::from_function(function),
            ranks,
            size,
            rounded: HashSet::new(),
            busiest: HashMap::new(),
        }
    }

    /// Returns the work of the next op, which is `op`.
    pub fn count(&mut self, op: &Op) -> OpWork {
        let none = OpWork { busiest: 1.0, ..OpWork::default() };
        match op.kind {
            // A dequantised weight counts at its use. A prefetch does not count, because other ops
            // read the announced bytes.
            OpKind::Dequantise | OpKind::ExpertPrefetch | OpKind::StateBegin => none,
            OpKind::Embed | OpKind::RouteListed => OpWork { bytes: self.row_bytes(op) * self.rows(op), ..none },
            OpKind::ExpertMatmul | OpKind::ExpertSwiglu | OpKind::ExpertDown => self.experts(op),
            OpKind::Matmul | OpKind::HeadsMatmul => {
                let floats = self.weights(op).iter().any(|weight| !weight.format.is_quantised());
                let operations = 2.0 * self.result_elements(op) * self.columns(op);
                OpWork { bytes: self.weight_bytes(op), operations, floats, stages: self.product_stages(op), ..none }
            }
            OpKind::KvAppend => OpWork { stages: APPEND_STAGES, ..none },
            OpKind::Attention | OpKind::AttentionEntries | OpKind::IndexTopK => self.attention(op),
            OpKind::Recurrent(_) => self.recurrent(op),
            _ => OpWork { bytes: self.weight_bytes(op), ..none },
        }
    }

    /// Returns the type of a value of the function.
    fn ty(&self, value: ValueId) -> &'m Type {
        self.matrices.function.ty(value)
    }

    fn dim(&self, dim: &Dim) -> f64 {
        match dim {
            Dim::Fixed(n) => *n as f64,
            // In a step, logits are requested for one row.
            Dim::Symbol(name) if name == "L" => 1.0,
            Dim::Symbol(_) => self.size.tokens as f64,
        }
    }

    fn elements(&self, value: ValueId) -> f64 {
        self.ty(value).dims().iter().map(|dim| self.dim(dim)).product()
    }

    fn result_elements(&self, op: &Op) -> f64 {
        op.results.first().map_or(0.0, |&result| self.elements(result))
    }

    /// Returns the number of rows of an op's result.
    fn rows(&self, op: &Op) -> f64 {
        op.results.first().and_then(|&result| self.ty(result).dims().first()).map_or(0.0, |dim| self.dim(dim))
    }

    /// Returns the number of columns of a product's weight, which is the width of the product's
    /// input.
    fn columns(&self, op: &Op) -> f64 {
        let x = op.operands.first().and_then(|operand| operand.value());
        x.and_then(|x| self.ty(x).dims().last()).map_or(0.0, |dim| self.dim(dim))
    }

    fn weights(&self, op: &Op) -> Vec<&'m Weight> {
        let found = op.operands.iter().filter_map(|&operand| self.matrices.weight(operand));
        found.filter_map(|at| self.module.weights.get(at)).collect()
    }

    fn weight_bytes(&self, op: &Op) -> f64 {
        self.weights(op).into_iter().map(|weight| bytes(weight) as f64).sum()
    }

    /// Returns the bytes of one row of an op's weight.
    fn row_bytes(&self, op: &Op) -> f64 {
        self.weights(op)
            .into_iter()
            .filter_map(|weight| weight.format.row_bytes(*weight.shape.last()?))
            .map(|bytes| bytes as f64)
            .sum()
    }

    /// Returns the number of stages of a product. It is 0 if an earlier product has the same input,
    /// since one stage computes both products.
    fn product_stages(&mut self, op: &Op) -> u32 {
        let Some(x) = op.operands.first().and_then(|operand| operand.value()) else { return PRODUCT_STAGES };
        if self.rounded.insert((x, is_expert_product(op.kind))) { PRODUCT_STAGES } else { 0 }
    }

    /// Returns the work of a product with the experts' matrices.
    fn experts(&mut self, op: &Op) -> OpWork {
        let top_k = op.operand("ids").value().and_then(|ids| self.ty(ids).dims().last()?.fixed()).unwrap_or(1);
        let is_owned = op.operand("ids").value().is_some_and(|ids| {
            self.matrices.def_use.defining::<view::RouteOwned>(self.matrices.function, ids).is_some()
        });
        let tokens = self.size.tokens as f64;
        let mut work = OpWork { busiest: 1.0, stages: self.product_stages(op), ..OpWork::default() };
        for weight in self.weights(op) {
            let [own, rows @ .., columns] = &weight.shape[..] else { continue };
            let own = (*own).max(1);
            let shard = weight.choice.shard.as_ref().filter(|shard| is_owned && shard.dim == 0);
            let all = shard.map_or(own, |shard| shard.of);
            let used = top_k.min(all) as f64 / all as f64;
            // Expected number of this rank's experts that at least one token uses.
            let distinct = own as f64 * (1.0 - (1.0 - used).powf(tokens));
            work.expert_bytes += bytes(weight) as f64 / own as f64 * distinct;
            let slots = tokens * used * own as f64;
            work.operations += 2.0 * slots * rows.iter().map(|&n| n as f64).product::<f64>() * *columns as f64;
            work.floats |= !weight.format.is_quantised();
            // With many tokens, experts are used evenly, so only a single token makes one rank
            // busier.
            if shard.is_some() && self.size.tokens == 1 {
                let divided = DividedExperts { experts: all, top_k, ranks: self.ranks };
                let busiest = *self.busiest.entry(divided).or_insert_with(|| divided.busiest());
                work.busiest = work.busiest.max(busiest / divided.mean().max(f64::MIN_POSITIVE));
            }
        }
        work
    }

    /// Returns the state whose token an op takes.
    fn state(&self, op: &Op) -> Option<&'m State> {
        let token =
            op.operands.iter().filter_map(|operand| operand.value()).find_map(|value| match self.ty(value) {
                Type::Token(TokenOwner::State(state)) => Some(*state),
                Type::Token(_) | Type::Tensor { .. } => None,
            })?;
        self.module.states.get(token.index())
    }

    /// Returns the work of attention over the positions of a state.
    fn attention(&self, op: &Op) -> OpWork {
        let none = OpWork { busiest: 1.0, stages: ATTENTION_STAGES, ..OpWork::default() };
        let (Some(state), Some(q)) = (self.state(op), op.operand("q").value()) else { return none };
        let last = (self.size.position + self.size.tokens) as f64;
        let visible = |positions: f64| {
            let positions = state.window.map_or(positions, |window| positions.min(window as f64));
            positions / state.every.max(1) as f64
        };
        let listed =
            view::Attention::from_op(op).and_then(|attention| self.ty(attention.chosen?).dims().last()?.fixed());
        let of_row = |positions: f64| listed.map_or(visible(positions), |listed| visible(positions).min(listed as f64));
        let bytes: f64 = state
            .fields
            .iter()
            .filter_map(|field| field.format.row_bytes(fixed_elements(&field.dims)))
            .map(|bytes| bytes as f64 * of_row(last))
            .sum();
        // On average, a row sees half of the step's own positions.
        let mean = of_row(self.size.position as f64 + (self.size.tokens as f64 + 1.0) / 2.0);
        let widths = self.elements(q) + if op.kind == OpKind::IndexTopK { 0.0 } else { self.result_elements(op) };
        OpWork { bytes, operations: 2.0 * widths * mean, floats: true, ..none }
    }

    /// Returns the work of an op that changes a state token by token. The op reads and writes the
    /// whole state once in a step. For each token, it multiplies each element of the state at most
    /// twice.
    fn recurrent(&self, op: &Op) -> OpWork {
        let none = OpWork { busiest: 1.0, stages: 1, ..OpWork::default() };
        let Some(state) = self.state(op) else { return none };
        let bytes = state.fields.iter().filter_map(|field| field.format.row_bytes(fixed_elements(&field.dims)));
        let bytes: f64 = bytes.map(|bytes| bytes as f64).sum();
        let count: f64 = state.fields.iter().map(|field| fixed_elements(&field.dims) as f64).sum();
        OpWork {
            bytes: 2.0 * bytes + self.weight_bytes(op),
            operations: 2.0 * MULTIPLICATIONS * count * self.size.tokens as f64,
            floats: true,
            ..none
        }
    }
}

/// Max number of multiplications of a recurrent state's element for a token: one for the decay, and
/// one with the token's values.
const MULTIPLICATIONS: f64 = 2.0;

fn is_expert_product(kind: OpKind) -> bool {
    matches!(kind, OpKind::ExpertMatmul | OpKind::ExpertSwiglu | OpKind::ExpertDown)
}

/// Returns the product of those dimensions that are numbers, not symbols.
fn fixed_elements(dims: &[Dim]) -> u64 {
    dims.iter().filter_map(Dim::fixed).fold(1, u64::saturating_mul)
}

/// Returns the bytes of a weight.
fn bytes(weight: &Weight) -> u64 {
    let (last, lead) = weight.shape.split_last().unwrap_or((&0, &[]));
    let row = weight.format.row_bytes(*last).unwrap_or(0);
    lead.iter().fold(row, |product, &dim| product.saturating_mul(dim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::graph::parse::parse;

    const GRAPH: &str = "
weight @router : f32[4, 256]
weight @down : q8_0[4, 256, 256]
weight @out : f32[512, 256]

func @step(%x: f32[T, 256], %rows: i32[L]) -> (f32[L, 512]) {
  %r = dequantise @router
  %s = matmul %x, %r
  %e, %p = route %s, _, _ {top_k = 2, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0}
  %d = dequantise @down
  %y = expert.matmul %x, %e, %d
  %z = expert.combine %y, %p
  %l = take_rows %z, %rows
  %w = dequantise @out
  %o = matmul %l, %w
  return %o
}
";

    fn works(tokens: u64) -> Vec<OpWork> {
        let module = parse(GRAPH).unwrap();
        let function = &module.functions[0];
        let mut counter = WorkCounter::new(&module, function, 1, StepSize { tokens, position: 0 });
        function.ops.iter().map(|op| counter.count(op)).collect()
    }

    #[test]
    fn work_of_products_is_derived_by_hand() {
        let expert = 256.0 * 256.0 / 32.0 * 34.0;
        let one = works(1);
        let [router, experts, output] = [one[1], one[4], one[8]];
        assert_eq!((router.bytes, router.operations, router.floats), (4.0 * 256.0 * 4.0, 2.0 * 4.0 * 256.0, true));
        assert_eq!((experts.expert_bytes, experts.operations), (2.0 * expert, 2.0 * 2.0 * 256.0 * 256.0));
        assert_eq!((experts.bytes, experts.floats, experts.busiest), (0.0, false, 1.0));
        assert_eq!(output.operations, 2.0 * 512.0 * 256.0);
        // Two tokens use 4 (1 - 1/4) experts on average, and four expert slots. Logits are computed
        // for one row.
        let two = works(2);
        assert_eq!((two[4].expert_bytes, two[4].operations), (3.0 * expert, 4.0 * 2.0 * 256.0 * 256.0));
        assert_eq!((two[1].operations, two[8].operations), (2.0 * router.operations, output.operations));
        let module = parse(GRAPH).unwrap();
        let dense = 4 * 256 * 4 + 512 * 256 * 4;
        assert_eq!(WeightBytes::from_module(&module), WeightBytes { dense, experts: 4 * expert as u64 });
    }
}
