//! Homes (sets of NUMA nodes and processors) of an engine's threads, and the memory that is in use
//! on each node.
//!
//! An engine has no home, one home, or several. One home belongs to a rank: some nodes of the
//! machine. Each of several homes is for some of the engine's threads, and has its own copy of all
//! weights ([`Numa::Mirror`](crate::numa::Numa::Mirror)).

use std::io;
use std::sync::Arc;

use crate::numa::home::{Home, HomeBinding, NodeBytes, nodes_of};
use crate::numa::placement::RankPlace;
use crate::pool::Pool;
use crate::processors::{Machine, PinRefusal};
use crate::storage::pages::NamedRegions;

/// Number of threads at the end of each home that alternate with threads of other homes. In a home
/// with fewer threads, all of them alternate.
const ALTERNATING: usize = 4;

/// Homes of an engine's threads; empty if the system chooses processors and memory.
#[derive(Clone, Debug, Default)]
pub struct Homes(Vec<Arc<Home>>);

impl Homes {
    /// Creates a home for each of the given places.
    pub(crate) fn at(places: Vec<RankPlace>) -> Homes {
        Homes(places.into_iter().map(Home::new).collect())
    }

    /// Returns the homes.
    pub fn all(&self) -> &[Arc<Home>] {
        &self.0
    }

    /// Returns the number of threads of all homes; `None` without homes.
    pub(crate) fn threads(&self) -> Option<usize> {
        Some(self.0.iter().map(|home| home.place.threads).sum()).filter(|threads| *threads > 0)
    }

    /// Returns, for each of `threads` threads, the index of its home. If the homes have room for
    /// more threads, the threads are divided among all homes. They then read memory at the speed of
    /// all nodes.
    ///
    /// Neighbouring threads share a home, because they meet first at barriers. The last
    /// [`ALTERNATING`] threads of each home alternate with those of other homes. When processors
    /// are busy, steps leave out the threads with the highest numbers. So in homes with few
    /// threads, neighbours may have different homes.
    pub(crate) fn of_threads(&self, threads: usize) -> Vec<usize> {
        let each = self.0.iter().enumerate().map(|(number, home)| std::iter::repeat_n(number, home.place.threads));
        let all: Vec<usize> = each.flatten().collect();
        let homes: Vec<usize> =
            (0..threads).filter_map(|thread| all.get((2 * thread + 1) * all.len() / (2 * threads)).copied()).collect();
        let mut later = vec![0; self.0.len()];
        let mut ordered: Vec<(usize, usize)> = Vec::with_capacity(homes.len());
        for home in homes.into_iter().rev() {
            ordered.push((ALTERNATING.saturating_sub(later[home]), home));
            later[home] += 1;
        }
        ordered.sort_unstable();
        ordered.into_iter().map(|(_, home)| home).collect()
    }

    /// Binds the calling thread to the only home. With several homes, binds it to all their nodes,
    /// where its memory is interleaved.
    pub(crate) fn enter(&self) -> Option<HomeBinding> {
        let (first, rest) = self.0.split_first()?;
        let mut all = first.place.clone();
        for home in rest {
            all.nodes.extend(&home.place.nodes);
            all.processors.extend(&home.place.processors);
        }
        let home = if rest.is_empty() { Arc::clone(first) } else { Home::new(all) };
        Some(HomeBinding::enter(&home))
    }

    /// Binds the threads of a pool to the processors of their homes.
    ///
    /// # Errors
    /// Returns the first error of the system.
    pub(crate) fn bind(&self, pool: &mut Pool) -> io::Result<()> {
        let sets: Vec<&[usize]> = self
            .of_threads(pool.threads())
            .into_iter()
            .filter_map(|home| self.0.get(home))
            .map(|home| &*home.place.processors)
            .collect();
        let others: Vec<usize> = self.0.iter().flat_map(|home| home.place.processors.iter().copied()).collect();
        pool.bind_to(&sets, &others)
    }

