//! Protection of the process when a mapped file becomes shorter, or its drive fails, while the file
//! is read.
//!
//! A read of a missing page raises SIGBUS, which would end the process. A program that embeds the
//! library must survive this. So a signal handler marks the mapping as faulty, and replaces its
//! pages by zeros. The read continues, and its result must be discarded:
//!
//! ```text
//! a kernel reads a page ──▶ SIGBUS ──▶ handler: mark the mapping, map zeros ──▶ the kernel goes on
//!        end of the step: FaultGuard::has_faulted() ──▶ error
//! ```
//!
//! The first guard installs the handler. For addresses outside guarded mappings, the handler calls
//! the handler that was installed before. A handler that the program installs later must call this
//! one in the same way. If a thread blocks SIGBUS, the system ends the process.
//!
//! The stack on which a thread runs signal handlers may be too small. So threads use a
//! [`SignalStack`] while they compute a step, follow another rank of the process, encode tensors,
//! or load an `UnloadedModel`. Other threads that read mapped files keep their own stack.
//!
//! Invariant: a reader of a guarded mapping checks [`FaultGuard::has_faulted`] after its last read,
//! and before the result is used.
//! Invariant: the handler takes no lock and allocates nothing.

#[cfg(target_os = "linux")]
mod handler;
#[cfg(target_os = "linux")]
mod signal_stack;
mod table;

use std::sync::atomic::Ordering;

#[cfg(target_os = "linux")]
pub use signal_stack::SignalStack;
use table::{PageRange, Slot};

/// A stack for signal handlers of one thread. This type does nothing: only Linux needs a larger
/// stack.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, Default)]
pub struct SignalStack;

#[cfg(not(target_os = "linux"))]
impl SignalStack {
    /// Runs `work` on the normal stack.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Guard of a mapped file: while it exists, unreadable pages of the mapping do not end the process.
#[derive(Debug)]
pub struct FaultGuard {
    slot: &'static Slot,
}

impl FaultGuard {
    /// Guards a mapped file. All its bytes become zero when a page of it cannot be read.
    ///
    /// # Safety
    /// The bytes must be a read-only mapping of a file, and stay mapped while the guard lives.
    pub unsafe fn new(begin: *const u8, bytes: usize) -> FaultGuard {
        #[cfg(target_os = "linux")]
        handler::install();
        let (page, first) = (page_bytes(), begin.expose_provenance());
        // The system maps whole pages, so the range is rounded up to a page.
        let end = first.saturating_add(bytes).div_ceil(page).saturating_mul(page);
        FaultGuard { slot: table::add(PageRange { begin: first / page * page, end }) }
    }

    /// Returns whether a page could not be read. If so, all bytes of the mapping are zero now.
    pub fn has_faulted(&self) -> bool {
        self.slot.has_faulted.load(Ordering::SeqCst)
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        self.slot.free();
    }
}

fn page_bytes() -> usize {
    // SAFETY: the call has no conditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1).max(1)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Number of calls of [`own_handler`].
    static CALLS: AtomicUsize = AtomicUsize::new(0);

    /// A handler that the embedding program installs. It maps a page of zeros, so that the read
    /// continues.
    extern "C" fn own_handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the system passes a valid pointer. The page belongs to this test's mapping.
        unsafe {
            let page = (*info).si_addr().map_addr(|address| address / page_bytes() * page_bytes());
            libc::mmap(page, page_bytes(), libc::PROT_READ, flags, -1, 0);
        }
    }

    /// Maps a file of `pages` pages filled with the value 7, then truncates the file to half a
    /// page.
    fn cut_mapping(pages: usize) -> (File, *const u8) {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; pages * page_bytes()], 0).unwrap();
        // SAFETY: a new mapping, which is never removed.
        let map = unsafe {
            let bytes = pages * page_bytes();
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert!(map != libc::MAP_FAILED);
        file.set_len(page_bytes() as u64 / 2).unwrap();
        (file, map.cast())
    }

    fn read(map: *const u8, offset: usize) -> u8 {
        // SAFETY: the mappings of this test are never removed. The file may change, so the read is
        // volatile.
        unsafe { map.add(offset).read_volatile() }
    }

    #[test]
    fn guarded_mapping_of_a_cut_file_reads_as_zeros() {
        let mut action: libc::sigaction = {
            // SAFETY: all bytes of a `sigaction` may be zero.
            unsafe { std::mem::zeroed() }
        };
        let own: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = own_handler;
        (action.sa_sigaction, action.sa_flags) = (own as usize, libc::SA_SIGINFO);
        // SAFETY: the action is complete, and its handler makes only a system call.
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) }, 0);

        let page = page_bytes();
        let (_first, guarded) = cut_mapping(4);
        // A guarded range that does not begin at a page covers the whole pages around it.
        //
        // SAFETY: the mapping is never removed.
        let guard = unsafe { FaultGuard::new(guarded.add(1), 3 * page) };
        assert_eq!((read(guarded, 1), guard.has_faulted()), (7, false));
        assert_eq!((read(guarded, 3 * page), guard.has_faulted()), (0, true));
        assert_eq!((read(guarded, 1), CALLS.load(Ordering::SeqCst)), (0, 0));

        // The program's own handler gets all faults outside guarded mappings.
        let (_second, other) = cut_mapping(2);
        assert_eq!((read(other, page), CALLS.load(Ordering::SeqCst)), (0, 1));
        let (_third, released) = cut_mapping(2);
        // SAFETY: the mapping is never removed.
        drop(unsafe { FaultGuard::new(released, 2 * page) });
        assert_eq!((read(released, page), CALLS.load(Ordering::SeqCst)), (0, 2));

        // There are more mappings than slots in a block of the table. A new guard in the slot of a
        // dropped guard is not marked as faulty.
        let maps: Vec<_> = (0..2 * table::SLOTS + 3).map(|_| cut_mapping(2)).collect();
        // SAFETY: the mappings are never removed.
        let guards: Vec<_> = maps.iter().map(|(_, map)| unsafe { FaultGuard::new(*map, 2 * page) }).collect();
        for ((_, map), guard) in maps.iter().zip(&guards).rev() {
            assert!(!guard.has_faulted());
            assert_eq!((read(*map, page), guard.has_faulted()), (0, true));
        }
        assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    }
}
