//! Checks of arguments: texts, arrays, structs with sizes, buffers and pointers for results.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use crate::error::Failure;

/// Length of a text that ends with 0: `IXC_TERMINATED`.
const TERMINATED: usize = usize::MAX;
/// Max size of a struct with options. A larger size means that the caller did not set the size
/// field.
const MAX_STRUCT_BYTES: usize = 4096;
/// Bytes of the size field of a [`SizedStruct`].
const SIZE_BYTES: usize = size_of::<usize>();

/// A struct whose first field is its size in bytes, as a `usize`.
///
/// # Safety
/// The type is `repr(C)` and its first field is the size. Any bytes are a valid value.
pub(crate) unsafe trait SizedStruct: Copy {}

/// Returns `count` elements from `at` on.
///
/// # Safety
/// If `count` is not 0 and `at` not null, `count` elements lie at `at`, and do not change while
/// they are used.
pub(crate) unsafe fn slice<'a, T>(what: &str, at: *const T, count: Option<usize>) -> Result<&'a [T], Failure> {
    let fits = |count: &usize| count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    let count =
        count.filter(fits).ok_or_else(|| Failure::usage(format!("{what}: more elements than memory can hold")))?;
    match (count, at.is_null(), at.is_aligned()) {
        (0, ..) => Ok(&[]),
        (_, false, true) => {
            // SAFETY: the caller meets the conditions of `# Safety`. The pointer is not null, is
            // aligned, and the slice is no longer than any object.
            Ok(unsafe { std::slice::from_raw_parts(at, count) })
        }
        (_, true, _) => Err(Failure::usage(format!("{what} is NULL"))),
        (_, false, false) => Err(misaligned_failure(what, at)),
    }
}

fn misaligned_failure<T>(what: &str, at: *const T) -> Failure {
    Failure::usage(format!("{what} is at address {at:p}, which is not a multiple of {}", align_of::<T>()))
}

/// Returns the text that begins at `at` and ends with 0.
///
/// # Safety
/// `at` is null, or the text ends with 0 and does not change while it is used.
pub(crate) unsafe fn string<'a>(what: &str, at: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { text(what, at, TERMINATED) }
}

/// Returns the text that begins at `at`, or `None` for null.
///
/// # Safety
/// See [`string`].
pub(crate) unsafe fn optional_string<'a>(what: &str, at: *const c_char) -> Result<Option<&'a str>, Failure> {
    // SAFETY: the caller meets the conditions of `# Safety`.
    if at.is_null() { Ok(None) } else { unsafe { string(what, at) }.map(Some) }
}

/// Returns the text of `bytes` bytes at `at`.
///
/// # Safety
/// `at` is null, or has that many bytes, or ends with 0 if `bytes` is [`TERMINATED`]. The text does
/// not change while it is used.
pub(crate) unsafe fn text<'a>(what: &str, at: *const c_char, bytes: usize) -> Result<&'a str, Failure> {
    let bytes = match bytes {
        TERMINATED if at.is_null() => return Err(Failure::usage(format!("{what} is NULL"))),
        // SAFETY: the caller meets the conditions of `# Safety`. The pointer is not null.
        TERMINATED => unsafe { CStr::from_ptr(at) }.to_bytes(),
        // SAFETY: the caller meets the conditions of `# Safety`.
        bytes => unsafe { slice(what, at.cast::<u8>(), Some(bytes)) }?,
    };
    std::str::from_utf8(bytes)
        .map_err(|error| Failure::usage(format!("{what} is not UTF-8: byte {} is invalid", error.valid_up_to())))
}

