//! A backend with injected faults. It runs on the drive's own thread, and the test controls the
//! order and the times of the reads.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};

use super::super::backend::{Backend, CANCELED, Completion, Read};
use super::super::files::Files;
use super::super::queue::Wake;

/// Outcome of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The read succeeds.
    Good,
    /// The read returns at most this many bytes.
    Short(u64),
    /// The read fails with this error number.
    Errno(i32),
    /// The read waits until the gate is open, and then succeeds.
    Stuck,
}

/// A gate at which stuck reads wait. A test opens it to let them end. Opening it also wakes the
/// drive.
#[derive(Default)]
pub struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    pub fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }
}

impl Wake for Gate {
    fn wake(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// A backend with injected faults. It calls `fate` once for each read that it starts.
pub struct Planted<F> {
    pub files: Arc<Files>,
    pub gate: Arc<Gate>,
    pub fate: F,
    /// Whether [`Backend::cancel`] ends stuck reads.
    pub cancels: bool,
    pub waiting: Vec<(Read, Fate)>,
}

impl<F: FnMut(&Read) -> Fate> Planted<F> {
    pub fn new(files: &Arc<Files>, gate: &Arc<Gate>, fate: F) -> Planted<F> {
        Planted { files: Arc::clone(files), gate: Arc::clone(gate), fate, cancels: true, waiting: Vec::new() }
    }

    /// Completes a read with the given outcome.
    ///
    /// # Safety
    /// All conditions of [`Backend::start`] hold.
    unsafe fn carry_out(&self, read: &Read, fate: Fate) -> Result<u32, i32> {
        let bytes = match fate {
            Fate::Errno(errno) => return Err(errno),
            Fate::Short(max) => max.min(read.into.bytes()),
            Fate::Good | Fate::Stuck => read.into.bytes(),
        };
        // SAFETY: the region is mapped, and no other code accesses it until the completion is
        // returned.
        let into = unsafe { std::slice::from_raw_parts_mut(read.into.base(), bytes as usize) };
        let read = self.files.handle(read.file).unwrap().read_at(into, read.offset);
        read.map(|bytes| bytes as u32).map_err(|error| error.raw_os_error().unwrap())
    }
}

impl<F: FnMut(&Read) -> Fate> Backend for Planted<F> {
    fn describe(&self) -> String {
        "planted".into()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.gate) as Arc<dyn Wake>
    }

    unsafe fn start(&mut self, read: Read) {
        let fate = (self.fate)(&read);
        self.waiting.push((read, fate));
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut state = self.gate.state.lock().unwrap();
        loop {
            let open = state.0;
            let (ends, stuck): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.waiting).into_iter().partition(|(_, fate)| open || *fate != Fate::Stuck);
            self.waiting = stuck;
            done.extend(ends.iter().map(|(read, fate)| {
                // SAFETY: the caller of `start` guarantees the conditions until the completion is
                // returned.
                let result = unsafe { self.carry_out(read, *fate) };
                Completion { tag: read.tag, result }
            }));
            if !done.is_empty() || std::mem::take(&mut state.1) {
                return Ok(());
            }
            state = self.gate.changed.wait(state).unwrap();
        }
    }

    fn cancel(&mut self) {
        if self.cancels {
            self.waiting.iter_mut().for_each(|(_, fate)| *fate = Fate::Errno(CANCELED));
        }
    }
}
