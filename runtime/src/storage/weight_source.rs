//! The stored bytes of a weight. They are mapped from a file, or derived from mapped bytes each
//! time they are read.

use std::sync::Arc;

use ixc_ir::derived::{Derivation, Indexed};

use crate::storage::memory::{Mapped, Region};

/// The stored bytes of a weight, or of a part of a weight.
#[derive(Clone, Debug)]
pub(crate) enum WeightSource {
    /// Bytes that are mapped from a file.
    Mapped(Region),
    /// Bytes that are derived from bytes of files.
    Derived(DerivedPart),
}

/// A byte range of a derived tensor, with the files that the tensor is derived from.
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

/// The derived tensors of a plan, with the files that they are derived from. They were checked
/// against the lengths of the files.
#[derive(Clone, Debug)]
pub(crate) struct DerivedTensors {
    /// Each derived tensor with its length in bytes.
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

    /// Returns the source of a byte range of a derived tensor; `None` if the range is not inside
    /// the tensor.
    pub(crate) fn part(&self, number: u32, offset: u64, bytes: u64) -> Option<WeightSource> {
        let (derived, all) = self.derived.get(number as usize)?;
        let (derived, files) = (Arc::clone(derived), Arc::clone(&self.files));
        let whole = DerivedPart { derived, files, offset: 0, bytes: (*all)? };
        WeightSource::Derived(whole).part(offset, bytes)
    }
}

impl DerivedPart {
    /// Copies bytes of a source file. Returns false if they are outside the file.
    ///
    /// # Safety
    /// The mappings of the source files must be readable.
    unsafe fn fetch(&self, file: u32, offset: u64, out: &mut [u8]) -> bool {
        // SAFETY: the caller guarantees that the files are readable.
        self.files.get(file as usize).is_some_and(|file| unsafe { copy(*file, offset, out) })
    }
}

impl WeightSource {
    /// Returns the length of the source in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            WeightSource::Mapped(region) => region.bytes(),
            WeightSource::Derived(derived_part) => derived_part.bytes,
        }
    }

    /// Returns a byte range of the source; `None` if it is not inside the source.
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

    /// Copies bytes from `offset` on to `out`. For a derived tensor, these must be whole format
    /// blocks of rows. Returns false if they lie outside the source.
    ///
    /// # Safety
    /// The mapped bytes, or the source files of a derived tensor, must be readable.
    #[must_use]
    pub(crate) unsafe fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        match self {
            WeightSource::Mapped(region) => {
                // SAFETY: the caller guarantees that the region is readable.
                unsafe { copy(*region, offset, out) }
            }
            WeightSource::Derived(derived_part) => {
                let inside = offset.checked_add(out.len() as u64).is_some_and(|end| end <= derived_part.bytes);
                // SAFETY: the caller guarantees that the source files are readable.
                let fetch = |file: u32, offset: u64, out: &mut [u8]| unsafe { derived_part.fetch(file, offset, out) };
                inside && derived_part.derived.read(derived_part.offset + offset, out, &fetch)
            }
        }
    }

    /// Copies `each` bytes from each of several consecutive rows of `row_bytes` bytes, until `out`
    /// is full. All copies are of the same columns; the first copied byte is at `offset`. For a
    /// derived tensor, each copy must be whole format blocks. Returns false if the bytes lie
    /// outside the source.
    ///
    /// # Safety
    /// See [`WeightSource::read`].
    #[must_use]
    pub(crate) unsafe fn read_rows(&self, offset: u64, row_bytes: u64, each: u64, out: &mut [u8]) -> bool {
        let WeightSource::Derived(derived_part) = self else {
            let rows = out.chunks_exact_mut((each as usize).max(1));
            // SAFETY: the caller guarantees that the region is readable.
            return (0u64..).zip(rows).all(|(row, out)| unsafe { self.read(offset + row * row_bytes, out) });
        };
        let last = (out.len() as u64).checked_div(each).unwrap_or(0).saturating_sub(1);
        let end = last.checked_mul(row_bytes).and_then(|last| last.checked_add(offset)?.checked_add(each));
        // SAFETY: the caller guarantees that the source files are readable.
        let fetch = |file: u32, offset: u64, out: &mut [u8]| unsafe { derived_part.fetch(file, offset, out) };
        end.is_some_and(|end| end <= derived_part.bytes)
            && derived_part.derived.read_rows(derived_part.offset + offset, each, out, &fetch)
    }

    /// Releases the pages of the source files from which a derived tensor's bytes were read. Does
    /// nothing for [`WeightSource::Mapped`].
    pub(crate) fn release(&self, files: &[Mapped]) {
        let WeightSource::Derived(derived_part) = self else { return };
        for span in derived_part.derived.spans(derived_part.offset, derived_part.bytes) {
            if let Some(file) = files.get(span.file as usize) {
                file.release(span.offset, span.bytes);
            }
        }
    }
}

/// Copies bytes of a region from `offset` on to `out`. Returns false if they lie outside the
/// region.
///
/// # Safety
/// The region must be readable.
unsafe fn copy(region: Region, offset: u64, out: &mut [u8]) -> bool {
    let Some(part) = region.part(offset, out.len() as u64) else { return false };
    // SAFETY: the part is inside the region, which the caller guarantees to be readable, and is as
    // long as `out`. It is copied, because a mapped file may change and must not be borrowed.
    unsafe { out.as_mut_ptr().copy_from_nonoverlapping(part.base(), out.len()) };
    true
}
