//! The last error of each thread, kept until the thread's next failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function's body. On an error or panic, stores the text as this thread's last error and
/// returns `failed`.
pub(crate) fn guarded<T>(failed: T, body: impl FnOnce() -> Result<T, String>) -> T {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("ixc failed: {}", text.unwrap_or_default()))
    });
    result.unwrap_or_else(|error| {
        let text = CString::new(error.replace('\0', " ")).unwrap_or_default();
        LAST.with(|last| last.replace(text));
        failed
    })
}

/// Returns the message of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
