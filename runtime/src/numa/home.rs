//! The home of a thread: the NUMA nodes for the memory that it maps, and the processors on which it
//! runs.
//!
//! A thread that loads a rank enters the rank's home. From then on, all memory that it maps is
//! bound to the home's nodes, and threads that it starts inherit the home's processors. The binding
//! only *prefers* these nodes: if they are full, pages come from another node. A strict binding
//! would end the process.
//!
//! Containers often forbid binding memory (`mbind`). Each page then lies on the node of the thread
//! that writes it first. This is the same node, because threads are bound to processors. The first
//! refusal in a process is logged as a warning.
//!
//! Invariant: when a thread leaves a home, it gets back the processors that it had before.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Once, OnceLock};

use super::placement::RankPlace;
use crate::processors::{allowed_cpus, bind};

/// The nodes and processors of a rank, and the result of binding memory to the nodes.
#[derive(Debug)]
pub struct Home {
    /// Nodes, processors and number of threads of the rank.
    pub place: RankPlace,
    /// The first error of the system when threads or memory were bound.
    refusal: OnceLock<String>,
}

impl Home {
    /// Creates the home for a rank's place.
    pub fn new(place: RankPlace) -> Arc<Home> {
        Arc::new(Home { place, refusal: OnceLock::new() })
    }

    /// Returns the first error of the system when threads or memory were bound.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
    }

    fn refuse(&self, what: &str, error: &io::Error) {
        tracing::debug!(what, %error, nodes = ?self.place.nodes, "not bound to NUMA nodes");
        self.refusal.get_or_init(|| format!("{what} cannot be bound: {error}"));
    }

    /// Binds a mapping to the nodes of this home, if the system allows it.
    pub(crate) fn bind_memory(&self, base: *mut u8, bytes: usize, pages: PresentPages) {
        /// Guard for a single warning for all mappings and ranks of the process.
        static WARNING: Once = Once::new();
        if let Err(error) = system::bind_memory(base, bytes, &self.place.nodes, pages) {
            self.refuse("memory", &error);
            WARNING.call_once(|| {
                tracing::warn!(
                    "memory is not bound to NUMA nodes: {error}; pages may lie on other nodes (a container needs \
                     the capability SYS_NICE)"
                );
            });
        }
    }
}

/// Treatment of pages that a mapping already has when it is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresentPages {
    /// The pages stay on their nodes. This is also used for new mappings, which have no pages.
    Stay,
    /// The pages are moved to the new nodes.
    Move,
}

thread_local! {
    /// The home of the calling thread, if it has entered one.
    static HOME: RefCell<Option<Arc<Home>>> = const { RefCell::new(None) };
}

/// Binding of the calling thread to a home while this value lives.
#[derive(Debug)]
pub(crate) struct HomeBinding {
    processors: Option<Vec<usize>>,
    home: Option<Arc<Home>>,
}

impl HomeBinding {
    /// Enters a home: binds the thread to its processors, and its future mappings to its nodes.
    pub(crate) fn enter(home: &Arc<Home>) -> HomeBinding {
        let processors = allowed_cpus();
        // If the thread's present processors are unknown, the binding could not be undone, so the
        // thread is not bound.
        if processors.is_some()
            && let Err(error) = bind(&home.place.processors)
        {
            home.refuse("threads", &error);
        }
        HomeBinding { processors, home: HOME.replace(Some(Arc::clone(home))) }
    }
}

impl Drop for HomeBinding {
    fn drop(&mut self) {
        HOME.set(self.home.take());
        if let Some(processors) = &self.processors
            && let Err(error) = bind(processors)
        {
            tracing::debug!(%error, "the thread stays bound");
        }
    }
}

/// Binds a new mapping to the home of the calling thread, if the thread has entered one.
pub(crate) fn bind_new_memory(base: *mut u8, bytes: usize) {
    HOME.with_borrow(|home| home.iter().for_each(|home| home.bind_memory(base, bytes, PresentPages::Stay)));
}

/// Number of resident bytes on each node. For large regions, it is estimated from some of the
/// pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeBytes {
    /// Resident bytes, by node number.
    pub nodes: BTreeMap<u32, u64>,
}