    /// Returns the part of a machine that the only home covers. Without a home, or with several
    /// homes, returns the whole machine.
    pub(crate) fn part_of(&self, machine: Machine) -> Machine {
        match &self.0[..] {
            [] => machine,
            [home] => machine.within(&home.place.processors),
            // With several homes, `bind` binds each thread to the processors of its home.
            [..] => machine,
        }
    }

    /// Returns the reason why threads cannot be bound to single processors: they are already bound
    /// to several homes.
    pub(crate) fn refuses_pin(&self) -> Option<PinRefusal> {
        (self.0.len() > 1).then_some(PinRefusal::Mirrored)
    }
}

/// The memory of a rank. Its NUMA nodes can be queried while the rank exists.
#[derive(Debug)]
pub(crate) struct RankMemory {
    pub(crate) rank: u32,
    pub(crate) home: Arc<Home>,
    pub(crate) regions: Vec<NamedRegions>,
}

/// Use of NUMA nodes by one kind of memory of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUse {
    /// Number of the rank, or of the copy of the weights if there are several homes.
    pub rank: u32,
    /// NUMA nodes of the rank's home.
    pub home: Vec<u32>,
    /// Kind of memory, such as "weights".
    pub what: &'static str,
    /// Resident bytes by node, or the reason why they are unknown.
    pub bytes: Result<NodeBytes, String>,
    /// First error of the system when threads or memory were bound to nodes.
    pub refusal: Option<String>,
}

impl NodeUse {
    /// Returns the resident bytes on the nodes of the rank's home, if known.
    pub fn local_bytes(&self) -> Option<u64> {
        self.bytes.as_ref().ok().map(|bytes| bytes.on(&self.home))
    }

    /// Returns the resident bytes on nodes outside the rank's home, if known.
    pub fn remote_bytes(&self) -> Option<u64> {
        self.bytes.as_ref().ok().map(|bytes| bytes.all() - bytes.on(&self.home))
    }
}

impl RankMemory {
    /// Returns the use of nodes by each kind of memory.
    pub(crate) fn node_use(&self) -> impl Iterator<Item = NodeUse> {
        self.regions.iter().map(|NamedRegions { what, regions }| {
            let mut sum = Ok(NodeBytes::default());
            for region in regions {
                match (nodes_of(region.base(), region.bytes()), &mut sum) {
                    (Ok(bytes), Ok(sum)) => sum.add(&bytes),
                    (Err(error), Ok(_)) => sum = Err(error.to_string()),
                    (_, Err(_)) => {}
                }
            }
            NodeUse {
                rank: self.rank,
                home: self.home.place.nodes.clone(),
                what,
                bytes: sum,
                refusal: self.home.refusal().map(str::to_owned),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_divided_among_homes() {
        let home = |threads| RankPlace { nodes: vec![0], processors: vec![0], threads };
        let homes = Homes::at(vec![home(4), home(2)]);
        assert_eq!(homes.of_threads(6), [0, 0, 0, 1, 0, 1]);
        assert_eq!((homes.of_threads(3), homes.of_threads(2)), (vec![0, 0, 1], vec![0, 1]));
        let equal = Homes::at(vec![home(2), home(2), home(2)]);
        assert_eq!((equal.of_threads(3), equal.of_threads(1)), (vec![0, 1, 2], vec![1]));
        let large = Homes::at(vec![home(24), home(24)]).of_threads(48);
        assert_eq!(large[..40], [[0; 20], [1; 20]].concat());
        for left_out in 0..=8 {
            let of_first = large[..48 - left_out].iter().filter(|home| **home == 0).count();
            assert_eq!(of_first, 24 - left_out / 2, "{left_out} threads left out");
        }
        assert_eq!((equal.of_threads(0), Homes::default().of_threads(2)), (vec![], vec![]));
    }
}