/// Returns `count` texts, which end with 0 or have the lengths in `bytes`.
///
/// # Safety
/// `at` has `count` pointers, and `bytes` is null or has `count` lengths. Each text is as for
/// [`text`].
pub(crate) unsafe fn texts<'a>(
    what: &str,
    at: *const *const c_char,
    bytes: *const usize,
    count: usize,
) -> Result<Vec<&'a str>, Failure> {
    // SAFETY: the caller meets the conditions of `# Safety`.
    let all = unsafe { slice(what, at, Some(count)) }?;
    let lengths = match bytes.is_null() {
        true => vec![TERMINATED; count],
        // SAFETY: the caller meets the conditions of `# Safety`.
        false => unsafe { slice("bytes", bytes, Some(count)) }?.to_vec(),
    };
    let each = |(number, (&at, bytes)): (usize, (&*const c_char, usize))| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { text(&format!("{what}[{number}]"), at, bytes) }
    };
    all.iter().zip(lengths).enumerate().map(each).collect()
}

/// Returns the target of a handle, or an error for null.
pub(crate) fn not_null<'a, T>(what: &str, found: Option<&'a T>) -> Result<&'a T, Failure> {
    found.ok_or_else(|| Failure::usage(format!("{what} is NULL")))
}

/// Returns the number at the beginning of a struct, its size.
///
/// # Safety
/// `at` points to a number.
unsafe fn size_at<T: SizedStruct>(what: &str, at: *const T) -> Result<usize, Failure> {
    // SAFETY: the caller meets the conditions of `# Safety`. The struct begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    match size {
        SIZE_BYTES..=MAX_STRUCT_BYTES => Ok(size),
        _ => Err(Failure::usage(format!(
            "{what}->size is {size}; expected the sizeof of the struct, {} bytes",
            size_of::<T>()
        ))),
    }
}

/// Reads a struct of options. Fields that the caller's older struct lacks are 0. For null, all
/// fields are 0.
///
/// # Errors
/// When a newer caller sets a field that this library does not know.
///
/// # Safety
/// `at` is null, or points to as many bytes as its first field says.
pub(crate) unsafe fn read_struct<T: SizedStruct>(what: &str, at: *const T) -> Result<T, Failure> {
    let mut read = MaybeUninit::<T>::zeroed();
    if !at.is_null() {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let size = unsafe { size_at(what, at) }?;
        let known = size.min(size_of::<T>());
        // SAFETY: the caller guarantees `size` bytes at `at`; `read` has room for `known`.
        unsafe { at.cast::<u8>().copy_to_nonoverlapping(read.as_mut_ptr().cast(), known) };
        // SAFETY: the caller guarantees `size` bytes at `at`.
        let unknown = unsafe { std::slice::from_raw_parts(at.cast::<u8>().add(known), size - known) };
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Failure::usage(format!(
                "{what} has fields that this version of the library does not know; use a newer library or an older header"
            )));
        }
    }
    // SAFETY: all bytes are initialised, and any bytes are a value of the type.
    Ok(unsafe { read.assume_init() })
}

/// Writes the first bytes of a struct, as many as the caller's struct has.
///
/// # Safety
/// `at` is null, or points to as many bytes as its first field says.
pub(crate) unsafe fn write_sized<T: SizedStruct>(what: &str, at: *mut T, value: &T) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::usage(format!("{what} is NULL")));
    }
    // SAFETY: the caller meets the conditions of `# Safety`.
    let size = unsafe { size_at(what, at.cast_const()) }?;
    let (skipped, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: the caller guarantees `size` bytes at `at`, and `known` is at least `skipped`.
    unsafe { from.add(skipped).copy_to_nonoverlapping(at.cast::<u8>().add(skipped), known - skipped) };
    Ok(())
}

/// Pointer to the caller's memory for a result.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Checks that the pointer is neither null nor misaligned.
    pub fn new(what: &str, at: *mut T) -> Result<Place<T>, Failure> {
        match (at.is_null(), at.is_aligned()) {
            (true, _) => Err(Failure::usage(format!("{what} is NULL"))),
            (_, false) => Err(misaligned_failure(what, at.cast_const())),
            _ => Ok(Place(at)),
        }
    }

    /// Writes the result.
    ///
    /// # Safety
    /// The memory has room for `value`.
    pub unsafe fn write(&self, value: T) {
        // SAFETY: the caller meets the conditions of `# Safety`. The pointer is not null and is
        // aligned.
        unsafe { self.0.write(value) };
    }
}

