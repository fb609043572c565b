//! Drawing of task dependencies: tasks are boxes, connected by the resources that they write and
//! read.
//!
//! ```text
//! embed t -> embed t -> take_rows -> take_rows     // a task, its buffer, the task that reads it, ...
//! ```
//!
//! A reader of a resource waits for all its writers. A resource that is written after it was read
//! (a state, the memory of experts) appears as several versions. A dashed edge leads to it from
//! each reader of the old version: the writer waits for these readers.
//!
//! Cost: the number of nodes and edges is proportional to the number of accesses of tasks to
//! resources.

use std::collections::HashMap;

use ixc_ir::drawing::{Graph, NodeId, Shape};
use ixc_ir::plan::{Exchange, Step};

use crate::draft::{Draft, Resource, WorkItem};

/// A version of a resource: from its first write until a write that follows a read.
struct Version {
    node: NodeId,
    readers: Vec<NodeId>,
}

/// Draws tasks and their dependencies.
pub(crate) fn draw(draft: &Draft) -> Graph {
    let mut steps = vec![None; draft.work.len()];
    for (number, step) in draft.steps.iter().flatten().enumerate() {
        step.work.iter().for_each(|&at| steps[at] = Some(number));
    }
    let mut graph = Graph::default();
    let mut versions: HashMap<Resource, Version> = HashMap::new();
    let version = |graph: &mut Graph, resource: Resource| Version {
        node: graph.node(&name(draft, resource), Shape::Round),
        readers: Vec::new(),
    };
    for (work, step) in draft.work.iter().zip(steps) {
        let step = step.map_or_else(String::new, |step| format!("step {step}: "));
        let node = graph.node(&(step + &label(&work.what)), Shape::Box);
        for &resource in &work.reads {
            let read = versions.entry(resource).or_insert_with(|| version(&mut graph, resource));
            graph.edge(read.node, node, "");
            read.readers.push(node);
        }
        for &resource in &work.writes {
            let written = versions.entry(resource).or_insert_with(|| version(&mut graph, resource));
            if !written.readers.is_empty() {
                let before = std::mem::replace(written, version(&mut graph, resource));
                for reader in before.readers.into_iter().filter(|&reader| reader != node) {
                    graph.dashed_edge(reader, written.node, "read before");
                }
            }
            graph.edge(node, written.node, "");
        }
    }
    graph
}

fn label(what: &WorkItem) -> String {
    match what {
        WorkItem::Task(task) => task.label.clone(),
        WorkItem::Bucket(step) | WorkItem::Residency(step) | WorkItem::Exchange(step) => match step {
            Step::Run { tasks, .. } => format!("run {}", tasks.len()),
            Step::Bucket { bucket, .. } => format!("bucket {}", bucket.0),
            Step::Request { group, .. } => format!("request experts {group}"),
            Step::Predict { group, .. } => format!("predict experts {group}"),
            Step::Release { group } => format!("release experts {group}"),
            Step::Exchange(exchange) => exchange_name(*exchange).to_string(),
        },
    }
}

fn exchange_name(exchange: Exchange) -> &'static str {
    match exchange {
        Exchange::Sum { .. } => "add parts of all ranks",
        Exchange::SumHalves { .. } => "add parts of all ranks in halves",
        Exchange::Gather { .. } => "gather parts of all ranks",
        Exchange::Send { .. } => "send to a rank",
        Exchange::Receive { .. } => "receive from a rank",
    }
}

fn name(draft: &Draft, resource: Resource) -> String {
    match resource {
        Resource::Buffer(buffer) => match draft.plan.buffers.get(buffer as usize) {
            Some(buffer) => buffer.name.clone(),
            None => format!("buffer {buffer}"),
        },
        Resource::Bucket(bucket) => format!("rows of bucket {bucket}"),
        Resource::State(state) => match draft.plan.states.get(state as usize) {
            Some(state) => format!("@{}", state.name),
            None => format!("state {state}"),
        },
        Resource::Group(group) => format!("experts {group}"),
        Resource::Slots => "memory of experts".to_string(),
        Resource::Ranks => "other ranks".to_string(),
    }
}
