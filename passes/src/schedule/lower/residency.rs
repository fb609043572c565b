//! Experts that are loaded on demand. The expert weights of a layer form a group. The ops of the
//! `residency` pass become steps, in which one thread sends requests to the runtime at a barrier.
//!
//! ```text
//! %1 = expert.prefetch %0, %ids, @gate, @up, @down {layer = 0, when = routed}      bucket, request
//! %2 = expert.prefetch %1, %soon, @gate1, @up1, @down1 {layer = 1, when = predicted}    predict
//! %ready, %3 = expert.wait %2, %ids {layer = 0}                                    nothing: stages that read the group wait
//! %4 = expert.evict %3, %y {layer = 0}                                             release, after the last of those
//! ```
//!
//! Invariant: groups are requested and released one after the other. Each routing requests a group
//! at most once. The work list's order and [`Resource::Group`] enforce this. Tasks that read a
//! group's weights are between request and release, and use the rows of the routing that selects
//! the experts.

use std::collections::HashMap;

use ixc_ir::graph::attrs::Prefetch;
use ixc_ir::graph::{Op, WeightId};
use ixc_ir::plan::{BucketId, ExpertGroup, RowAxis, Source, Step};

use super::{Binding, Lowering, Resource, Rows, ScheduleError, Slots, Work, WorkItem, fit, unsupported_error};

/// Groups of experts that prefetches have named so far.
#[derive(Default)]
pub(in crate::schedule) struct Residency {
    groups: Vec<Group>,
    /// For each layer number of the graph, the position of its group in `groups`.
    layers: HashMap<i64, u32>,
}

struct Group {
    /// Weights in the order of the prefetch's operands.
    weights: Vec<WeightId>,
    plan: ExpertGroup,
    /// Routings that have requested the group so far.
    buckets: Vec<BucketId>,
}

