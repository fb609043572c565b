//! Which processors this process may run on, how they share cores, and binding threads to them.
//!
//! A thread that the scheduler moves leaves its caches behind, and on a machine of many cores two of them may land on one core while another idles. Where
//! the threads own the machine, each is bound to a core of its own. Where they do not, binding is harm: a thread that is bound beside somebody
//! else's waits for it, though another processor is free. So with [`Pin::Auto`] threads are bound only where all of this holds:
//!
//! - the process may run on every processor that is online, and no quota says that it may not use them all;
//! - there are as many threads as cores;
//! - when the plan is loaded, nobody else wants a processor.
//!
//! Neighbours that come later are noticed by what steps wait for threads that do not run (`executor/crew.rs`), and then threads are let go.
//! The thread that calls is the embedder's: it is bound while it runs a step, and then where it was again.
//!
//! ```text
//! cpu0 cpu4   cpu1 cpu5   cpu2 cpu6   cpu3 cpu7      4 cores of two threads each
//! 0 1 2 3 4 5 6 7                                    the order in which threads have them: siblings last
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::str::FromStr;

use ixc_files::read_system;

/// Whether threads are bound to processors. By default they are not: with two threads on two processors of a virtual machine, beside a process that takes
/// 50 ms of each 350, binding left 0.94 (0.86 to 1.01) of the speed of decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Where they own the machine.
    Auto,
    /// Wherever the system lets them, each to the next of the processors that the process may run on.
    On,
    /// Never.
    #[default]
    Off,
}

impl Pin {
    /// All, by name.
    pub const ALL: [(&'static str, Pin); 3] = [("auto", Pin::Auto), ("on", Pin::On), ("off", Pin::Off)];
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(name: &str) -> Result<Pin, String> {
        let known = Pin::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, pin)| pin).ok_or_else(|| format!("{name:?} is none of auto, on, off"))
    }
}

/// Why threads are not bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpinned {
    /// Somebody said so.
    #[error("nobody asked for it")]
    Off,
    /// The system does not say which processors there are.
    #[error("the system does not say which processors there are")]
    Unknown,
    /// There is only the caller's thread.
    #[error("one thread")]
    OneThread,
    /// The process has a part of the machine.
    #[error("{usable} of {online} processors are for this process")]
    Part {
        /// Processors that it may use.
        usable: usize,
        /// Processors that are online.
        online: usize,
    },
    /// Not one thread for each core.
    #[error("{threads} threads for {cores} cores")]
    Threads {
        /// Threads.
        threads: usize,
        /// Cores.
        cores: usize,
    },
    /// Others want processors.
    #[error("{others} others wanted a processor when the plan was loaded")]
    Neighbours {
        /// Threads of others that ran or waited for a processor.
        others: usize,
    },
    /// Others came later.
    #[error("let go when others took processors")]
    LetGo,
    /// The system refused.
    #[error("the system refused: {0}")]
    Refused(String),
}

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number.
    pub number: usize,
    /// Its package and its core there: processors with the same of both share a core.
    pub core: (u64, u64),
    /// Whether it is one of the small cores of a hybrid.
    pub is_small: bool,
}

/// What binding is decided by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Processors that are online, in the order of their numbers.
    pub online: Vec<Processor>,
    /// Numbers of those that the process may run on.
    pub allowed: Vec<usize>,
    /// How many of these a quota lets it use at a time.
    pub quota: usize,
    /// Threads that ran or waited for a processor just now, this one included; 0 where the system does not say.
    pub running: usize,
}

impl Machine {
    /// This one; `None` where the system does not say.
    pub fn here() -> Option<Machine> {
        let quota = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        Machine::read(Path::new("/sys/devices"), Path::new("/proc/loadavg"), allowed()?, quota)
    }

