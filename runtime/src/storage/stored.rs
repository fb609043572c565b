//! The bytes of a weight as it is stored: mapped, or made of what is mapped when they are read.

use std::sync::Arc;

use ixc_ir::derived::Derived;

use crate::memory::{Mapped, Region};

/// A weight's bytes, or a part of them.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// They lie in memory.
    Mapped(Region),
    /// They are made of bytes of files.
    Derived(Making),
}

/// A part of a derived tensor, and the files that it is made of.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    derived: Arc<Derived>,
    files: Arc<[Region]>,
    offset: u64,
    bytes: u64,
}

impl From<Region> for Stored {
    fn from(region: Region) -> Stored {
        Stored::Mapped(region)
    }
}

/// What derived tensors of a plan are made of; they were checked against the files' lengths.
#[derive(Clone, Debug)]
pub(crate) struct Makers {
    derived: Vec<Arc<Derived>>,
    files: Arc<[Region]>,
}

impl Makers {
    pub(crate) fn new(derived: &[Derived], files: &[Mapped]) -> Makers {
        let derived = derived.iter().cloned().map(Arc::new).collect();
        Makers { derived, files: files.iter().map(Mapped::region).collect() }
    }

    /// Bytes of a derived tensor.
    pub(crate) fn part(&self, number: u32, offset: u64, bytes: u64) -> Option<Stored> {
        let derived = self.derived.get(number as usize)?;
        let all = derived.bytes()?;
        let whole = Making { derived: Arc::clone(derived), files: Arc::clone(&self.files), offset: 0, bytes: all };
        Stored::Derived(whole).part(offset, bytes)
    }
}

impl Stored {
    /// How many.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Stored::Mapped(region) => region.bytes(),
            Stored::Derived(making) => making.bytes,
        }
    }

    /// Some of them, where they are all there.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> Option<Stored> {
        match self {
            Stored::Mapped(region) => region.part(offset, bytes).map(Stored::Mapped),
            Stored::Derived(making) => {
                let end = offset.checked_add(bytes)?;
                let offset = making.offset.checked_add(offset)?;
                (end <= making.bytes).then(|| Stored::Derived(Making { offset, bytes, ..making.clone() }))
            }
        }
    }

    /// Copies bytes from `offset` on: whole blocks of rows, of what is derived. False where they are not there.
    ///
    /// # Safety
    /// What they lie in, or are made of, must be readable.
    #[must_use]
    pub(crate) unsafe fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        match self {
            Stored::Mapped(region) => {
                // SAFETY: the caller's promise.
                unsafe { copy(*region, offset, out) }
            }
            Stored::Derived(making) => {
                let inside = offset.checked_add(out.len() as u64).is_some_and(|end| end <= making.bytes);
                let fetch = |file: u32, offset: u64, out: &mut [u8]| {
                    // SAFETY: the caller's promise.
                    making.files.get(file as usize).is_some_and(|file| unsafe { copy(*file, offset, out) })
                };
                inside && making.derived.read(making.offset + offset, out, &fetch)
            }
        }
    }

    /// Gives back the pages of the files that bytes of a derived tensor are made of; nothing for others.
    pub(crate) fn release(&self, files: &[Mapped]) {
        let Stored::Derived(making) = self else { return };
        for span in making.derived.spans(making.offset, making.bytes) {
            if let Some(file) = files.get(span.file as usize) {
                file.release(span.offset, span.bytes);
            }
        }
    }
}

/// Copies bytes of a region.
///
/// # Safety
/// The region must be readable.
unsafe fn copy(region: Region, offset: u64, out: &mut [u8]) -> bool {
    let Some(part) = region.part(offset, out.len() as u64) else { return false };
    // SAFETY: the part lies in the region, which the caller says is readable, and is as long as `out`. It is copied, since a mapped file may
    // change and must not be borrowed.
    unsafe { out.as_mut_ptr().copy_from_nonoverlapping(part.base(), out.len()) };
    true
}
