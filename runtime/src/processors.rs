//! The processors on which this process may run, their grouping into cores, and the binding of
//! threads to processors.
//!
//! If the scheduler moves a thread to another processor, the thread loses the contents of its
//! caches. On a machine with many cores, two threads may also run on one core while another core is
//! idle. If no other process uses the machine, it is therefore best to bind each thread to its own
//! core. Otherwise binding is harmful: a bound thread waits for another process although another
//! processor is free. So [`Pin::Auto`] binds threads only under all of these conditions:
//!
//! - the process may run on every online processor, and no CPU quota limits it to fewer;
//! - there are as many threads as cores;
//! - no other process needs a processor when the plan is loaded.
//!
//! Other processes may start later. They are detected by the time that steps wait for descheduled
//! threads (`executor/thread_count.rs`). Threads are then unbound. The calling thread belongs to
//! the embedding program: it is bound only while it runs a step.
//!
//! ```text
//! cpu0 cpu4   cpu1 cpu5   cpu2 cpu6   cpu3 cpu7   4 cores with two processors each
//! 0 1 2 3 4 5 6 7                                 order of their use: siblings last
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::str::FromStr;

use ixc_files::read_system;

/// Condition for binding threads to processors. By default, threads are not bound. Binding was
/// measured with two threads on two processors of a virtual machine, while another process ran 50
/// of every 350 ms. It reduced the decode speed to 0.94 (0.86 to 1.01) of the unbound speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Bind threads if no other process uses the machine; see the module's conditions.
    Auto,
    /// Bind threads if the system allows it. Each thread gets the next of the process's processors.
    On,
    /// Never bind.
    #[default]
    Off,
}

impl Pin {
    /// All variants with their option names.
    pub const ALL: [(&'static str, Pin); 3] = [("auto", Pin::Auto), ("on", Pin::On), ("off", Pin::Off)];
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(name: &str) -> Result<Pin, String> {
        let known = Pin::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, pin)| pin).ok_or_else(|| format!("{name:?} is not one of auto, on, off"))
    }
}

/// The reason why threads are not bound to processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinRefusal {
    /// Binding was not requested.
    #[error("pinning was not requested")]
    Off,
    /// The system does not list the machine's processors.
    #[error("the system does not list its processors")]
    Unknown,
    /// The pool has only the caller's thread.
    #[error("the run has one thread")]
    OneThread,
    /// Threads are bound to whole NUMA nodes instead, because each node has its copy of the
    /// weights.
    #[error("bound to the NUMA nodes of their weights instead")]
    Mirrored,
    /// The process may use only some of the machine's processors.
    #[error("this process may use {usable} of {online} processors")]
    Part {
        /// Number of processors that this process may use.
        usable: usize,
        /// Number of processors that are online.
        online: usize,
    },
    /// The number of threads differs from the number of cores.
    #[error("{threads} threads for {cores} cores")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// Number of cores.
        cores: usize,
    },
    /// Other processes are using processors.
    #[error("{others} other threads needed a processor when the plan was loaded")]
    Neighbours {
        /// Number of other threads that ran or waited for a processor.
        others: usize,
    },
    /// Other processes started to use processors later, so threads were unbound.
    #[error("unbound during the run because other processes use the processors")]
    LetGo,
    /// The system returned an error.
    #[error("the system refused to bind threads: {0}")]
    Refused(String),
}

/// A processor (hardware thread) of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Number of the processor in the system.
    pub number: usize,
    /// Number of the processor's package, and number of its core in that package. Processors with
    /// equal pairs share a core.
    pub core: (u64, u64),
    /// Whether the processor's core is a small one of a hybrid CPU.
    pub is_small: bool,
}

/// Properties of the machine that determine whether and where threads are bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Online processors in the order of their numbers.
    pub online: Vec<Processor>,
    /// Numbers of the processors on which the process may run.
    pub allowed: Vec<usize>,
    /// Maximum number of processors that the process may use at the same time under its CPU quota.
    pub quota: usize,
    /// Number of threads on the machine that currently run or wait for a processor, including this
    /// thread; 0 if unknown.
    pub running: usize,
}

impl Machine {
    /// Reads the properties of this machine; `None` if the system does not list its processors.
    pub fn detect() -> Option<Machine> {
        let quota = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        Machine::read(Path::new("/sys/devices"), Path::new("/proc/loadavg"), allowed_cpus()?, quota)
    }

