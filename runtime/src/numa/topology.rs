//! The NUMA nodes of a machine: their processors, memory, caches and distances. They come from
//! `/sys`, or from a description of another machine, so that its placement can be computed on this
//! machine.
//!
//! ```
//! use ixc_runtime::numa::topology::Topology;
//!
//! let text = r#"
//! threads_per_core = 2
//! [[nodes]]
//! number = 0
//! processors = "0-1,4-5"
//! memory_bytes = 68719476736
//! distances = [10, 21]
//! [[nodes]]
//! number = 1
//! processors = "2-3,6-7"
//! memory_bytes = 68719476736
//! distances = [21, 10]
//! "#;
//! let topology = Topology::parse("two sockets", text)?;
//! assert_eq!((topology.nodes.len(), topology.machine.cores()), (2, 4));
//! # Ok::<(), ixc_runtime::numa::error::NumaError>(())
//! ```
//!
//! Invariant: descriptions are untrusted. In every topology that this module returns, all numbers
//! are in their valid ranges.

use std::path::Path;

use ixc_files::{read_system, read_text};
use serde::{Deserialize, Serialize};

use super::error::NumaError;
use crate::processors::{Machine, Processor, allowed_cpus, parse_list};

/// Maximum number of nodes, as in the Linux kernel.
pub const MAX_NODES: usize = 1024;
/// Distance of a node to itself. All other distances are relative to this value.
pub const OWN_DISTANCE: u32 = 10;
/// Largest distance: the Linux kernel stores distances as bytes.
const MAX_DISTANCE: u32 = 255;
/// Maximum bytes of a description.
const MAX_BYTES: u64 = 64 << 10;
/// Maximum number of processors of a core.
const MAX_THREADS_PER_CORE: usize = 8;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Number of the node in the system.
    pub number: u32,
    /// Numbers of the node's processors.
    pub processors: Vec<usize>,
    /// Bytes of the node's memory.
    pub memory_bytes: u64,
    /// Whether this process may use the node's memory: control groups can limit the nodes
    /// (`cpuset.mems`).
    pub is_allowed: bool,
    /// Bytes of the node's last-level caches, if known.
    pub l3_bytes: Option<u64>,
    /// Distances to all nodes, in the order of the nodes. [`OWN_DISTANCE`] is the distance to this
    /// node itself.
    pub distances: Vec<u32>,
}

impl Node {
    /// Returns whether the node has memory for this process.
    pub(crate) fn has_memory(&self) -> bool {
        self.is_allowed && self.memory_bytes > 0
    }
}

/// The nodes of a machine, in the order of their numbers, and its processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<Node>,
    /// Online processors, and the processors that this process may use.
    pub machine: Machine,
}

impl Topology {
    /// Reads the topology of this machine; `None` if the system does not list its processors.
    pub fn detect() -> Option<Topology> {
        let quota = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        Topology::read(Path::new("/sys/devices"), Path::new("/proc"), allowed_cpus()?, quota)
    }

    /// Reads the topology from the folders `/sys/devices` and `/proc`, which tests replace.
    /// `allowed` and `quota` are the processors that this process may use, and their maximum
    /// number.
    pub(crate) fn read(devices: &Path, proc: &Path, allowed: Vec<usize>, quota: usize) -> Option<Topology> {
        let machine = Machine::read(devices, &proc.join("loadavg"), allowed, quota)?;
        let folder = devices.join("system/node");
        let numbers = read_system(&folder.join("online")).and_then(|list| parse_list(list.trim()));
        let mut numbers = numbers.filter(|numbers| !numbers.is_empty()).unwrap_or_default();
        numbers.truncate(MAX_NODES);
        let mut nodes: Vec<Node> =
            numbers.iter().filter_map(|number| read_node(devices, *number, numbers.len())).collect();
        if let Some(allowed) = read_system(&proc.join("self/status")).and_then(|status| allowed_nodes(&status)) {
            nodes.iter_mut().for_each(|node| node.is_allowed = allowed.contains(&(node.number as usize)));
        }
        if nodes.is_empty() {
            // A Linux kernel without NUMA support lists no nodes, so the machine has one node.
            nodes.push(Node {
                number: 0,
                processors: machine.online.iter().map(|processor| processor.number).collect(),
                memory_bytes: bytes_of(&read_system(&proc.join("meminfo"))?, "MemTotal:")?,
                is_allowed: true,
                l3_bytes: None,
                distances: vec![OWN_DISTANCE],
            });
        }
        Some(Topology { nodes, machine })
    }

