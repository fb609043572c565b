//! What tasks wait for, as Graphviz draws it: tasks are boxes, what they write and read is between them.
//!
//! ```text
//! embed t -> embed t -> take_rows -> take_rows     // a task, its buffer, the task that reads it, ...
//! ```
//!
//! Whoever reads something waits for all that wrote it. Where something is written that was read before (a state, the memory of experts),
//! it stands there again, and a dashed edge leads there from each that read what was there: the writer waits for these.
//!
//! Cost: nodes and edges in proportion to what tasks read and write.

use std::collections::HashMap;
use std::fmt;

use ixc_ir::plan::Step;
use petgraph::dot::Dot;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::draft::{Draft, Resource, What};

/// A task, or what tasks read and write.
struct Node {
    label: String,
    is_work: bool,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// What an edge means.
#[derive(Clone, Copy, PartialEq)]
enum Edge {
    Data,
    /// What is there is read before it is written again.
    ReadBefore,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Edge::Data { "" } else { "read before" })
    }
}

/// Something from when it is first written until it is written after it was read.
struct Version {
    node: NodeIndex,
    readers: Vec<NodeIndex>,
}

/// Tasks and what they wait for, in the DOT language.
pub(crate) fn dot(draft: &Draft) -> String {
    let mut steps = vec![None; draft.work.len()];
    for (number, step) in draft.steps.iter().flatten().enumerate() {
        step.work.iter().for_each(|&at| steps[at] = Some(number));
    }
    let mut graph: DiGraph<Node, Edge> = DiGraph::new();
    let mut versions: HashMap<Resource, Version> = HashMap::new();
    let version = |graph: &mut DiGraph<Node, Edge>, resource: Resource| Version {
        node: graph.add_node(Node { label: name(draft, resource), is_work: false }),
        readers: Vec::new(),
    };
    for (work, step) in draft.work.iter().zip(steps) {
        let step = step.map_or_else(String::new, |step| format!("step {step}: "));
        let node = graph.add_node(Node { label: step + &label(&work.what), is_work: true });
        for &resource in &work.reads {
            let read = versions.entry(resource).or_insert_with(|| version(&mut graph, resource));
            graph.add_edge(read.node, node, Edge::Data);
            read.readers.push(node);
        }
        for &resource in &work.writes {
            let written = versions.entry(resource).or_insert_with(|| version(&mut graph, resource));
            if !written.readers.is_empty() {
                let before = std::mem::replace(written, version(&mut graph, resource));
                for reader in before.readers.into_iter().filter(|&reader| reader != node) {
                    graph.add_edge(reader, written.node, Edge::ReadBefore);
                }
            }
            graph.add_edge(node, written.node, Edge::Data);
        }
    }
    let shape = |_, (_, node): (_, &Node)| if node.is_work { "shape = box " } else { "" }.to_string();
    let style = |_, edge: petgraph::graph::EdgeReference<'_, Edge>| {
        if *edge.weight() == Edge::ReadBefore { "style = dashed " } else { "" }.to_string()
    };
    Dot::with_attr_getters(&graph, &[], &style, &shape).to_string()
}

fn label(what: &What) -> String {
    match what {
        What::Task(task) => task.label.clone(),
        What::Bucket(step) | What::Residency(step) => match step {
            Step::Run { tasks, .. } => format!("run {}", tasks.len()),
            Step::Bucket { bucket, .. } => format!("bucket {}", bucket.0),
            Step::Request { group, .. } => format!("request experts {group}"),
            Step::Predict { group, .. } => format!("predict experts {group}"),
            Step::Release { group } => format!("release experts {group}"),
        },
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
    }
}
