//! Placement of ranks: nodes for the memory of each rank, and processors for its threads. It
//! depends only on the machine's topology, the number of ranks and the number of threads.
//!
//! ```text
//! 2 nodes, 4 ranks     node 0 [ rank 0 | rank 1 ]   node 1 [ rank 2 | rank 3 ]
//! 4 nodes, 2 ranks     rank 0 [ node 0, node 1 ]    rank 1 [ node 2, node 3 ]
//! 1 node, 2 ranks      node 0 [ rank 0 | rank 1 ]
//! ```
//!
//! - Processors of a node without usable memory belong to the nearest node with memory. A node
//!   without usable processors gets no rank.
//! - With fewer ranks than nodes, adjacent nodes together get one rank. Its memory is then
//!   interleaved over these nodes.
//! - With more ranks than nodes, each further rank gets the node that has the most cores per rank.
//!   The cores of a node are divided evenly among its ranks, and the processors of one core stay
//!   together.

use std::collections::{HashMap, HashSet};

use super::error::NumaError;
use super::topology::{Node, Topology};

/// The nodes, processors and number of threads of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlace {
    /// Numbers of the nodes with the rank's memory; there is at least one. Memory on several nodes
    /// is interleaved.
    pub nodes: Vec<u32>,
    /// Processors for the rank's threads, in the order in which threads get them.
    pub processors: Vec<usize>,
    /// Number of the rank's threads.
    pub threads: usize,
}

/// Nodes that are placed as one: their memory, and the cores that are nearest to it.
#[derive(Debug)]
struct Domain {
    nodes: Vec<u32>,
    /// For each core, the numbers of its processors.
    cores: Vec<Vec<usize>>,
    /// Number of ranks that share these cores.
    sharers: usize,
}

impl Domain {
    /// Returns the first processor of each core, then the second processor of each core, and so on.
    fn processors(&self) -> Vec<usize> {
        let most = self.cores.iter().map(Vec::len).max().unwrap_or(0);
        (0..most).flat_map(|sibling| self.cores.iter().filter_map(move |core| core.get(sibling)).copied()).collect()
    }
}

/// Returns the place of each rank. `threads` is the number of threads of each rank; by default, it
/// is the number of the rank's processors.
///
/// # Errors
/// [`NumaError::NoRanks`] for 0 ranks, and [`NumaError::NoProcessors`] if no node has both memory
/// and processors that this process may use.
pub fn place_ranks(topology: &Topology, ranks: usize, threads: Option<usize>) -> Result<Vec<RankPlace>, NumaError> {
    if ranks == 0 {
        return Err(NumaError::NoRanks);
    }
    let mut domains = domains(topology);
    if domains.is_empty() {
        return Err(NumaError::NoProcessors);
    }
    if ranks < domains.len() {
        domains = joined(domains, ranks);
    }
    let usable: usize = domains.iter().map(|domain| domain.processors().len()).sum();
    let quota = match topology.machine.quota {
        quota if quota < usable => (quota / ranks).max(1),
        _ => usize::MAX,
    };
    let parts = domains.iter().zip(ranks_of(&domains, ranks)).flat_map(|(domain, ranks)| divided(domain, ranks));
    let places = parts.map(|domain| {
        let processors = domain.processors();
        let own = (processors.len() / domain.sharers).clamp(1, quota);
        RankPlace { threads: threads.unwrap_or(own), nodes: domain.nodes, processors }
    });
    Ok(places.collect())
}

/// Returns the place of a rank that is the only one in this process. It has all processors of the
/// process, and memory on their nodes.
///
/// # Errors
/// See [`place_ranks`].
pub fn place_process(topology: &Topology, threads: Option<usize>) -> Result<RankPlace, NumaError> {
    place_ranks(topology, 1, threads)?.pop().ok_or(NumaError::NoProcessors)
}

/// Divides the threads of one rank among all nodes, and returns a place for each node. With fewer
/// threads than nodes, each thread gets a node, and the other nodes get no place.
///
/// # Errors
/// See [`place_ranks`].
pub fn place_threads(topology: &Topology, threads: Option<usize>) -> Result<Vec<RankPlace>, NumaError> {
    let mut places = place_ranks(topology, domains(topology).len().max(1), None)?;
    let own: usize = places.iter().map(|place| place.threads).sum();
    let processors: usize = places.iter().map(|place| place.processors.len()).sum();
    let threads = threads.unwrap_or(processors.min(topology.machine.quota).max(1));
    if threads != own {
        places.truncate(threads.max(1));
        let count = places.len();
        for (number, place) in places.iter_mut().enumerate() {
            // If the threads cannot be divided evenly, the first places get one more thread.
            place.threads = threads / count + usize::from(number < threads % count);
        }
    }
    Ok(places)
}