    /// Reads a description from a file.
    ///
    /// # Errors
    /// See [`Topology::parse`]. Also fails if the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Topology, NumaError> {
        Topology::parse(&path.display().to_string(), &read_text(path, MAX_BYTES)?)
    }

    /// Parses a description. `name` identifies the description in error messages.
    ///
    /// # Errors
    /// Fails if the text is not TOML, has unknown fields, or has values outside their ranges.
    pub fn parse(name: &str, text: &str) -> Result<Topology, NumaError> {
        let description: Description = toml::from_str(text)
            .map_err(|error| NumaError::Toml { name: name.to_owned(), message: error.to_string() })?;
        description.check(name)
    }

    /// Returns the nodes with memory and processors that this process may use.
    pub fn usable_nodes(&self) -> impl Iterator<Item = &Node> {
        let order = self.machine.order();
        self.nodes
            .iter()
            .filter(move |node| node.has_memory() && node.processors.iter().any(|processor| order.contains(processor)))
    }

    /// Returns the distance between two nodes, given by their indices in `nodes`.
    pub(crate) fn distance(&self, from: usize, to: usize) -> u32 {
        let known = self.nodes.get(from).and_then(|node| node.distances.get(to)).copied();
        known.unwrap_or(if from == to { OWN_DISTANCE } else { MAX_DISTANCE })
    }
}

/// Reads one node from the system. `nodes` is the number of all nodes.
fn read_node(devices: &Path, number: usize, nodes: usize) -> Option<Node> {
    let folder = devices.join(format!("system/node/node{number}"));
    let processors = parse_list(read_system(&folder.join("cpulist"))?.trim())?;
    let memory_bytes = bytes_of(&read_system(&folder.join("meminfo"))?, "MemTotal:").unwrap_or(0);
    let distances = read_system(&folder.join("distance")).unwrap_or_default();
    let distances: Option<Vec<u32>> = distances.split_whitespace().map(|word| word.parse().ok()).collect();
    Some(Node {
        number: u32::try_from(number).ok()?,
        l3_bytes: l3_bytes(devices, &processors),
        processors,
        memory_bytes,
        is_allowed: true,
        distances: distances.filter(|distances| distances.len() == nodes).unwrap_or_default(),
    })
}

/// Returns the nodes whose memory a process may use, from the text of its `/proc/PID/status`. This
/// list respects the limits of all control groups around the process.
fn allowed_nodes(status: &str) -> Option<Vec<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
    parse_list(list.trim()).filter(|allowed| !allowed.is_empty())
}

/// Returns the number of bytes in the line with a label, such as `Node 0 MemTotal: 32768 kB`.
fn bytes_of(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.split_once(label))?.1;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the bytes of the last-level caches of some processors. A cache that several of them
/// share is counted once.
fn l3_bytes(devices: &Path, processors: &[usize]) -> Option<u64> {
    let mut sum: Option<u64> = None;
    for processor in processors {
        let cache = devices.join(format!("system/cpu/cpu{processor}/cache/index3"));
        let Some(shared) = read_system(&cache.join("shared_cpu_list")).and_then(|list| parse_list(list.trim())) else {
            continue;
        };
        if shared.iter().find(|other| processors.contains(other)) == Some(processor) {
            let size = read_system(&cache.join("size"))?;
            let bytes = size.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)?;
            sum = Some(sum.unwrap_or(0).saturating_add(bytes));
        }
    }
    sum
}

/// The TOML format of a machine description.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// Number of processors of each core. The first processors of a node are the first threads of
    /// its cores, and the second threads of all cores follow.
    threads_per_core: Option<usize>,
    /// List of processors that are offline.
    offline: Option<String>,
    /// List of processors that the process may use; by default, all that are online.
    allowed: Option<String>,
    /// List of nodes whose memory the process may use; by default, all nodes.
    allowed_nodes: Option<String>,
    nodes: Vec<DescribedNode>,
}

/// A node in the TOML format of a machine description.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedNode {
    number: u32,
    /// List of processors such as `0-3,8`; empty for a node without processors.
    processors: String,
    memory_bytes: u64,
    l3_bytes: Option<u64>,
    distances: Vec<u32>,
}

/// Expected form of a list of processors, for error messages.
const LIST: &str = "a list of processors such as 0-3,8, all below 65536";
/// Expected form of a list of nodes, for error messages.
const NODE_LIST: &str = "a list of nodes such as 0-1";