impl Lowering<'_> {
    pub(super) fn expert_prefetch(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let group = self.group(op)?;
        let ids = self.slots(op, "ids")?;
        let experts = u64::from(self.residency.groups[group as usize].plan.experts);
        if self.routes.get(&ids.of.buffer) != Some(&experts) {
            return unsupported_error(name, "ids that do not come from a route to the same number of experts");
        }
        let mut reads = vec![Resource::Slots];
        let mut writes = vec![Resource::Slots];
        let step = match Prefetch::from_word(op.attr("when").word()) {
            Some(Prefetch::Predicted) => {
                if ids.of.rows != Rows::Tokens {
                    return unsupported_error(name, "prediction for rows other than tokens");
                }
                reads.push(Resource::Buffer(ids.of.buffer.0));
                let (first, count) = (fit("slot of a token", ids.first)?, fit("experts of a token", ids.count)?);
                Step::Predict { group, ids: ids.of.buffer, first, count }
            }
            Some(Prefetch::Routed) | None => {
                let bucket = self.bucket(name, ids)?;
                let buckets = &mut self.residency.groups[group as usize].buckets;
                if buckets.contains(&bucket) {
                    return unsupported_error(name, "a layer's experts requested twice by one routing");
                }
                buckets.push(bucket);
                reads.push(Resource::Bucket(bucket.0));
                writes.push(Resource::Group(group));
                Step::Request { group, bucket }
            }
        };
        self.tasks.work.push(Work { what: WorkItem::Residency(step), reads, writes });
        Ok(Binding::Token)
    }

    /// Returns the ids unchanged. Tasks that read the group's weights wait for the request through
    /// [`Resource::Group`].
    pub(super) fn expert_wait(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let ids = self.slots(op, "ids")?;
        let bucket = self.bucket(name, ids)?;
        match self.residency.layers.get(&op.attr("layer").int()) {
            Some(&group) if self.residency.groups[group as usize].buckets.last() == Some(&bucket) => {
                Ok(Binding::Chosen(ids))
            }
            Some(_) | None => unsupported_error(name, "expert ids with which the layer's experts were not requested"),
        }
    }

    pub(super) fn expert_evict(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let Some(&group) = self.residency.layers.get(&op.attr("layer").int()) else {
            return unsupported_error(name, "a layer whose experts were not requested");
        };
        self.tasks.work.push(Work {
            what: WorkItem::Residency(Step::Release { group }),
            reads: vec![Resource::Slots],
            writes: vec![Resource::Slots, Resource::Group(group)],
        });
        Ok(Binding::Token)
    }

    /// Returns the plan's groups, after all ops are lowered.
    ///
    /// # Errors
    /// The graph reads experts that it has not requested or has already evicted, or never evicts
    /// them. The `residency` pass never returns such a graph.
    pub(in crate::schedule) fn expert_groups(&mut self) -> Result<Vec<ExpertGroup>, ScheduleError> {
        let mut open: Option<(u32, BucketId)> = None;
        for work in &self.tasks.work {
            match &work.what {
                WorkItem::Residency(Step::Request { group, bucket }) => {
                    if open.replace((*group, *bucket)).is_some() {
                        return unsupported_error(
                            "expert.prefetch",
                            "experts that are requested before the previously requested experts are evicted",
                        );
                    }
                }
                WorkItem::Residency(Step::Release { group }) => {
                    if open.take().is_none_or(|(requested, _)| requested != *group) {
                        return unsupported_error("expert.evict", "experts of a layer evicted without being requested");
                    }
                }
                WorkItem::Residency(_) | WorkItem::Bucket(_) | WorkItem::Exchange(_) => {}
                WorkItem::Task(task) => {
                    let weights = task.args.iter().filter_map(|arg| match arg.source {
                        Source::Weight(weight) => self.tasks.groups.get(&weight).copied(),
                        _ => None,
                    });
                    for group in weights {
                        let now = open.filter(|(requested, _)| *requested == group);
                        if now.map(|(_, bucket)| RowAxis::Routed(bucket)) != Some(task.rows) {
                            let problem =
                                format!("{}, which reads experts that are not requested at that point", task.label);
                            return unsupported_error("expert.prefetch", problem);
                        }
                    }
                }
            }
        }
        if open.is_some() || self.residency.groups.iter().any(|group| group.buckets.is_empty()) {
            return unsupported_error("expert.prefetch", "experts that are never requested or never evicted");
        }
        Ok(std::mem::take(&mut self.residency.groups).into_iter().map(|group| group.plan).collect())
    }

    fn bucket(&mut self, op: &'static str, ids: Slots) -> Result<BucketId, ScheduleError> {
        match self.routing(op, ids)? {
            Rows::Routed { bucket, .. } => Ok(bucket),
            Rows::Tokens | Rows::Outputs => unsupported_error(op, "expert ids that are not the result of a route"),
        }
    }

    /// Returns the group of a prefetch's weights: one for each layer, in the order of the layers'
    /// first prefetch.
    fn group(&mut self, op: &Op) -> Result<u32, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let layer = op.attr("layer").int();
        let weights: Vec<WeightId> =
            ["gate", "up", "down"].into_iter().filter_map(|operand| self.opt_weight(op, operand)).collect();
        if let Some(&group) = self.residency.layers.get(&layer) {
            if self.residency.groups[group as usize].weights != weights {
                return unsupported_error(
                    name,
                    format!("other expert weights for layer {layer} than in an earlier prefetch"),
                );
            }
            return Ok(group);
        }
        let number = fit("groups of experts", self.residency.groups.len() as u64)?;
        let mut ids = Vec::with_capacity(weights.len());
        for &w in &weights {
            let id = self.weight(w)?;
            // Two weights that are parts of one tensor are not supported.
            if ids.contains(&id) && self.module.weights[w.index()].part.is_some() {
                continue;
            }
            if self.tasks.groups.insert(id, number).is_some() {
                return unsupported_error(name, "a weight in the experts of two layers, or twice in one");
            }
            ids.push(id);
        }
        let experts = self.module.weights[weights[0].index()].shape.first().copied().unwrap_or(0);
        let plan = ExpertGroup { experts: fit("experts", experts)?, weights: ids };
        self.residency.groups.push(Group { weights, plan, buckets: Vec::new() });
        self.residency.layers.insert(layer, number);
        Ok(number)
    }
}
