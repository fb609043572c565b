//! NUMA nodes in reports: those of a machine, and the memory of ranks on them.

use std::io::{self, Write};
use std::path::Path;

use ixc_compile::machine::system::{cgroup_left, memory};
use ixc_runtime::engine::Engine;
use ixc_runtime::homes::NodeUse;
use ixc_runtime::load::LoadError;
use ixc_runtime::numa::bandwidth::{self, NodeRate};
use ixc_runtime::numa::error::NumaError;
use ixc_runtime::numa::placement::{RankPlace, place_ranks};
use ixc_runtime::numa::topology::{Node, Topology};
use serde_json::{Value as Json, json};

use super::output::{Bytes, count_text};
use super::ranges::Ranges;
use super::stats_line::stat;

/// Nodes of a machine, the places of ranks, and measured speeds.
pub struct NodesReport {
    nodes: Vec<Node>,
    /// A rank on each node, as `--numa cut` places them.
    places: Vec<RankPlace>,
    /// Measured rates of the nodes. Empty if they were not requested; an error if they cannot be
    /// measured.
    rates: Result<Vec<NodeRate>, NumaError>,
}

impl NodesReport {
    /// Reads the nodes of this machine, or of a description. The speeds of this machine are
    /// measured on request, within the available memory. Returns `None` if the system does not list
    /// its processors.
    pub fn new(description: Option<&Path>, measures: bool) -> anyhow::Result<Option<NodesReport>> {
        let topology = match description {
            Some(path) => Some(Topology::from_file(path).map_err(not_placed)?),
            None => Topology::detect(),
        };
        let Some(topology) = topology else { return Ok(None) };
        let usable = topology.usable_nodes().count();
        let places = place_ranks(&topology, usable.max(1), None);
        let places = match description {
            Some(_) => places.map_err(not_placed)?,
            None => places.unwrap_or_default(),
        };
        // With one node, the speed is that of all memory, which is measured elsewhere.
        let measures = measures && description.is_none() && usable > 1;
        let available = || memory().available.into_iter().chain(cgroup_left()).min();
        let rates = if measures { bandwidth::measure(&topology, available()) } else { Ok(Vec::new()) };
        Ok(Some(NodesReport { nodes: topology.nodes, places, rates }))
    }

    /// Returns the report as JSON.
    pub fn facts(&self) -> Json {
        let place = |(rank, place): (usize, &RankPlace)| json!({"rank": rank, "nodes": place.nodes, "cpus": place.processors, "threads": place.threads});
        let rate = |rate: &NodeRate| json!({"cpus_of_node": rate.from, "memory_of_node": rate.to, "bytes_per_second": rate.bytes_per_second});
        json!({
            "nodes": self.nodes,
            "places": self.places.iter().enumerate().map(place).collect::<Vec<_>>(),
            "bandwidth": self.rates.iter().flatten().map(rate).collect::<Vec<_>>(),
            "bandwidth_refusal": self.rates.as_ref().err().map(NumaError::to_string),
        })
    }

    /// Writes the report as lines with labels.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            let label = if number == 0 { "NUMA" } else { "" };
            let cpus = match &node.processors[..] {
                [] => "no CPUs".to_owned(),
                cpus => format!("CPUs {}", Ranges(cpus)),
            };
            let l3 = node.l3_bytes.map_or(String::new(), |bytes| format!(", L3 {}", Bytes(bytes)));
            let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
            let distances = match self.nodes.len() {
                1 => String::new(),
                _ => format!(", distances {}", distances.join(" ")),
            };
            let limit = if node.is_allowed { "" } else { ", memory not allowed by the control group" };
            let memory = Bytes(node.memory_bytes);
            writeln!(out, "{label:<10} node {}: {memory}, {cpus}{l3}{distances}{limit}", node.number)?;
        }
        let rates = match &self.rates {
            Ok(rates) => &rates[..],
            Err(error) => {
                writeln!(out, "{:<10} speed of nodes not measured: {error}", "")?;
                &[]
            }
        };
        for rates in rates.chunk_by(|a, b| a.to == b.to) {
            let each = rates.iter().map(|rate| format!("node {} {:.1}", rate.from, rate.bytes_per_second / 1e9));
            let memory = rates.first().map_or(0, |rate| rate.to);
            let each: Vec<String> = each.collect();
            writeln!(out, "{:<10} memory of node {memory}, GB/s read by CPUs of {}", "", each.join(", "))?;
        }
        if self.places.len() > 1 {
            for (rank, RankPlace { nodes, processors, threads }) in self.places.iter().enumerate() {
                let threads = count_text(*threads as u64, "thread");
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                let (nodes, cpus) = (nodes.join(", "), Ranges(processors));
                writeln!(out, "{:<10} --numa cut: rank {rank} on node {nodes}, {threads} on CPUs {cpus}", "")?;
            }
        }
        Ok(())
    }
}

fn not_placed(error: NumaError) -> ixc_error::Error {
    ixc_generate::Error::from(LoadError::from(error)).into()
}

/// Prints the memory of ranks on their own nodes and on other nodes, as lines of `--stats`.
pub fn note(engine: &Engine) {
    for NodeUse { rank, home, what, bytes, refusal } in engine.node_use() {
        let on: Vec<String> = home.iter().map(u32::to_string).collect();
        let on = on.join(", ");
        let of = if engine.is_divided() { "rank" } else { "copy" };
        match (&bytes, refusal) {
            (Ok(bytes), None) if bytes.all() == 0 => {}
            (Ok(bytes), refusal) => {
                let (local, all) = (bytes.on(&home), bytes.all());
                let refusal = refusal.map_or(String::new(), |why| format!("; {why}"));
                let (local, remote) = (Bytes(local), Bytes(all - local));
                stat!(Nodes, "{of} {rank} on node {on}: {what} {local} local, {remote} remote{refusal}");
            }
            (Err(why), _) => {
                stat!(Nodes, "{of} {rank} on node {on}: {what}, nodes of its pages unknown: {why}");
            }
        }
    }
}