    fn read(devices: &Path, load: &Path, allowed: Vec<usize>, quota: usize) -> Option<Machine> {
        let cpus = devices.join("system/cpu");
        let numbers = parse_list(read_system(&cpus.join("online"))?.trim())?;
        let small = read_system(&devices.join("cpu_atom/cpus")).and_then(|list| parse_list(list.trim()));
        let online = numbers.into_iter().map(|number| {
            let topology = cpus.join(format!("cpu{number}/topology"));
            let id = |name: &str| read_system(&topology.join(name))?.trim().parse::<i64>().ok();
            // Firmware that knows no package says -1. A processor of which nothing is known is a core of its own.
            let core = match (id("physical_package_id"), id("core_id")) {
                (Some(package), Some(core)) => (package as u64, core as u64),
                _ => (u64::MAX, number as u64),
            };
            Processor { number, core, is_small: small.as_ref().is_some_and(|small| small.contains(&number)) }
        });
        // `0.20 0.18 0.12 1/80 11206`: running, of all, now.
        let running = read_system(load).and_then(|text| text.split(' ').nth(3)?.split_once('/')?.0.parse().ok());
        Some(Machine { online: online.collect(), allowed, quota, running: running.unwrap_or(0) })
    }

    /// The processors that the process may run on, in the order in which threads shall have them: one of each core first, large cores before small
    /// ones, and neighbours one after the other.
    pub fn order(&self) -> Vec<usize> {
        let mut in_core: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let usable = self.online.iter().filter(|processor| self.allowed.contains(&processor.number));
        let mut order: Vec<_> = usable
            .map(|processor| {
                let siblings = in_core.entry(processor.core).or_default();
                *siblings += 1;
                (*siblings, processor.is_small, processor.core.0, processor.number)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(.., number)| number).collect()
    }

    /// Cores of which the process may use some processor.
    pub fn cores(&self) -> usize {
        let usable = self.online.iter().filter(|processor| self.allowed.contains(&processor.number));
        let mut cores: Vec<_> = usable.map(|processor| processor.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }

    /// The processor of each of so many threads, the first of which is the caller's, bound while it runs a job.
    ///
    /// # Errors
    /// Why they are not bound.
    pub fn pinned(&self, pin: Pin, threads: usize) -> Result<Vec<usize>, Unpinned> {
        let order = self.order();
        let (online, usable) = (self.online.len(), order.len().min(self.quota));
        match pin {
            Pin::Off => return Err(Unpinned::Off),
            Pin::On | Pin::Auto if order.is_empty() => return Err(Unpinned::Unknown),
            Pin::On | Pin::Auto if threads < 2 => return Err(Unpinned::OneThread),
            Pin::On => {}
            Pin::Auto if usable < online => return Err(Unpinned::Part { usable, online }),
            Pin::Auto if threads != self.cores() => {
                return Err(Unpinned::Threads { threads, cores: self.cores() });
            }
            Pin::Auto if self.running > 1 => return Err(Unpinned::Neighbours { others: self.running - 1 }),
            Pin::Auto => {}
        }
        Ok(order.into_iter().cycle().take(threads).collect())
    }
}

/// `0-3,8` as numbers.
pub(crate) fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // No machine has more.
        (last < 1 << 16).then_some(())?;
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The CPUs that the calling thread may run on, where the system says.
#[cfg(target_os = "linux")]
pub(crate) fn allowed() -> Option<Vec<usize>> {
    // SAFETY: a set of CPUs is an array of integers, for which all bits 0 is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is this thread; the set is as large as is said.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: the numbers are in the set's range.
    (result == 0)
        .then(|| (0..8 * size_of::<libc::cpu_set_t>()).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// The CPUs that the calling thread may run on, where the system says.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed() -> Option<Vec<usize>> {
    None
}

/// A thread, as [`bind_thread`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(i32);

impl ThreadId {
    /// The calling thread's.
    pub fn own() -> ThreadId {
        #[cfg(target_os = "linux")]
        // SAFETY: takes nothing and gives a number.
        return ThreadId(unsafe { libc::gettid() });
        #[cfg(not(target_os = "linux"))]
        ThreadId(0)
    }
}

#[cfg(all(test, target_os = "linux"))]
impl ThreadId {
    /// Its number, as the system has it.
    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

/// Binds the calling thread to some CPUs.
///
/// # Errors
/// What the system says, or that there is no such thing.
pub fn bind(cpus: &[usize]) -> io::Result<()> {
    bind_thread(ThreadId(0), cpus)
}

/// Binds a thread of this process to some CPUs.
///
/// # Errors
/// What the system says, or that there is no such thing.
#[cfg(target_os = "linux")]
pub fn bind_thread(thread: ThreadId, cpus: &[usize]) -> io::Result<()> {
    let most = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: a set of CPUs is an array of integers, for which all bits 0 is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < most) {
        // SAFETY: the number is in the set's range.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: 0 is the calling thread; the set is as large as is said.
    match unsafe { libc::sched_setaffinity(thread.0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds a thread of this process to some CPUs.
///
/// # Errors
/// Always: only Linux has it.
#[cfg(not(target_os = "linux"))]
pub fn bind_thread(_: ThreadId, _: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The calling thread, bound to a processor as long as this lives.
#[derive(Debug)]
pub(crate) struct Bound {
    before: Option<Vec<usize>>,
}

impl Bound {
    /// Binds it, where the system lets it.
    pub(crate) fn to(processor: usize) -> Bound {
        Bound { before: allowed().filter(|_| bind(&[processor]).is_ok()) }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = bind(before)
        {
            tracing::debug!(%error, "the caller's thread stays bound");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processors of these cores of one package, by number; `None` is offline.
    fn machine(cores: &[Option<u64>]) -> Machine {
        let online = cores
            .iter()
            .enumerate()
            .filter_map(|(number, core)| core.map(|core| Processor { number, core: (0, core), is_small: false }));
        let online: Vec<_> = online.collect();
        let allowed: Vec<_> = online.iter().map(|processor| processor.number).collect();
        Machine { quota: allowed.len(), online, allowed, running: 1 }
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("x"), None);
        assert_eq!(parse_list("0-99999999"), None);
    }

    #[test]
    fn cores_come_before_their_second_threads_and_large_ones_before_small_ones() {
        let some = |cores: &[u64]| cores.iter().map(|&core| Some(core)).collect::<Vec<_>>();
        // Siblings far from each other, as most firmware numbers them; beside each other; none.
        assert_eq!(machine(&some(&[0, 1, 2, 0, 1, 2])).order(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(machine(&some(&[0, 0, 1, 1, 2, 2])).order(), [0, 2, 4, 1, 3, 5]);
        assert_eq!(machine(&some(&[7, 3, 5])).order(), [0, 1, 2]);
        // Holes: a processor that is offline, and one whose first sibling is not for this process.
        let mut holes = machine(&[Some(0), None, Some(1), Some(0), Some(1)]);
        assert_eq!(holes.order(), [0, 2, 3, 4]);
        holes.allowed = vec![2, 3, 4];
        assert_eq!((holes.order(), holes.cores()), (vec![2, 3, 4], 2));
        holes.allowed = vec![2, 4, 9];
        assert_eq!((holes.order(), holes.cores()), (vec![2, 4], 1));
        // Two large cores of two threads each, and four small ones of one.
        let mut hybrid = machine(&some(&[0, 0, 1, 1, 8, 9, 10, 11]));
        hybrid.online[4..].iter_mut().for_each(|processor| processor.is_small = true);
        assert_eq!((hybrid.order(), hybrid.cores()), (vec![0, 2, 4, 5, 6, 7, 1, 3], 6));
        // Cores of two packages have the same numbers; threads that meet first are in one package.
        let mut packages = machine(&some(&[0, 0, 1, 1]));
        for i in [1, 3] {
            packages.online[i].core.0 = 1;
        }
        assert_eq!((packages.order(), packages.cores()), (vec![0, 2, 1, 3], 4));
    }

    #[test]
    fn threads_that_own_the_machine_are_bound_and_others_only_where_told() {
        let four: Vec<_> = (0..4).map(Some).collect();
        let owned = machine(&four);
        assert_eq!(owned.pinned(Pin::Auto, 4), Ok(vec![0, 1, 2, 3]));
        assert_eq!(owned.pinned(Pin::Off, 4), Err(Unpinned::Off));
        assert_eq!(owned.pinned(Pin::Auto, 3), Err(Unpinned::Threads { threads: 3, cores: 4 }));
        assert_eq!(owned.pinned(Pin::Auto, 1), Err(Unpinned::OneThread));
        assert_eq!(owned.pinned(Pin::On, 1), Err(Unpinned::OneThread));
        assert_eq!(owned.pinned(Pin::On, 6), Ok(vec![0, 1, 2, 3, 0, 1]));
        // As many threads as processors are no longer one for each core.
        let siblings = machine(&[Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(siblings.pinned(Pin::Auto, 4), Err(Unpinned::Threads { threads: 4, cores: 2 }));
        assert_eq!(siblings.pinned(Pin::Auto, 2), Ok(vec![0, 2]));
        let narrowed = Machine { allowed: vec![1, 3], quota: 2, ..owned.clone() };
        assert_eq!(narrowed.pinned(Pin::Auto, 2), Err(Unpinned::Part { usable: 2, online: 4 }));
        assert_eq!(narrowed.pinned(Pin::On, 2), Ok(vec![1, 3]));
        let quota = Machine { quota: 2, ..owned.clone() };
        assert_eq!(quota.pinned(Pin::Auto, 4), Err(Unpinned::Part { usable: 2, online: 4 }));
        let busy = Machine { running: 3, ..owned };
        assert_eq!(busy.pinned(Pin::Auto, 4), Err(Unpinned::Neighbours { others: 2 }));
        assert_eq!(Machine::default().pinned(Pin::On, 4), Err(Unpinned::Unknown));
    }

    #[test]
    fn a_machine_is_read_from_what_the_system_says() {
        let root = std::env::temp_dir().join(format!("ixc-processors-{}", std::process::id()));
        let cpus = root.join("system/cpu");
        for (number, package, core) in [(0, "0", "0"), (1, "0", "4"), (2, "0", "0"), (5, "-1", "7")] {
            let topology = cpus.join(format!("cpu{number}/topology"));
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("physical_package_id"), format!("{package}\n")).unwrap();
            std::fs::write(topology.join("core_id"), format!("{core}\n")).unwrap();
        }
        std::fs::create_dir_all(root.join("cpu_atom")).unwrap();
        std::fs::write(root.join("cpu_atom/cpus"), "1,5\n").unwrap();
        std::fs::write(cpus.join("online"), "0-2,5-6\n").unwrap();
        let load = root.join("loadavg");
        std::fs::write(&load, "0.20 0.18 0.12 3/80 11206\n").unwrap();
        let machine = Machine::read(&root, &load, vec![0, 2, 5, 6], 4).unwrap();
        let cores: Vec<_> = machine.online.iter().map(|p| (p.number, p.core, p.is_small)).collect();
        let unknown = (6, (u64::MAX, 6), false);
        let expected = [(0, (0, 0), false), (1, (0, 4), true), (2, (0, 0), false), (5, (u64::MAX, 7), true), unknown];
        assert_eq!(cores, expected);
        assert_eq!((machine.order(), machine.running, machine.quota), (vec![0, 6, 5, 2], 3, 4));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(Machine::read(&root, &load, vec![0], 1), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_bound_to_a_cpu_that_is_there_and_no_other() {
        // On a thread of its own, which ends with it. Some CPU of the first few is allowed on any machine with fewer than that.
        std::thread::spawn(|| {
            let before = allowed().unwrap();
            let possible: Vec<usize> = (0..1024).filter(|&cpu| bind(&[cpu]).is_ok()).collect();
            assert!(before.iter().all(|cpu| possible.contains(cpu)) && !before.is_empty());
            assert_eq!(allowed().unwrap(), possible[possible.len() - 1..]);
            assert!(bind(&[]).is_err());
            let own = ThreadId::own();
            std::thread::spawn(move || bind_thread(own, &before).unwrap()).join().unwrap();
            assert!(allowed().unwrap().len() >= possible.len().min(2));
        })
        .join()
        .unwrap();
    }
}