/// Pointer to the caller's memory for a new handle, which is null until the handle exists.
pub(crate) struct HandlePlace<T>(Place<*mut T>);

impl<T> HandlePlace<T> {
    /// Checks the address `at` for a handle, and writes null there.
    ///
    /// # Safety
    /// `at` is null, or has room for a pointer.
    pub unsafe fn new(what: &str, at: *mut *mut T) -> Result<HandlePlace<T>, Failure> {
        let place = Place::new(what, at)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.write(std::ptr::null_mut()) };
        Ok(HandlePlace(place))
    }

    /// Writes a handle for this value.
    ///
    /// # Safety
    /// The memory still has room for a pointer.
    pub unsafe fn give(&self, value: T) {
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { self.0.write(Box::into_raw(Box::new(value))) };
    }
}

/// Frees a handle. Does nothing for null.
///
/// # Safety
/// `at` is null, or came from [`HandlePlace::give`] and is not used again.
pub(crate) unsafe fn free<T>(at: *mut T) {
    crate::error::catch_failure((), || {
        if !at.is_null() {
            // SAFETY: the caller guarantees that this is the only pointer to the box.
            drop(unsafe { Box::from_raw(at) });
        }
        Ok(())
    });
}

/// Buffer of the caller for elements whose number the caller may not know.
pub(crate) struct Buffer<T> {
    what: &'static str,
    at: *mut T,
    capacity: usize,
    length: Place<usize>,
}

impl<T: Copy> Buffer<T> {
    /// Checks a buffer, and the pointer to the number of elements.
    pub fn new(what: &'static str, at: *mut T, capacity: usize, length: *mut usize) -> Result<Buffer<T>, Failure> {
        let length = Place::new("the pointer for the length", length)?;
        match (at.is_null(), at.is_aligned()) {
            (true, _) if capacity > 0 => Err(Failure::usage(format!("{what} is NULL, but its capacity is not 0"))),
            (false, false) => Err(misaligned_failure(what, at.cast_const())),
            _ => Ok(Buffer { what, at, capacity, length }),
        }
    }

    /// Writes the number of elements, and returns whether the buffer has room for them. With a null
    /// buffer, the caller only queries the number.
    ///
    /// # Errors
    /// [`IxcStatus::Buffer`](crate::error::IxcStatus::Buffer).
    ///
    /// # Safety
    /// The buffer and the pointer to the number are as the C function requires.
    pub unsafe fn has_room(&self, elements: usize, terminator: usize) -> Result<bool, Failure> {
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { self.length.write(elements) };
        match elements.checked_add(terminator) {
            _ if self.at.is_null() => Ok(false),
            Some(needed) if needed <= self.capacity => Ok(true),
            needed => Err(Failure::buffer(self.what, self.capacity, needed.unwrap_or(usize::MAX))),
        }
    }

    /// Writes elements and their number.
    ///
    /// # Errors
    /// [`IxcStatus::Buffer`](crate::error::IxcStatus::Buffer). Only the number is written then.
    ///
    /// # Safety
    /// See [`Buffer::has_room`].
    pub unsafe fn fill(&self, elements: &[T]) -> Result<(), Failure> {
        // SAFETY: the caller meets the conditions of `# Safety`.
        if unsafe { self.has_room(elements.len(), 0) }? {
            // SAFETY: there is room for the elements, which belong to Rust and do not overlap it.
            unsafe { self.at.copy_from_nonoverlapping(elements.as_ptr(), elements.len()) };
        }
        Ok(())
    }
}

impl Buffer<u8> {
    /// Writes bytes and a terminating 0, which their number does not include.
    ///
    /// # Errors
    /// See [`Buffer::fill`].
    ///
    /// # Safety
    /// See [`Buffer::has_room`].
    pub unsafe fn fill_text(&self, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: the caller meets the conditions of `# Safety`.
        if unsafe { self.has_room(bytes.len(), 1) }? {
            // SAFETY: there is room for the bytes and the terminating 0. The bytes belong to Rust.
            unsafe {
                self.at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                self.at.add(bytes.len()).write(0);
            }
        }
        Ok(())
    }
}
