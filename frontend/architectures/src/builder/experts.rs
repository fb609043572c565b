//! Experts: their selection by the router, and products with their matrices.

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RouteAttrs, RouteScore};
use ixc_ir::graph::{Place, ValueId, WeightId};

use super::{Builder, Matrices};
use crate::error::ArchError;
use crate::hyper::Experts;

/// Experts selected for each row, and the weights of their outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Ids of the selected experts.
    pub ids: ValueId,
    /// Weights of the selected experts' outputs.
    pub weights: ValueId,
}

/// Score of a group of experts. It applies if the router has softmax scores and no bias; other
/// routers always sum the two best scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupScore {
    /// The sum of the scores of the group's two best experts.
    TwoBest,
    /// The score of the group's best expert.
    Best,
}

/// Products of experts with their gate and up matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateUp {
    /// Products with the gate matrices, before the activation.
    pub gate: ValueId,
    /// Products with the up matrices, which are multiplied by the activated gates.
    pub up: ValueId,
}

impl Builder<'_> {
    /// Builds ids and weights of experts. The table `name` lists the experts for each token id, and
    /// the logits determine their weights.
    pub fn route_listed(&mut self, logits: ValueId, name: &str, experts: &Experts) -> Result<Route, ArchError> {
        let shape = [self.hyper.vocabulary, experts.used];
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.tensor_type().name != "I32" {
            let (path, found) = (self.path(), tensor.tensor_type());
            return Err(ArchError::TableType { path, tensor: name.into(), found });
        }
        self.check_shape(tensor, &shape)?;
        let numbers = self.gguf.tensor_data(tensor);
        let mut ids = numbers.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
        if let Some(found) = ids.find(|&id| u64::try_from(id).map_or(true, |id| id >= experts.count)) {
            return Err(ArchError::TableId { path: self.path(), tensor: name.into(), found, count: experts.count });
        }
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        // No weight format has integers, so the table of i32 is declared as f32, which has the same
        // size.
        let table = self.graph.weight(name, Format::F32, &shape, place);
        let table = self.op_result(table)?;
        self.used.insert(name.to_owned());
        let Experts { score, normalise, scale, .. } = *experts;
        let route = self.graph.route_listed(logits, self.step.ids, table, score, normalise, scale);
        let (ids, weights) = self.op_result(route)?;
        Ok(Route { ids, weights })
    }

    /// Returns the sizes of a layer's experts, or an error if the file lacks them.
    pub fn experts(&self, layer: usize) -> Result<Experts, ArchError> {
        let key = format!("{}.expert_count", self.architecture);
        self.hyper.layers[layer].experts.clone().ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Splits a selection into experts with matrices and identity experts, whose ids are `experts`
    /// and above. Returns the ids and weights of the former and the sum of the weights of the
    /// latter.
    pub fn identities(&mut self, all: Route, experts: u64) -> Result<(Route, ValueId), ArchError> {
        let parts = self.graph.route_identities(all.ids, all.weights, experts);
        let (ids, weights, identity) = self.op_result(parts)?;
        Ok((Route { ids, weights }, identity))
    }

    /// Builds the ids of the groups of `size` consecutive experts that contain the experts `ids`.
    pub fn expert_groups(&mut self, ids: ValueId, size: u64) -> Result<ValueId, ArchError> {
        let groups = self.graph.expert_groups(ids, size);
        self.op_result(groups)
    }

    /// Builds ids and weights of the experts for each row of router logits.
    ///
    /// If the file has `exp_probs_b.bias`, it is added to scores for the selection only. The
    /// factors `ffn_down_exps.scale` on experts' outputs are multiplied into the weights. This is
    /// impossible if `ffn_down_exps` has a bias.
    pub fn route(&mut self, layer: usize, logits: ValueId, experts: &Experts) -> Result<Route, ArchError> {
        let factors = self.expert_factors(layer, experts)?;
        self.route_of(layer, logits, experts, factors, GroupScore::TwoBest)
    }

    /// Returns the factors on the outputs of a layer's experts, to multiply into the router's
    /// weights. `None` if the file has no factors, or if the outputs have a bias.
    pub fn expert_factors(&mut self, layer: usize, experts: &Experts) -> Result<Option<WeightId>, ArchError> {
        let down = |part: &str| format!("blk.{layer}.ffn_down_exps.{part}");
        let has_bias = self.has(&down("bias"));
        let factors = if has_bias { None } else { self.optional_vector(&down("scale"), experts.count)? };
        self.routed_scales.extend(factors.map(|_| down("scale")));
        Ok(factors)
    }

    /// Does what [`Builder::route`] does, with the given factors of experts and score of groups.
    pub fn route_of(
        &mut self,
        layer: usize,
        logits: ValueId,
        experts: &Experts,
        factors: Option<WeightId>,
        group_score: GroupScore,
    ) -> Result<Route, ArchError> {
        let Experts { count, used: top_k, score, groups, groups_kept, normalise, scale, .. } = *experts;
        let bias = match self.optional_vector(&format!("blk.{layer}.exp_probs_b.bias"), count)? {
            // Hy3's files have the bias under this name, without `.bias`.
            None => self.optional_vector(&format!("blk.{layer}.exp_probs_b"), count)?,
            bias => bias,
        };
        let alone = score == RouteScore::Softmax && bias.is_none();
        let group_best = u64::from(groups > 1 && group_score == GroupScore::Best && alone);
        let attrs = RouteAttrs { top_k, score, groups, groups_kept, group_best, normalise, scale };
        let route = self.graph.route(logits, bias, factors, &attrs);
        let (ids, weights) = self.op_result(route)?;
        Ok(Route { ids, weights })
    }

    /// Builds `x` times the matrices `name` of the experts `ids`: `[T, used, rows]`.
    pub fn expert_linear(&mut self, x: ValueId, ids: ValueId, name: &str, of: Matrices) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &of.shape())?;
        let y = self.expert_matmul(x, ids, weight)?;
        let y = self.scale_expert_products(y, ids, name, of.count)?;
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let bias = self.weight(&bias, &[of.count, of.rows])?;
        let y = self.graph.expert_add_bias(y, ids, bias);
        self.op_result(y)
    }

    /// Multiplies each product with an expert's matrix by that expert's number in `NAME.scale`.
    /// Does nothing if the file lacks it, or if the router's weights include it.
    pub(super) fn scale_expert_products(
        &mut self,
        y: ValueId,
        ids: ValueId,
        name: &str,
        count: u64,
    ) -> Result<ValueId, ArchError> {
        let name = format!("{name}.scale");
        if self.routed_scales.contains(&name) {
            return Ok(y);
        }
        let Some(factors) = self.optional_vector(&name, count)? else { return Ok(y) };
        let y = self.graph.expert_scale(y, ids, factors);
        self.op_result(y)
    }

    pub(super) fn expert_matmul(&mut self, x: ValueId, ids: ValueId, weight: WeightId) -> Result<ValueId, ArchError> {
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.expert_matmul(x, ids, w));
        self.op_result(y)
    }

    /// Builds `x` times the gate and up matrices of the experts `ids`. Files have two tensors for
    /// them, or one with both.
    pub fn expert_gate_up(
        &mut self,
        layer: usize,
        x: ValueId,
        ids: ValueId,
        of: Matrices,
    ) -> Result<GateUp, ArchError> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps");
        let both = format!("{}.weight", name("gate_up"));
        let mut half = |half: &str, first: u64| {
            if !self.has(&both) {
                return self.expert_linear(x, ids, &name(half), of);
            }
            let half = format!("{}.weight", name(half));
            let weight = self.part(&half, &both, of, 2 * of.rows, first)?;
            let y = self.expert_matmul(x, ids, weight)?;
            self.scale_expert_products(y, ids, &name("gate_up"), of.count)
        };
        Ok(GateUp { gate: half("gate", 0)?, up: half("up", of.rows)? })
    }

    /// Sums the outputs of each row's experts, `[T, used, n]`, times their weights.
    pub fn combine(&mut self, y: ValueId, weights: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.expert_combine(y, weights);
        self.op_result(y)
    }
}
