//! A backend with io_uring. It has one ring, registered files, and registered memory if the system
//! allows it to pin that much.
//!
//! Only the thread that made the ring uses it, and all code of this module runs on that thread.
//! Other threads wake it with an eventfd that the ring polls. A poll has no buffer, so a closed
//! ring causes no late writes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;

use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{IoUring, Probe, opcode, squeue};

use crate::storage::memory::Region;

use super::backend::{Backend, Completion, Read};
use super::files::Files;
use super::queue::Wake;
use super::reservation::Reservation;

/// Max bytes of one registered buffer (see `io_uring_register(2)`).
const LARGEST_BUFFER: u64 = 1 << 30;
/// User data of the poll of the eventfd, and user data of a cancellation.
const WAKE: u64 = u64::MAX;
const CANCELLATION: u64 = u64::MAX - 1;

struct Event(File);

impl Event {
    fn new() -> io::Result<Event> {
        // SAFETY: the call takes two numbers and returns a descriptor or -1.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so it has no other owner.
        Ok(Event(unsafe { File::from_raw_fd(descriptor) }))
    }
}

impl Wake for Event {
    fn wake(&self) {
        // The write fails only if the counter is full. In that case, the ring wakes anyway.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}

/// A backend with an io_uring.
pub struct Uring {
    ring: IoUring,
    event: Arc<Event>,
    /// Whether the ring polls the eventfd.
    armed: bool,
    /// Number of reads that have started and not ended.
    outstanding: usize,
    /// Reads that the ring rejected.
    refused: Vec<Completion>,
    fixed_files: bool,
    /// Registered parts of the reservation, in order. The list is empty if the system refused them.
    buffers: Vec<Region>,
    // The kernel reads from these files into this reservation, so both must outlive the ring.
    files: Arc<Files>,
    reservation: Arc<Reservation>,
}

impl Uring {
    /// Makes a ring for `depth` outstanding reads. If `register` is true, pins the whole
    /// reservation, so that reads need no page lookups. Also returns notes about features that the
    /// system refused.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    pub fn new(
        files: &Arc<Files>,
        reservation: &Arc<Reservation>,
        depth: usize,
        register: bool,
    ) -> Result<(Uring, Vec<String>), String> {
        // Two more entries are for the poll and a cancellation.
        let entries = u32::try_from(depth + 2).unwrap_or(1024).next_power_of_two();
        // Kernels from 6.1 on then process completions only when this thread requests them, and
        // never interrupt the thread.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))
            .map_err(|error| format!("io_uring is refused: {error}"))?;
        let mut probe = Probe::new();
        if ring.submitter().register_probe(&mut probe).is_ok() && !probe.is_supported(opcode::Read::CODE) {
            return Err("this kernel's io_uring has no plain reads (5.6 has)".into());
        }
        let event = Arc::new(Event::new().map_err(|error| format!("no eventfd: {error}"))?);
        let mut notes = Vec::new();
        let descriptors: Vec<RawFd> = files.handles().map(AsRawFd::as_raw_fd).collect();
        let fixed_files = match ring.submitter().register_files(&descriptors) {
            Ok(()) => true,
            Err(error) => {
                notes.push(format!("files are not registered: {error}"));
                false
            }
        };
        let mut uring = Uring {
            ring,
            event,
            armed: false,
            outstanding: 0,
            refused: Vec::new(),
            fixed_files,
            buffers: Vec::new(),
            files: Arc::clone(files),
            reservation: Arc::clone(reservation),
        };
        if register && let Err(error) = uring.register(reservation.region()) {
            notes.push(format!("memory is not registered: {error} (the limit on locked memory is one cause)"));
        }
        Ok((uring, notes))
    }

    fn register(&mut self, all: Region) -> io::Result<()> {
        let mut parts = Vec::new();
        let mut done = 0;
        while let Some(part) = all.part(done, LARGEST_BUFFER.min(all.bytes() - done)).filter(|part| part.bytes() > 0) {
            parts.push(part);
            done += part.bytes();
        }
        let vectors: Vec<libc::iovec> = parts
            .iter()
            .map(|part| libc::iovec { iov_base: part.base().cast(), iov_len: part.bytes() as usize })
            .collect();
        // SAFETY: the memory stays mapped for longer than the ring exists, because `self` keeps the
        // reservation.
        unsafe { self.ring.submitter().register_buffers(&vectors)? };
        self.buffers = parts;
        Ok(())
    }

    /// Returns the index of the registered buffer that contains the whole region.
    fn buffer(&self, region: Region) -> Option<u16> {
        let first = self.buffers.first()?.base() as u64;
        let index = (region.base() as u64).checked_sub(first)? / LARGEST_BUFFER;
        let buffer = self.buffers.get(usize::try_from(index).ok()?)?;
        let end = buffer.base() as u64 + buffer.bytes();
        (region.base() as u64 + region.bytes() <= end).then_some(index as u16)
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: any data that an entry points to outlives the entry. `Backend::start`
            // requires this for reads; other entries have no pointers.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            // The queue is full, although it should have room. Submitting its entries to the kernel
            // makes room.
            match self.ring.submit() {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

impl Backend for Uring {
    fn describe(&self) -> String {
        let registered = |is| if is { "registered" } else { "plain" };
        format!("io_uring, {} files, {} memory", registered(self.fixed_files), registered(!self.buffers.is_empty()))
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.event) as Arc<dyn Wake>
    }

    unsafe fn start(&mut self, read: Read) {
        let (base, bytes) = (read.into.base(), u32::try_from(read.into.bytes()).unwrap_or(u32::MAX));
        let plain = self.files.handle(read.file).map_or(-1, AsRawFd::as_raw_fd);
        let entry = match (self.buffer(read.into), self.fixed_files) {
            (Some(i), true) => opcode::ReadFixed::new(Fixed(read.file), base, bytes, i).offset(read.offset).build(),
            (Some(i), false) => opcode::ReadFixed::new(Fd(plain), base, bytes, i).offset(read.offset).build(),
            (None, true) => opcode::Read::new(Fixed(read.file), base, bytes).offset(read.offset).build(),
            (None, false) => opcode::Read::new(Fd(plain), base, bytes).offset(read.offset).build(),
        };
        self.outstanding += 1;
        if let Err(error) = self.push(&entry.user_data(read.tag)) {
            self.outstanding -= 1;
            self.refused.push(Completion { tag: read.tag, result: Err(error.raw_os_error().unwrap_or(libc::EIO)) });
        }
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if !self.refused.is_empty() {
            done.append(&mut self.refused);
            return Ok(());
        }
        if !self.armed {
            let poll = opcode::PollAdd::new(Fd(self.event.0.as_raw_fd()), libc::POLLIN as u32);
            self.push(&poll.build().user_data(WAKE))?;
            self.armed = true;
        }
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The kernel lacks resources. Processing completions frees some of them.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => {
                    self.armed = false;
                    let mut count = [0; size_of::<u64>()];
                    // The read fails only if the counter has already been read, which is harmless.
                    let _ = (&self.event.0).read(&mut count);
                }
                CANCELLATION => {}
                tag => {
                    self.outstanding = self.outstanding.saturating_sub(1);
                    done.push(Completion { tag, result: u32::try_from(entry.result()).map_err(|_| -entry.result()) });
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self) {
        // Kernels before 5.19 refuse the cancellation. The reads then end normally.
        let _ = self.push(&opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCELLATION));
        self.armed = false;
    }
}

impl Drop for Uring {
    /// Waits for outstanding reads, because they write to memory that may be freed afterwards.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.outstanding > 0 {
            if let Err(error) = self.wait(&mut done) {
                tracing::error!(%error, outstanding = self.outstanding, "a ring is closed with reads outstanding; its memory is kept");
                // The kernel may still write to this memory, so it is never freed.
                std::mem::forget(Arc::clone(&self.reservation));
                return;
            }
        }
    }
}