/// Returns the processors nearest to a node, for threads that read from a drive there. Returns
/// `None` on a machine with one node, or for an unknown node.
pub fn processors_near(topology: &Topology, node: u32) -> Option<Vec<usize>> {
    let order = topology.machine.order();
    let from = topology.nodes.iter().position(|known| known.number == node)?;
    let usable = |node: &Node| -> Vec<usize> {
        order.iter().copied().filter(|processor| node.processors.contains(processor)).collect()
    };
    let all = topology.nodes.iter().enumerate().map(|(to, node)| (topology.distance(from, to), usable(node)));
    let nearest = all.filter(|(_, processors)| !processors.is_empty()).min_by_key(|(distance, _)| *distance);
    nearest.filter(|_| topology.nodes.len() > 1).map(|(_, processors)| processors)
}

/// Returns the nodes with memory, each with the usable cores that are nearest to it. Nodes without
/// such cores are left out.
fn domains(topology: &Topology) -> Vec<Domain> {
    let order = topology.machine.order();
    let has_memory = |node: usize| topology.nodes.get(node).is_some_and(Node::has_memory);
    let mut domains: Vec<Domain> =
        topology.nodes.iter().map(|node| Domain { nodes: vec![node.number], cores: Vec::new(), sharers: 1 }).collect();
    let core_of: HashMap<usize, (u64, u64)> =
        topology.machine.online.iter().map(|online| (online.number, online.core)).collect();
    for (from, node) in topology.nodes.iter().enumerate() {
        // Of several nodes at the same distance, the first one is taken. The distance of a node to
        // itself is the smallest.
        let nearest = (0..topology.nodes.len()).filter(|to| has_memory(*to));
        let Some(home) = nearest.min_by_key(|to| topology.distance(from, *to)).and_then(|to| domains.get_mut(to))
        else {
            continue;
        };
        let own: HashSet<usize> = node.processors.iter().copied().collect();
        // For each core of this node, its index in `home.cores`.
        let mut positions: HashMap<(u64, u64), usize> = HashMap::new();
        for processor in order.iter().copied().filter(|processor| own.contains(processor)) {
            let Some(core) = core_of.get(&processor) else { continue };
            let position = *positions.entry(*core).or_insert(home.cores.len());
            match home.cores.get_mut(position) {
                Some(core) => core.push(processor),
                None => home.cores.push(vec![processor]),
            }
        }
    }
    domains.retain(|domain| !domain.cores.is_empty());
    domains
}

/// Joins adjacent domains until `count` domains are left.
fn joined(domains: Vec<Domain>, count: usize) -> Vec<Domain> {
    let all = domains.len();
    let mut groups: Vec<Domain> =
        (0..count).map(|_| Domain { nodes: Vec::new(), cores: Vec::new(), sharers: 1 }).collect();
    for (number, mut domain) in domains.into_iter().enumerate() {
        if let Some(group) = groups.get_mut(number * count / all) {
            group.nodes.append(&mut domain.nodes);
            group.cores.append(&mut domain.cores);
        }
    }
    groups
}

/// Returns the number of ranks of each domain, at least one. There must be at least as many ranks
/// as domains.
fn ranks_of(domains: &[Domain], ranks: usize) -> Vec<usize> {
    let mut counts = vec![1; domains.len()];
    for _ in domains.len()..ranks {
        // The comparison of cores / (ranks + 1) needs no division. Of equal domains, the first one
        // is chosen.
        let better = |(a, ranks_a): (usize, usize), (b, ranks_b): (usize, usize)| a * (ranks_b + 1) > b * (ranks_a + 1);
        let load = |number: usize| (domains[number].cores.len(), counts[number]);
        let best = (1..domains.len()).fold(0, |best, next| if better(load(next), load(best)) { next } else { best });
        counts[best] += 1;
    }
    counts
}

