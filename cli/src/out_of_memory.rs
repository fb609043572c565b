//! The end of the process when an allocation fails: one line on standard error and an exit status.
//!
//! The standard library aborts instead, and may print a backtrace, which allocates and takes locks.
//! This module allocates nothing and takes no lock. One thread writes the line, and all others wait
//! for the end.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

use ixc_failure::Class;

use super::failure::status;

/// The system's allocator, except that it ends the process if there is no memory.
pub struct ExitIfExhausted;

// SAFETY: every call goes to the system's allocator with the caller's arguments, and its result is
// returned unchanged. A null pointer is never returned.
unsafe impl GlobalAlloc for ExitIfExhausted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is the same as that of
        // `System`'s.
        exit_if_null(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the memory comes from the system's
        // allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is the same as that of
        // `System`'s.
        exit_if_null(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`; the memory comes from the system's
        // allocator.
        exit_if_null(unsafe { System.realloc(memory, layout, bytes) }, bytes)
    }
}

/// Returns the memory, or ends the process if the pointer is null.
fn exit_if_null(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        end(bytes);
    }
    memory
}

/// Max length of the line, in bytes: the text and the twenty digits of the largest number.
const LINE: usize = 256;

#[cold]
fn end(bytes: usize) -> ! {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        let mut line = Line { bytes: [0; LINE], len: 0 };
        line.push(b"error: out of memory: a memory allocation of ");
        line.push_number(bytes);
        line.push(b" bytes failed; raise the limit (ulimit -v, the control group), or give --memory, a smaller --ctx or fewer threads\n");
        // SAFETY: `write` and `_exit` allocate nothing, and the line has `len` bytes. A failed
        // write changes nothing.
        unsafe {
            libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len);
            libc::_exit(status(Class::Failed).into());
        }
    }
    loop {
        // SAFETY: it waits for a signal; the first thread's `_exit` ends this one.
        unsafe { libc::pause() };
    }
}

/// Line that needs no allocation.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }

    fn push_number(&mut self, number: usize) {
        let mut digits = [0; 20];
        let (mut rest, mut first) = (number, digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_an_allocation() {
        for number in [0, 7, 10, 4096, usize::MAX] {
            let mut line = Line { bytes: [0; LINE], len: 0 };
            line.push_number(number);
            assert_eq!(std::str::from_utf8(&line.bytes[..line.len]).unwrap(), number.to_string());
        }
    }
}
