//! The stored bytes of a weight: mapped, or derived from mapped bytes on each read.

use std::sync::Arc;

use ixc_ir::derived::{Derivation, Indexed};

use crate::storage::memory::{Mapped, Region};

/// Bytes of a weight, or a part of them.
#[derive(Clone, Debug)]
pub(crate) enum WeightSource {
    /// Bytes in memory.
    Mapped(Region),
    /// Bytes derived from bytes of files.
    Derived(DerivedPart),
}

/// A part of a derived tensor, with its source files.
#[derive(Clone, Debug)]
pub(crate) struct DerivedPart {
    derived: Arc<Indexed>,
    files: Arc<[Region]>,
    offset: u64,
    bytes: u64,
}

impl From<Region> for WeightSource {
    fn from(region: Region) -> WeightSource {
        WeightSource::Mapped(region)
    }
}

/// The derived tensors of a plan with their source files. They were checked against the files'
/// lengths.
#[derive(Clone, Debug)]
pub(crate) struct DerivedTensors {
    /// Each tensor with its length in bytes.
    derived: Vec<(Arc<Indexed>, Option<u64>)>,
    files: Arc<[Region]>,
}

impl DerivedTensors {
    pub(crate) fn new(derived: &[Derivation], files: &[Mapped]) -> DerivedTensors {
        let made = |derived: &Derivation| (Arc::new(derived.clone().with_index()), derived.bytes());
        DerivedTensors {
            derived: derived.iter().map(made).collect(),
            files: files.iter().map(Mapped::region).collect(),
        }
    }

    /// Returns a part of a derived tensor.
    pub(crate) fn part(&self, number: u32, offset: u64, bytes: u64) -> Option<WeightSource> {
        let (derived, all) = self.derived.get(number as usize)?;
        let (derived, files) = (Arc::clone(derived), Arc::clone(&self.files));
        let whole = DerivedPart { derived, files, offset: 0, bytes: (*all)? };
        WeightSource::Derived(whole).part(offset, bytes)
    }
}

impl DerivedPart {
    /// Copies bytes of a file. Returns false if they are outside it.
    ///
    /// # Safety
    /// The files must be readable.
    unsafe fn fetch(&self, file: u32, offset: u64, out: &mut [u8]) -> bool {
        // SAFETY: the caller's promise.
        self.files.get(file as usize).is_some_and(|file| unsafe { copy(*file, offset, out) })
    }
}

impl WeightSource {
    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            WeightSource::Mapped(region) => region.bytes(),
            WeightSource::Derived(derived_part) => derived_part.bytes,
        }
    }

    /// Returns a part, if it is inside.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> Option<WeightSource> {
        match self {
            WeightSource::Mapped(region) => region.part(offset, bytes).map(WeightSource::Mapped),
            WeightSource::Derived(derived_part) => {
                let end = offset.checked_add(bytes)?;
                let offset = derived_part.offset.checked_add(offset)?;
                (end <= derived_part.bytes)
                    .then(|| WeightSource::Derived(DerivedPart { offset, bytes, ..derived_part.clone() }))
            }
        }
    }

    /// Copies bytes from `offset` on; for a derived tensor, these must be whole blocks of rows.
    /// Returns false if they exceed the weight.
    ///
    /// # Safety
    /// The mapped bytes, or the source files of a derived tensor, must be readable.
    #[must_use]
    pub(crate) unsafe fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        match self {
            WeightSource::Mapped(region) => {
                // SAFETY: the caller's promise.
                unsafe { copy(*region, offset, out) }
            }
            WeightSource::Derived(derived_part) => {
                let inside = offset.checked_add(out.len() as u64).is_some_and(|end| end <= derived_part.bytes);
                // SAFETY: the caller's promise.
                let fetch = |file: u32, offset: u64, out: &mut [u8]| unsafe { derived_part.fetch(file, offset, out) };
                inside && derived_part.derived.read(derived_part.offset + offset, out, &fetch)
            }
        }
    }

    /// Copies `each` bytes (the same columns) from consecutive rows of `row_bytes` bytes, until
    /// `out` is full. The first copied byte is at `offset`. Copies from a derived tensor are whole
    /// blocks. Returns false if they exceed the weight.
    ///
    /// # Safety
    /// Same as [`WeightSource::read`].
    #[must_use]
    pub(crate) unsafe fn read_rows(&self, offset: u64, row_bytes: u64, each: u64, out: &mut [u8]) -> bool {
        let WeightSource::Derived(derived_part) = self else {
            let rows = out.chunks_exact_mut((each as usize).max(1));
            // SAFETY: the caller's promise.
            return (0u64..).zip(rows).all(|(row, out)| unsafe { self.read(offset + row * row_bytes, out) });
        };
        let last = (out.len() as u64).checked_div(each).unwrap_or(0).saturating_sub(1);
        let end = last.checked_mul(row_bytes).and_then(|last| last.checked_add(offset)?.checked_add(each));
        // SAFETY: the caller's promise.
        let fetch = |file: u32, offset: u64, out: &mut [u8]| unsafe { derived_part.fetch(file, offset, out) };
        end.is_some_and(|end| end <= derived_part.bytes)
            && derived_part.derived.read_rows(derived_part.offset + offset, each, out, &fetch)
    }

    /// Releases the file pages that a derived tensor's bytes are read from. Does nothing for
    /// [`WeightSource::Mapped`].
    pub(crate) fn release(&self, files: &[Mapped]) {
        let WeightSource::Derived(derived_part) = self else { return };
        for span in derived_part.derived.spans(derived_part.offset, derived_part.bytes) {
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
    // SAFETY: the part is inside the region, which the caller promises to be readable, and is as
    // long as `out`. It is copied, because a mapped file may change and must not be borrowed.
    unsafe { out.as_mut_ptr().copy_from_nonoverlapping(part.base(), out.len()) };
    true
}
