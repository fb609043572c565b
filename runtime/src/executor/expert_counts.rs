//! Counts of chosen experts, by layer.
//!
//! The thread that runs steps updates the counts after each successful step. It takes them from the
//! sorted routings: one addition for each expert with rows. Only layers with experts are counted,
//! in the order of a step. If some of a token's experts are deferred to the next layer, one layer
//! has several routings.
//!
//! Invariant: a failed step changes no count. Counts depend neither on the number of threads nor on
//! where experts are stored.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use ixc_ir::plan::{PlanWeight, RowAxis, Source};

use crate::error::load::OtherExperts;
use crate::expert_sort::Bucket;
use crate::program::Program;
use crate::streaming::BlockId;

/// The counts of one layer's experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerCounts {
    /// Name of the first expert weight that a step reads in this layer.
    pub weight: String,
    /// For each expert, the number of rows for which a router chose it.
    pub chosen: Vec<u64>,
    /// Expert group of this layer, if its experts can be streamed.
    pub group: Option<u32>,
}

/// The counts of all layers with experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertCounts {
    tokens: u64,
    layers: Vec<LayerCounts>,
    /// The layer of each routing; `None` if no expert weight is read with its rows.
    of_routing: Vec<Option<usize>>,
}

impl ExpertCounts {
    /// Creates counts that are all 0, for a plan that is already checked.
    pub(crate) fn new(program: &Program, weights: &[PlanWeight]) -> ExpertCounts {
        let groups = (0u32..).zip(&program.groups).flat_map(|(i, group)| group.weights.iter().map(move |&w| (w, i)));
        let group_of: HashMap<u32, u32> = groups.collect();
        let (mut layers, mut of_routing) = (Vec::new(), vec![None; program.routings.len()]);
        let mut of_weight: HashMap<u32, usize> = HashMap::new();
        for task in program.stages.iter().flat_map(|stage| &stage.tasks) {
            let RowAxis::Routed(bucket) = task.rows else { continue };
            let number = bucket.0 as usize;
            for arg in task.args.iter().filter(|arg| arg.expert_stride > 0) {
                let Source::Weight(weight) = arg.source else { continue };
                // `Program::new` checked that the weight and the routing exist.
                let (facts, routing) = (&weights[weight as usize], &program.routings[number]);
                // The number of experts is at most the number of matrices, so the counts take less
                // memory than the matrices.
                let experts = facts.shape.first().copied().unwrap_or(0).min(routing.experts.into());
                let layer = of_weight.get(&weight).copied().or(of_routing[number]).unwrap_or_else(|| {
                    let chosen = vec![0; experts as usize];
                    let group = group_of.get(&weight).copied();
                    layers.push(LayerCounts { weight: facts.name.clone(), chosen, group });
                    layers.len() - 1
                });
                of_weight.insert(weight, layer);
                of_routing[number] = Some(layer);
            }
        }
        ExpertCounts { tokens: 0, layers, of_routing }
    }

    /// Adds the counts of a successful step of `tokens` tokens, whose rows are sorted in `buckets`.
    pub(crate) fn add(&mut self, tokens: u32, buckets: &mut [RwLock<Bucket>]) {
        self.tokens += u64::from(tokens);
        for (bucket, layer) in buckets.iter_mut().zip(&self.of_routing) {
            let Some(layer) = layer.and_then(|layer| self.layers.get_mut(layer)) else { continue };
            for rows in bucket.get_mut().unwrap_or_else(PoisonError::into_inner).active() {
                if let Some(chosen) = layer.chosen.get_mut(rows.expert as usize) {
                    *chosen += u64::from(rows.rows);
                }
            }
        }
    }

    /// Checks that `chosen` has the same layers and experts as these counts.
    ///
    /// # Errors
    /// Returns the first difference as an error.
    pub fn check(&self, chosen: &[Vec<u64>]) -> Result<(), OtherExperts> {
        if chosen.len() != self.layers.len() {
            return Err(OtherExperts::Layers { found: chosen.len(), expected: self.layers.len() });
        }
        let mut layers = chosen.iter().zip(&self.layers).map(|(chosen, layer)| (chosen.len(), layer.chosen.len()));
        match layers.position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(layer) => {
                let (found, expected) = (chosen[layer].len(), self.layers[layer].chosen.len());
                Err(OtherExperts::Experts { layer, found, expected })
            }
        }
    }

    /// Returns the experts with counts above 0 in `chosen`, most used first. Experts with equal
    /// counts are in the order of layers. Only experts that can be streamed are included.
    pub(crate) fn choose_most_used(&self, chosen: &[Vec<u64>]) -> Vec<BlockId> {
        let layers = chosen.iter().zip(&self.layers).filter_map(|(chosen, layer)| Some((chosen, layer.group?)));
        let experts = layers.flat_map(|(chosen, group)| {
            (0u32..).zip(chosen).map(move |(expert, &count)| (count, BlockId { group, expert }))
        });
        let mut used: Vec<(u64, BlockId)> = experts.filter(|(count, _)| *count > 0).collect();
        used.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        used.into_iter().map(|(_, block)| block).collect()
    }

    /// Returns the number of tokens of all steps since the plan was loaded.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the counts of all layers with experts, in the order of a step.
    pub fn layers(&self) -> &[LayerCounts] {
        &self.layers
    }
}