impl Description {
    fn check(self, name: &str) -> Result<Topology, NumaError> {
        let value =
            |field: String, found: String, expected| NumaError::Value { name: name.to_owned(), field, found, expected };
        let list = |field: &str, text: &str| {
            parse_list(text).ok_or_else(|| value(field.to_owned(), format!("{text:?}"), LIST))
        };
        let per_core = self.threads_per_core.unwrap_or(1);
        if !(1..=MAX_THREADS_PER_CORE).contains(&per_core) {
            return Err(value("threads_per_core".into(), per_core.to_string(), "1 to 8"));
        }
        let count = self.nodes.len();
        if !(1..=MAX_NODES).contains(&count) {
            return Err(value("the number of nodes".into(), count.to_string(), "1 to 1024"));
        }
        let allowed_nodes = |text: String| {
            parse_list(&text).ok_or_else(|| value("allowed_nodes".into(), format!("{text:?}"), NODE_LIST))
        };
        let allowed_nodes = self.allowed_nodes.map(allowed_nodes).transpose()?;
        let offline = list("offline", self.offline.as_deref().unwrap_or_default())?;
        let mut topology = Topology::default();
        let mut known = std::collections::BTreeSet::new();
        for node in self.nodes {
            let DescribedNode { number, processors, memory_bytes, l3_bytes, distances } = node;
            let field = |field: &str| format!("{field} of node {number}");
            let position = topology.nodes.len();
            if number as usize >= MAX_NODES || topology.nodes.last().is_some_and(|last| last.number >= number) {
                return Err(value("the number of a node".into(), number.to_string(), "above the last one, below 1024"));
            }
            let processors = list(&field("processors"), &processors)?;
            if let Some(twice) = processors.iter().find(|processor| !known.insert(**processor)) {
                return Err(value(field("a processor"), twice.to_string(), "on one node, once"));
            }
            if !processors.len().is_multiple_of(per_core) {
                let found = processors.len().to_string();
                return Err(value(field("the number of processors"), found, "a multiple of threads_per_core"));
            }
            let valid = OWN_DISTANCE..=MAX_DISTANCE;
            if distances.len() != count || distances.iter().any(|distance| !valid.contains(distance)) {
                return Err(value(field("distances"), format!("{distances:?}"), "one for each node, 10 to 255"));
            }
            if distances.iter().enumerate().any(|(to, distance)| (to == position) != (*distance == OWN_DISTANCE)) {
                return Err(value(
                    field("distances"),
                    format!("{distances:?}"),
                    "10 for the node itself, and only there",
                ));
            }
            let cores = processors.len() / per_core;
            topology.machine.online.extend(processors.iter().enumerate().filter_map(|(at, &processor)| {
                let core = (u64::from(number), (at % cores.max(1)) as u64);
                (!offline.contains(&processor)).then_some(Processor { number: processor, core, is_small: false })
            }));
            let is_allowed = allowed_nodes.as_ref().is_none_or(|allowed| allowed.contains(&(number as usize)));
            topology.nodes.push(Node { number, processors, memory_bytes, is_allowed, l3_bytes, distances });
        }
        topology.machine.online.sort_unstable_by_key(|processor| processor.number);
        let online = topology.machine.online.iter().map(|processor| processor.number);
        topology.machine.allowed = match self.allowed {
            Some(allowed) => list("allowed", &allowed)?,
            None => online.collect(),
        };
        topology.machine.quota = topology.machine.allowed.len();
        Ok(topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
[[nodes]]
number = 0
processors = \"0-3\"
memory_bytes = 1024
distances = [10, 21]
[[nodes]]
number = 3
processors = \"4-7\"
memory_bytes = 1024
distances = [21, 10]
";

    #[test]
    fn nodes_of_a_system_folder_are_read() {
        let root = std::env::temp_dir().join(format!("ixc-nodes-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/loadavg", "0.20 0.18 0.12 1/80 11206\n");
        write("proc/meminfo", "MemTotal:   4096 kB\n");
        write("sys/system/cpu/online", "0-3\n");
        for cpu in 0..4 {
            write(&format!("sys/system/cpu/cpu{cpu}/topology/physical_package_id"), &format!("{}\n", cpu / 2));
            write(&format!("sys/system/cpu/cpu{cpu}/topology/core_id"), "0\n");
            write(&format!("sys/system/cpu/cpu{cpu}/cache/index3/size"), "32768K\n");
            let shared = if cpu < 2 { "0-1\n" } else { "2-3\n" };
            write(&format!("sys/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"), shared);
        }
        let read = || Topology::read(&root.join("sys"), &root.join("proc"), vec![0, 1, 3], 3).unwrap();
        let flat = read();
        assert_eq!(
            (flat.nodes.len(), flat.nodes[0].memory_bytes, &flat.nodes[0].processors[..]),
            (1, 4 << 20, &[0, 1, 2, 3][..])
        );
        write("sys/system/node/online", "0,2\n");
        for (node, cpus, distance) in [(0, "0-1\n", "10 21\n"), (2, "2-3\n", "21 10\n")] {
            write(&format!("sys/system/node/node{node}/cpulist"), cpus);
            write(&format!("sys/system/node/node{node}/distance"), distance);
            write(&format!("sys/system/node/node{node}/meminfo"), &format!("\nNode {node} MemTotal:       2048 kB\n"));
        }
        let topology = read();
        let node = |number, processors: [usize; 2], distances: [u32; 2]| Node {
            number,
            processors: processors.into(),
            memory_bytes: 2 << 20,
            is_allowed: true,
            l3_bytes: Some(32 << 20),
            distances: distances.into(),
        };
        assert_eq!(topology.nodes, [node(0, [0, 1], [10, 21]), node(2, [2, 3], [21, 10])]);
        assert_eq!((topology.machine.cores(), topology.machine.quota), (2, 3));
        // A control group can limit memory to one node, although all processors are allowed.
        write("proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed:\t4\nMems_allowed_list:\t2\n");
        let limited = read();
        let allowed: Vec<bool> = limited.nodes.iter().map(|node| node.is_allowed).collect();
        let usable: Vec<u32> = limited.usable_nodes().map(|node| node.number).collect();
        assert_eq!((allowed, usable), (vec![false, true], vec![2]));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn this_machine_has_a_node_with_its_processors() {
        let topology = Topology::detect().unwrap();
        let order = topology.machine.order();
        let all: Vec<usize> = topology.nodes.iter().flat_map(|node| node.processors.clone()).collect();
        assert!(!order.is_empty() && order.iter().all(|processor| all.contains(processor)), "{topology:?}");
        assert!(topology.usable_nodes().next().is_some());
    }

    #[test]
    fn invalid_descriptions_are_refused_with_valid_values() {
        let valid = Topology::parse("m", TWO).unwrap();
        assert_eq!((valid.nodes[1].number, valid.distance(0, 1), valid.machine.quota), (3, 21, 8));
        for (from, to, says) in [
            ("number = 3", "number = 0", "m: the number of a node is 0; it must be above the last one"),
            ("number = 3", "number = 1024", "below 1024"),
            ("number = 3", "number = -1", "invalid value"),
            ("4-7", "3-7", "a processor of node 3 is 3; it must be on one node, once"),
            ("4-7", "4-99999999", "must be a list of processors"),
            ("4-7", "4-x", "processors of node 3 is \"4-x\""),
            ("[21, 10]", "[21]", "distances of node 3 is [21]; it must be one for each node, 10 to 255"),
            ("[21, 10]", "[21, 256]", "10 to 255"),
            ("[21, 10]", "[10, 21]", "10 for the node itself"),
            ("number = 3", "number = 3\nhue = 1", "unknown field `hue`"),
            (
                "[[nodes]]\nnumber = 0",
                "allowed_nodes = \"x\"\n[[nodes]]\nnumber = 0",
                "allowed_nodes is \"x\"; it must be",
            ),
            ("[[nodes]]\nnumber = 0", "threads_per_core = 3\n[[nodes]]\nnumber = 0", "multiple of threads_per_core"),
            ("[[nodes]]\nnumber = 0", "threads_per_core = 9\n[[nodes]]\nnumber = 0", "threads_per_core is 9"),
            ("[[nodes]]\nnumber = 0", "nodes = []\n[[nodes]]\nnumber = 0", "m: "),
        ] {
            let error = Topology::parse("m", &TWO.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
        let error = Topology::parse("m", "nodes = []").unwrap_err().to_string();
        assert_eq!(error, "m: the number of nodes is 0; it must be 1 to 1024");
        let many = format!("offline = \"{}\"\n{TWO}", vec!["0-65535"; 99].join(","));
        assert!(Topology::parse("m", &many).unwrap_err().to_string().contains("must be a list of processors"));
    }
}