    pub(crate) fn read(devices: &Path, load: &Path, allowed: Vec<usize>, quota: usize) -> Option<Machine> {
        let cpus = devices.join("system/cpu");
        let numbers = parse_list(read_system(&cpus.join("online"))?.trim())?;
        let small = read_system(&devices.join("cpu_atom/cpus")).and_then(|list| parse_list(list.trim()));
        let online = numbers.into_iter().map(|number| {
            let topology = cpus.join(format!("cpu{number}/topology"));
            let id = |name: &str| read_system(&topology.join(name))?.trim().parse::<i64>().ok();
            // Firmware without packages reports -1. If the core of a processor is unknown, it gets
            // a core of its own.
            let core = match (id("physical_package_id"), id("core_id")) {
                (Some(package), Some(core)) => (package as u64, core as u64),
                _ => (u64::MAX, number as u64),
            };
            Processor { number, core, is_small: small.as_ref().is_some_and(|small| small.contains(&number)) }
        });
        // In `0.20 0.18 0.12 1/80 11206`, the fourth word has the number of running threads and the
        // number of all threads.
        let running = read_system(load).and_then(|text| text.split(' ').nth(3)?.split_once('/')?.0.parse().ok());
        Some(Machine { online: online.collect(), allowed, quota, running: running.unwrap_or(0) })
    }

    /// Returns the machine with only the given processors, as if it had no others.
    pub fn within(&self, processors: &[usize]) -> Machine {
        let part: BTreeSet<usize> = processors.iter().copied().collect();
        let online = self.online.iter().copied().filter(|online| part.contains(&online.number)).collect();
        let allowed = self.allowed.iter().copied().filter(|allowed| part.contains(allowed)).collect();
        Machine { online, allowed, ..*self }
    }

    /// Returns the processors of this process, in the order in which threads get them. The first
    /// processors of all cores come before the second ones, and large cores before small ones.
    /// Adjacent cores follow each other.
    pub fn order(&self) -> Vec<usize> {
        let mut in_core: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let mut order: Vec<_> = self
            .usable()
            .map(|processor| {
                let siblings = in_core.entry(processor.core).or_default();
                *siblings += 1;
                (*siblings, processor.is_small, processor.core.0, processor.number)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(.., number)| number).collect()
    }

    /// Returns the processors that are online and that the process may use.
    fn usable(&self) -> impl Iterator<Item = &Processor> {
        let allowed: BTreeSet<usize> = self.allowed.iter().copied().collect();
        self.online.iter().filter(move |processor| allowed.contains(&processor.number))
    }

    /// Returns the number of cores with at least one processor that the process may use.
    pub fn cores(&self) -> usize {
        let mut cores: Vec<_> = self.usable().map(|processor| processor.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }

    /// Returns the processor of each of `threads` threads. The first thread is the caller's, which
    /// is bound only during a job.
    ///
    /// # Errors
    /// Returns the reason why the threads should not be bound.
    pub fn pinned_processors(&self, pin: Pin, threads: usize) -> Result<Vec<usize>, PinRefusal> {
        let order = self.order();
        let (online, usable) = (self.online.len(), order.len().min(self.quota));
        match pin {
            Pin::Off => return Err(PinRefusal::Off),
            Pin::On | Pin::Auto if order.is_empty() => return Err(PinRefusal::Unknown),
            Pin::On | Pin::Auto if threads < 2 => return Err(PinRefusal::OneThread),
            Pin::On => {}
            Pin::Auto if usable < online => return Err(PinRefusal::Part { usable, online }),
            Pin::Auto if threads != self.cores() => {
                return Err(PinRefusal::Threads { threads, cores: self.cores() });
            }
            Pin::Auto if self.running > 1 => return Err(PinRefusal::Neighbours { others: self.running - 1 }),
            Pin::Auto => {}
        }
        Ok(order.into_iter().cycle().take(threads).collect())
    }
}

/// Upper bound for CPU numbers on any machine. Linux kernels for x86-64 have at most 8192 CPUs.
const MAX_CPUS: usize = 1 << 16;
/// Number of bits in a word of a set of CPUs.
#[cfg(target_os = "linux")]
const WORD_BITS: usize = u64::BITS as usize;

/// A set of CPUs in the layout of the system calls. The C library's type has only 1024 bits, which
/// a kernel with more CPU numbers refuses. Every kernel accepts sets that are larger than it needs.
#[cfg(target_os = "linux")]
struct CpuSet([u64; MAX_CPUS / WORD_BITS]);

#[cfg(target_os = "linux")]
impl CpuSet {
    /// Returns the set of the given CPUs.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a CPU number is [`MAX_CPUS`] or larger.
    fn new(cpus: &[usize]) -> io::Result<CpuSet> {
        let mut set = CpuSet([0; _]);
        for &cpu in cpus {
            let word = set.0.get_mut(cpu / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)?;
            *word |= 1 << (cpu % WORD_BITS);
        }
        Ok(set)
    }

    /// Reads a set with a system call. `call` gets the set's address and its size in bytes.
    fn read(call: impl FnOnce(*mut libc::cpu_set_t, usize) -> libc::c_int) -> Option<CpuSet> {
        let mut set = CpuSet([0; _]);
        let bytes = size_of_val(&set.0);
        (call(set.0.as_mut_ptr().cast(), bytes) == 0).then_some(set)
    }

    /// Returns the numbers of the CPUs in the set.
    fn cpus(&self) -> Vec<usize> {
        let words = self.0.iter().enumerate();
        let in_word = |(number, word): (usize, &u64)| {
            let (begin, word) = (number * WORD_BITS, *word);
            (0..WORD_BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| begin + bit)
        };
        words.filter(|(_, word)| **word != 0).flat_map(in_word).collect()
    }
}

/// Parses a list of numbers such as `0-3,8`; `None` if it is malformed.
pub(crate) fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last < MAX_CPUS).then_some(())?;
        cpus.extend(first..=last);
        (cpus.len() <= MAX_CPUS).then_some(())?;
    }
    Some(cpus)
}