/// Divides the cores of a domain among ranks. If there are fewer cores than ranks, all ranks share
/// all cores.
fn divided(domain: &Domain, ranks: usize) -> Vec<Domain> {
    let count = domain.cores.len();
    let part = |rank: usize| {
        let (range, sharers) = match count < ranks {
            true => (0..count, ranks),
            false => (rank * count / ranks..(rank + 1) * count / ranks, 1),
        };
        Domain { nodes: domain.nodes.clone(), cores: domain.cores.get(range).unwrap_or_default().to_vec(), sharers }
    };
    (0..ranks).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a topology from each node's processors and bytes of memory. The distance between
    /// nodes is 20, or 12 for the nodes 0 and 1, 2 and 3, and so on.
    fn machine(nodes: &[(&str, u64)], more: &str) -> Topology {
        let count = nodes.len();
        let distance = |a: usize, b: usize| {
            if a == b {
                10
            } else if a / 2 == b / 2 {
                12
            } else {
                20
            }
        };
        let node = |(number, (processors, memory)): (usize, &(&str, u64))| {
            let distances: Vec<u32> = (0..count).map(|to| distance(number, to)).collect();
            format!(
                "[[nodes]]\nnumber = {number}\nprocessors = \"{processors}\"\nmemory_bytes = {memory}\ndistances = {distances:?}\n"
            )
        };
        let text: String = nodes.iter().enumerate().map(node).collect();
        Topology::parse("a test", &format!("{more}\n{text}")).unwrap()
    }

    fn place(nodes: &[u32], processors: &[usize], threads: usize) -> RankPlace {
        RankPlace { nodes: nodes.into(), processors: processors.into(), threads }
    }

    #[test]
    fn ranks_get_nodes_and_divide_their_cores() {
        let two = machine(&[("0-3", 1), ("4-7", 1)], "");
        let whole = [place(&[0], &[0, 1, 2, 3], 4), place(&[1], &[4, 5, 6, 7], 4)];
        assert_eq!(place_ranks(&two, 2, None).unwrap(), whole);
        let halves = [&[0, 1], &[2, 3], &[4, 5], &[6, 7]].map(|two: &[usize; 2]| place(&[two[0] as u32 / 4], two, 2));
        assert_eq!(place_ranks(&two, 4, None).unwrap(), halves);
        assert_eq!(place_ranks(&two, 1, Some(3)).unwrap(), [place(&[0, 1], &[0, 1, 2, 3, 4, 5, 6, 7], 3)]);
        let one = machine(&[("0-3", 1)], "");
        assert_eq!(place_ranks(&one, 2, None).unwrap(), [place(&[0], &[0, 1], 2), place(&[0], &[2, 3], 2)]);
        // With more ranks than cores, all ranks share all cores. Their number of threads is limited
        // by the quota.
        assert_eq!(place_ranks(&one, 5, None).unwrap(), vec![place(&[0], &[0, 1, 2, 3], 1); 5]);
        let four = machine(&[("0-1", 1), ("2-3", 1), ("4-5", 1), ("6-7", 1)], "");
        let pairs = [place(&[0, 1], &[0, 1, 2, 3], 4), place(&[2, 3], &[4, 5, 6, 7], 4)];
        assert_eq!(place_ranks(&four, 2, None).unwrap(), pairs);
        let places = place_ranks(&four, 3, None).unwrap();
        assert_eq!(places.iter().map(|place| &place.nodes[..]).collect::<Vec<_>>(), [&[0, 1][..], &[2], &[3]]);
        assert!(matches!(place_ranks(&four, 0, None), Err(NumaError::NoRanks)));
    }

    #[test]
    fn uneven_nodes_get_ranks_by_their_cores() {
        let uneven = machine(&[("0-1", 1), ("2-7", 1)], "");
        let places = place_ranks(&uneven, 4, None).unwrap();
        let expected =
            [place(&[0], &[0, 1], 2), place(&[1], &[2, 3], 2), place(&[1], &[4, 5], 2), place(&[1], &[6, 7], 2)];
        assert_eq!(places, expected);
    }

    #[test]
    fn nodes_without_memory_or_processors_are_not_places_of_memory() {
        // Node 1 has no memory, and its nearest node is node 0. Node 3 has only memory (CXL).
        let odd = machine(&[("0-1", 1), ("2-3", 0), ("4-5", 1), ("", 1)], "");
        let expected = [place(&[0], &[0, 1, 2, 3], 4), place(&[2], &[4, 5], 2)];
        assert_eq!(place_ranks(&odd, 2, None).unwrap(), expected);
        assert_eq!(odd.usable_nodes().map(|node| node.number).collect::<Vec<_>>(), [0, 2]);
        let none = machine(&[("0-1", 0), ("2-3", 0)], "");
        assert!(matches!(place_ranks(&none, 2, None), Err(NumaError::NoProcessors)));
    }

    #[test]
    fn only_online_and_allowed_processors_are_used() {
        let nodes = [("0-3", 1), ("4-7", 1)];
        let offline = machine(&nodes, "offline = \"1,4\"");
        assert_eq!(place_ranks(&offline, 2, None).unwrap(), [place(&[0], &[0, 2, 3], 3), place(&[1], &[5, 6, 7], 3)]);
        // A control group hides one node, so both ranks share the other node.
        let hidden = machine(&nodes, "allowed = \"4-7\"");
        assert_eq!(place_ranks(&hidden, 2, None).unwrap(), [place(&[1], &[4, 5], 2), place(&[1], &[6, 7], 2)]);
        assert_eq!(place_process(&hidden, None).unwrap(), place(&[1], &[4, 5, 6, 7], 4));
        let nothing = machine(&nodes, "allowed = \"9\"");
        assert!(matches!(place_ranks(&nothing, 2, None), Err(NumaError::NoProcessors)));
        // A CPU quota limits the number of threads, but not the processors.
        let mut quota = machine(&nodes, "");
        quota.machine.quota = 2;
        assert_eq!(place_ranks(&quota, 2, None).unwrap()[1], place(&[1], &[4, 5, 6, 7], 1));
    }

    #[test]
    fn threads_of_a_core_stay_together() {
        let smt = machine(&[("0-3,8-11", 1), ("4-7,12-15", 1)], "threads_per_core = 2");
        let places = place_ranks(&smt, 4, None).unwrap();
        assert_eq!(places[1], place(&[0], &[2, 3, 10, 11], 4));
        assert_eq!(places[2], place(&[1], &[4, 5, 12, 13], 4));
    }

    #[test]
    fn threads_of_one_rank_are_divided_among_nodes() {
        let two = machine(&[("0-3", 1), ("4-7", 1)], "");
        let threads = |count: Option<usize>| {
            place_threads(&two, count).unwrap().iter().map(|place| place.threads).collect::<Vec<_>>()
        };
        assert_eq!((threads(None), threads(Some(5)), threads(Some(1))), (vec![4, 4], vec![3, 2], vec![1]));
        // A single thread gets the memory of its own node only.
        assert_eq!(place_threads(&two, Some(1)).unwrap(), [place(&[0], &[0, 1, 2, 3], 1)]);
        let mut quota = two.clone();
        quota.machine.quota = 1;
        assert_eq!(place_threads(&quota, None).unwrap(), [place(&[0], &[0, 1, 2, 3], 1)]);
        quota.machine.quota = 3;
        assert_eq!(place_threads(&quota, None).unwrap().iter().map(|place| place.threads).sum::<usize>(), 3);
    }

    #[test]
    fn a_control_group_may_limit_memory_to_some_nodes() {
        let limited = machine(&[("0-1", 1), ("2-3", 1), ("4-5", 1), ("6-7", 1)], "allowed_nodes = \"1-2\"");
        let expected = [place(&[1], &[0, 1, 2, 3], 4), place(&[2], &[4, 5, 6, 7], 4)];
        assert_eq!(place_ranks(&limited, 2, None).unwrap(), expected);
        let none = machine(&[("0-1", 1)], "allowed_nodes = \"\"");
        assert!(matches!(place_ranks(&none, 1, None), Err(NumaError::NoProcessors)));
    }

    #[test]
    fn reading_threads_run_near_the_drive() {
        let near = |topology: &Topology, node| processors_near(topology, node);
        let four = machine(&[("0-1", 1), ("2-3", 1), ("4-5", 1), ("", 1)], "allowed = \"0,2-5\"");
        assert_eq!((near(&four, 0), near(&four, 3)), (Some(vec![0]), Some(vec![4, 5])));
        assert_eq!((near(&four, 9), near(&machine(&[("0-1", 1)], ""), 0)), (None, None));
    }
}