impl NodeBytes {
    /// Adds the bytes of another region of memory.
    pub fn add(&mut self, other: &NodeBytes) {
        for (node, bytes) in &other.nodes {
            let sum = self.nodes.entry(*node).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }

    /// Returns the number of bytes on the given nodes.
    pub fn on(&self, nodes: &[u32]) -> u64 {
        self.nodes.iter().filter(|(node, _)| nodes.contains(node)).map(|(_, bytes)| *bytes).sum()
    }

    /// Returns the number of bytes on all nodes.
    pub fn all(&self) -> u64 {
        self.nodes.values().sum()
    }
}

/// Maximum number of pages of a region whose nodes are queried. If a region has more pages, pages
/// at equal distances are queried.
const MAX_PAGES: usize = 1 << 16;

/// Returns the number of resident bytes of a region on each node. Memory that is not mapped is not
/// counted.
///
/// # Errors
/// Returns the system's error if it does not report nodes.
pub fn nodes_of(base: *const u8, bytes: u64) -> io::Result<NodeBytes> {
    let mut result = NodeBytes::default();
    let page = system::page_bytes()?;
    let first = base as usize / page;
    let pages = (base as usize).saturating_add(bytes as usize).div_ceil(page).saturating_sub(first);
    if bytes == 0 || pages == 0 {
        return Ok(result);
    }
    let step = pages.div_ceil(MAX_PAGES);
    let addresses: Vec<usize> = (first..first + pages).step_by(step).map(|number| number * page).collect();
    for node in system::nodes_of_pages(&addresses)?.into_iter().flatten() {
        let sum = result.nodes.entry(node).or_default();
        *sum = sum.saturating_add((step * page) as u64);
    }
    Ok(result)
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    use super::PresentPages;
    use crate::numa::topology::MAX_NODES;

    /// Flag of `mbind` that moves present pages: `MPOL_MF_MOVE` in `linux/mempolicy.h`.
    const MOVE_PAGES: u32 = 1 << 1;
    /// Number of bits in a word of a set of nodes.
    const WORD_BITS: usize = u64::BITS as usize;

    pub(super) fn page_bytes() -> io::Result<usize> {
        // SAFETY: the call has only a number as argument.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    pub(super) fn bind_memory(base: *mut u8, bytes: usize, nodes: &[u32], pages: PresentPages) -> io::Result<()> {
        let mut set = [0u64; MAX_NODES / WORD_BITS];
        for &node in nodes {
            let word = set.get_mut(node as usize / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)?;
            *word |= 1 << (node as usize % WORD_BITS);
        }
        let policy = if nodes.len() == 1 { libc::MPOL_PREFERRED } else { libc::MPOL_INTERLEAVE };
        // The system call expects the number of bits plus one.
        let max = MAX_NODES + 1;
        let flags = match pages {
            PresentPages::Stay => 0,
            PresentPages::Move => MOVE_PAGES,
        };
        // SAFETY: only the nodes of pages change, not their contents. The set lives during the call
        // and has the stated number of bits.
        match unsafe { libc::syscall(libc::SYS_mbind, base, bytes, policy, set.as_ptr(), max, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the node of each page, given by its address; `None` for a page that is not in
    /// memory.
    pub(super) fn nodes_of_pages(addresses: &[usize]) -> io::Result<Vec<Option<u32>>> {
        let mut nodes = vec![-1i32; addresses.len()];
        let nowhere = std::ptr::null::<i32>();
        let (process, count) = (0, addresses.len());
        // SAFETY: without target nodes, the call moves no page and reads none. Both lists have
        // `count` elements and live during the call. The process id 0 means this process.
        let result = unsafe {
            libc::syscall(libc::SYS_move_pages, process, count, addresses.as_ptr(), nowhere, nodes.as_mut_ptr(), 0)
        };
        match result {
            0 => Ok(nodes.into_iter().map(|node| u32::try_from(node).ok()).collect()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    use super::PresentPages;

    pub(super) fn page_bytes() -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn bind_memory(_: *mut u8, _: usize, _: &[u32], _: PresentPages) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn nodes_of_pages(_: &[usize]) -> io::Result<Vec<Option<u32>>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::numa::topology::Topology;
    use crate::storage::memory::Memory;

    /// Returns a home on the last usable node of this machine.
    fn home() -> Arc<Home> {
        let topology = Topology::detect().unwrap();
        let node = topology.usable_nodes().last().unwrap();
        let order = topology.machine.order();
        let processors = order.into_iter().filter(|processor| node.processors.contains(processor)).take(1).collect();
        Home::new(RankPlace { nodes: vec![node.number], processors, threads: 1 })
    }

    #[test]
    fn memory_of_a_home_lies_on_its_node_and_the_thread_returns() {
        let home = home();
        let before = allowed_cpus();
        let binding = HomeBinding::enter(&home);
        assert_eq!(allowed_cpus().unwrap(), home.place.processors);
        let memory = Memory::zeroed("a test", 1 << 20, false).unwrap();
        drop(binding);
        assert_eq!(allowed_cpus(), before);
        let region = memory.region();
        let resident = || nodes_of(region.base(), region.bytes());
        // Containers may forbid both system calls.
        let Ok(empty) = resident() else { return };
        assert_eq!(empty.all(), 0);
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe { region.base().write_bytes(1, region.bytes() as usize) };
        let counted = resident().unwrap();
        assert_eq!((counted.all(), counted.on(&home.place.nodes)), (1 << 20, 1 << 20), "{:?}", home.refusal());
        // A region that begins inside a page counts the whole page.
        let part = region.part(100, 5000).unwrap();
        assert_eq!(nodes_of(part.base(), part.bytes()).unwrap().all(), 8192);
    }

    #[test]
    fn a_node_that_does_not_exist_is_a_refusal() {
        let mut place = home().place.clone();
        place.nodes = vec![1023];
        let home = Home::new(place);
        let _binding = HomeBinding::enter(&home);
        let memory = Memory::zeroed("a test", 1 << 16, false).unwrap();
        assert_eq!(memory.region().bytes(), 1 << 16);
        assert!(home.refusal().unwrap().contains("memory cannot be bound"), "{:?}", home.refusal());
    }
}