/// Returns the CPUs on which the calling thread may run, if known.
#[cfg(target_os = "linux")]
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    // SAFETY: the thread id 0 is this thread; the set has the given number of bytes.
    let set = CpuSet::read(|set, bytes| unsafe { libc::sched_getaffinity(0, bytes, set) })?;
    Some(set.cpus())
}

/// Returns the CPUs on which the calling thread may run, if known.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    None
}

/// System id of a thread, for [`bind_thread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(i32);

impl ThreadId {
    /// Returns the id of the calling thread.
    pub fn current() -> ThreadId {
        #[cfg(target_os = "linux")]
        // The system call is used directly, since glibc before 2.30 has no `gettid`.
        //
        // SAFETY: the call takes no arguments and returns a number that fits.
        return ThreadId(unsafe { libc::syscall(libc::SYS_gettid) } as i32);
        #[cfg(not(target_os = "linux"))]
        ThreadId(0)
    }
}

#[cfg(all(test, target_os = "linux"))]
impl ThreadId {
    /// Returns the id as a number of the system.
    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

/// Binds the calling thread to a set of CPUs.
///
/// # Errors
/// Returns the system's error, or an error if the system does not support binding.
pub fn bind(cpus: &[usize]) -> io::Result<()> {
    bind_thread(ThreadId(0), cpus)
}

/// Binds a thread of this process to a set of CPUs.
///
/// # Errors
/// Returns the system's error, for example for a thread that does not exist.
#[cfg(target_os = "linux")]
pub fn bind_thread(thread: ThreadId, cpus: &[usize]) -> io::Result<()> {
    let set = CpuSet::new(cpus)?;
    // SAFETY: the set has the given number of bytes. The thread id 0 would be the calling thread.
    match unsafe { libc::sched_setaffinity(thread.0, size_of_val(&set.0), set.0.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does nothing: only Linux supports binding.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub fn bind_thread(_: ThreadId, _: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Binding of the calling thread to processors. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct ProcessorBinding {
    before: Option<Vec<usize>>,
}

impl ProcessorBinding {
    /// Binds the calling thread to `processors`, if the system allows it.
    pub(crate) fn bind(processors: &[usize]) -> ProcessorBinding {
        ProcessorBinding { before: allowed_cpus().filter(|_| bind(processors).is_ok()) }
    }
}

impl Drop for ProcessorBinding {
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

    /// Creates a machine with one package. `cores` has the core number of each processor; `None`
    /// for an offline processor.
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
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("x"), None);
        assert_eq!(parse_list("0-99999999"), None);
        assert_eq!(parse_list("0-65535,1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sets_have_more_numbers_than_those_of_the_c_library() {
        let cpus = [0, 63, 64, 1023, 1024, 5000, MAX_CPUS - 1];
        let set = CpuSet::new(&cpus).unwrap();
        assert_eq!((set.cpus(), set.0[5000 / 64]), (cpus.to_vec(), 1 << (5000 % 64)));
        assert_eq!(CpuSet::new(&[MAX_CPUS]).err().map(|error| error.kind()), Some(io::ErrorKind::InvalidInput));
        // This simulates a kernel with 8192 CPU numbers: it refuses smaller sets, and writes only
        // the bytes that it needs.
        let kernel = |set: *mut libc::cpu_set_t, bytes: usize| {
            if bytes * 8 < 8192 {
                return -1;
            }
            // SAFETY: the set has at least 8192 bits.
            unsafe { set.cast::<u64>().add(8191 / 64).write(1 << 63 | 1) };
            0
        };
        assert_eq!(CpuSet::read(kernel).unwrap().cpus(), [8128, 8191]);
        assert!(CpuSet::read(|_, _| -1).is_none());
    }

    #[test]
    fn cpu_order_is_cores_then_siblings_and_large_first() {
        let some = |cores: &[u64]| cores.iter().map(|&core| Some(core)).collect::<Vec<_>>();
        // The test has three numberings of processors. Processors of one core have distant numbers
        // (most firmware) or adjacent numbers, or each core has only one processor.
        assert_eq!(machine(&some(&[0, 1, 2, 0, 1, 2])).order(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(machine(&some(&[0, 0, 1, 1, 2, 2])).order(), [0, 2, 4, 1, 3, 5]);
        assert_eq!(machine(&some(&[7, 3, 5])).order(), [0, 1, 2]);
        // In this machine, one processor is offline, and the process may not use the first
        // processor of one core.
        let mut holes = machine(&[Some(0), None, Some(1), Some(0), Some(1)]);
        assert_eq!(holes.order(), [0, 2, 3, 4]);
        holes.allowed = vec![2, 3, 4];
        assert_eq!((holes.order(), holes.cores()), (vec![2, 3, 4], 2));
        holes.allowed = vec![2, 4, 9];
        assert_eq!((holes.order(), holes.cores()), (vec![2, 4], 1));
        // This machine has two large cores with two processors each, and four small cores with one
        // processor each.
        let mut hybrid = machine(&some(&[0, 0, 1, 1, 8, 9, 10, 11]));
        hybrid.online[4..].iter_mut().for_each(|processor| processor.is_small = true);
        assert_eq!((hybrid.order(), hybrid.cores()), (vec![0, 2, 4, 5, 6, 7, 1, 3], 6));
        // Two packages have the same core numbers. The threads of a barrier group must be in one
        // package.
        let mut packages = machine(&some(&[0, 0, 1, 1]));
        for i in [1, 3] {
            packages.online[i].core.0 = 1;
        }
        assert_eq!((packages.order(), packages.cores()), (vec![0, 2, 1, 3], 4));
    }

    #[test]
    fn auto_pinning_needs_an_idle_machine() {
        let four: Vec<_> = (0..4).map(Some).collect();
        let owned = machine(&four);
        assert_eq!(owned.pinned_processors(Pin::Auto, 4), Ok(vec![0, 1, 2, 3]));
        assert_eq!(owned.pinned_processors(Pin::Off, 4), Err(PinRefusal::Off));
        assert_eq!(owned.pinned_processors(Pin::Auto, 3), Err(PinRefusal::Threads { threads: 3, cores: 4 }));
        assert_eq!(owned.pinned_processors(Pin::Auto, 1), Err(PinRefusal::OneThread));
        assert_eq!(owned.pinned_processors(Pin::On, 1), Err(PinRefusal::OneThread));
        assert_eq!(owned.pinned_processors(Pin::On, 6), Ok(vec![0, 1, 2, 3, 0, 1]));
        // With one thread for each processor, cores have more than one thread.
        let siblings = machine(&[Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(siblings.pinned_processors(Pin::Auto, 4), Err(PinRefusal::Threads { threads: 4, cores: 2 }));
        assert_eq!(siblings.pinned_processors(Pin::Auto, 2), Ok(vec![0, 2]));
        let narrowed = Machine { allowed: vec![1, 3], quota: 2, ..owned.clone() };
        assert_eq!(narrowed.pinned_processors(Pin::Auto, 2), Err(PinRefusal::Part { usable: 2, online: 4 }));
        assert_eq!(narrowed.pinned_processors(Pin::On, 2), Ok(vec![1, 3]));
        let quota = Machine { quota: 2, ..owned.clone() };
        assert_eq!(quota.pinned_processors(Pin::Auto, 4), Err(PinRefusal::Part { usable: 2, online: 4 }));
        let busy = Machine { running: 3, ..owned };
        assert_eq!(busy.pinned_processors(Pin::Auto, 4), Err(PinRefusal::Neighbours { others: 2 }));
        assert_eq!(Machine::default().pinned_processors(Pin::On, 4), Err(PinRefusal::Unknown));
    }

    #[test]
    fn machine_topology_is_read_from_sysfs() {
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
    fn thread_can_be_bound_only_to_available_cpus() {
        // The test binds its own thread, which then ends. On any machine, one of the first CPUs is
        // allowed.
        std::thread::spawn(|| {
            let before = allowed_cpus().unwrap();
            let possible: Vec<usize> = (0..1024).filter(|&cpu| bind(&[cpu]).is_ok()).collect();
            assert!(before.iter().all(|cpu| possible.contains(cpu)) && !before.is_empty());
            assert_eq!(allowed_cpus().unwrap(), possible[possible.len() - 1..]);
            assert!(bind(&[]).is_err());
            let own = ThreadId::current();
            std::thread::spawn(move || bind_thread(own, &before).unwrap()).join().unwrap();
            assert!(allowed_cpus().unwrap().len() >= possible.len().min(2));
        })
        .join()
        .unwrap();
    }
}
