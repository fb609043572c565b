//! gdb's JIT interface ("JIT Compilation Interface" in its manual): a list of in-memory ELF files,
//! and a function in which gdb sets a breakpoint. While a module of kernels exists, gdb's `bt`
//! shows the names of its kernels and continues to their callers.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// Values of [`Descriptor::action`]: the change made to the entry [`Descriptor::relevant`].
const NOTHING: u32 = 0;
const ADDED: u32 = 1;
const REMOVED: u32 = 2;

/// A file in gdb's list: `jit_code_entry` of its JIT interface.
#[repr(C)]
struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    file: *const u8,
    bytes: u64,
}

/// The list of files: `jit_descriptor` of gdb's JIT interface.
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

/// Head of gdb's list of files. gdb finds it by this symbol. Only this module accesses it, under
/// [`LIST`].
#[unsafe(no_mangle)]
static mut __jit_debug_descriptor: Descriptor =
    Descriptor { version: 1, action: NOTHING, relevant: ptr::null_mut(), first: ptr::null_mut() };

/// Function in which gdb sets its breakpoint.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __jit_debug_register_code() {
    // Forces all writes to the list to happen before a call of this function, and keeps the call
    // from being optimised away.
    std::hint::black_box(&raw const __jit_debug_descriptor as *const c_void);
}

/// Lock for changing the list.
static LIST: Mutex<()> = Mutex::new(());

/// A file registered with gdb until this is dropped.
#[derive(Debug)]
pub struct GdbRegistration {
    entry: *mut Entry,
    /// The file that the entry points to.
    _file: Box<[u8]>,
}

// SAFETY: the entry is accessed only while `LIST` is held, and the file is only read.
unsafe impl Send for GdbRegistration {}
// SAFETY: as for `Send`; a shared reference gives no access.
unsafe impl Sync for GdbRegistration {}

impl GdbRegistration {
    /// Registers a file with gdb.
    pub(crate) fn new(file: Vec<u8>) -> GdbRegistration {
        let file = file.into_boxed_slice();
        let _guard = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: every list entry was leaked by this function and not yet freed, and `LIST` is
        // held.
        let entry = unsafe {
            let first = (&raw const __jit_debug_descriptor.first).read();
            let entry = Box::into_raw(Box::new(Entry {
                next: first,
                previous: ptr::null_mut(),
                file: file.as_ptr(),
                bytes: file.len() as u64,
            }));
            if !first.is_null() {
                (*first).previous = entry;
            }
            (&raw mut __jit_debug_descriptor.first).write(entry);
            notify_debugger(entry, ADDED);
            entry
        };
        GdbRegistration { entry, _file: file }
    }
}

impl Drop for GdbRegistration {
    fn drop(&mut self) {
        let _guard = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `new`; nothing refers to the entry after this call.
        unsafe {
            let Entry { next, previous, .. } = *self.entry;
            if previous.is_null() {
                (&raw mut __jit_debug_descriptor.first).write(next);
            } else {
                (*previous).next = next;
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
            notify_debugger(self.entry, REMOVED);
            drop(Box::from_raw(self.entry));
        }
    }
}

/// Records a change for gdb and calls the function with gdb's breakpoint.
///
/// # Safety
/// `LIST` is held, and `new` allocated the entry.
unsafe fn notify_debugger(entry: *mut Entry, action: u32) {
    // SAFETY: the caller holds `LIST`, so no other thread writes to the descriptor.
    unsafe {
        (&raw mut __jit_debug_descriptor.relevant).write(entry);
        (&raw mut __jit_debug_descriptor.action).write(action);
    }
    __jit_debug_register_code();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<u64> {
        let _guard = LIST.lock().unwrap();
        let mut found = Vec::new();
        // SAFETY: as in `new`.
        unsafe {
            let mut at = (&raw const __jit_debug_descriptor.first).read();
            let mut previous = ptr::null_mut();
            while !at.is_null() {
                assert!((*at).previous == previous);
                found.push((*at).bytes);
                (previous, at) = (at, (*at).next);
            }
        }
        found
    }

    #[test]
    fn gdb_list_holds_registered_files_in_any_drop_order() {
        let [a, b, c] = [1, 2, 3].map(|bytes| GdbRegistration::new(vec![0; bytes]));
        assert_eq!(files(), [3, 2, 1]);
        drop(b);
        assert_eq!(files(), [3, 1]);
        drop(c);
        drop(a);
        assert_eq!(files(), [0_u64; 0]);
    }
}
