//! Statuses, and the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ixc::error::Class;
use ixc::files::OutputError;
use ixc::grammar::GrammarError;
use ixc::runtime::engine::StepError;
use ixc::runtime::sample::{SampleError, SettingsError};
use ixc::text::template::TemplateError;
use ixc::text::tokenizer::TokenizerError;
use ixc::{CompileError, GenerationError};

/// `ixc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum IxcStatus {
    /// The call succeeded.
    Ok,
    /// [`Class::Usage`], and wrong arguments.
    Usage,
    /// [`Class::Data`].
    Data,
    /// [`Class::NoInput`].
    NoInput,
    /// [`Class::Unavailable`].
    Unavailable,
    /// [`Class::Io`].
    Io,
    /// [`Class::Interrupted`].
    Interrupted,
    /// [`Class::Failed`].
    Failed,
    /// A panic.
    Panic,
    /// A buffer that is too small.
    Buffer,
}

/// Names of the statuses, in the order of their numbers.
const NAMES: [&std::ffi::CStr; 10] =
    [c"ok", c"usage", c"data", c"no input", c"unavailable", c"io", c"interrupted", c"failed", c"panic", c"buffer"];

impl From<Class> for IxcStatus {
    fn from(class: Class) -> IxcStatus {
        match class {
            Class::Usage => IxcStatus::Usage,
            Class::Data => IxcStatus::Data,
            Class::NoInput => IxcStatus::NoInput,
            Class::Unavailable => IxcStatus::Unavailable,
            Class::Io => IxcStatus::Io,
            Class::Interrupted => IxcStatus::Interrupted,
            Class::Failed => IxcStatus::Failed,
        }
    }
}

/// Status and text of a failed call.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub status: IxcStatus,
    pub text: String,
}

impl Failure {
    /// Returns the failure of a call with a wrong argument.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure { status: IxcStatus::Usage, text: text.into() }
    }

    /// Returns the failure of a call whose buffer is too small.
    pub fn buffer(what: &str, capacity: usize, needed: usize) -> Failure {
        let text = format!("{what} has room for {capacity} elements; {needed} are needed");
        Failure { status: IxcStatus::Buffer, text }
    }
}

impl From<ixc::Error> for Failure {
    fn from(error: ixc::Error) -> Failure {
        Failure { status: error.class().into(), text: error.to_string() }
    }
}

macro_rules! through_outermost_error {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                ixc::Error::from(error).into()
            }
        }
    )*};
}

through_outermost_error!(
    CompileError,
    GenerationError,
    GrammarError,
    OutputError,
    SampleError,
    SettingsError,
    StepError,
    TemplateError,
    TokenizerError
);

/// Last failure of a thread.
struct LastFailure {
    status: IxcStatus,
    text: CString,
}

thread_local! {
    static LAST: RefCell<LastFailure> =
        RefCell::new(LastFailure { status: IxcStatus::Ok, text: CString::default() });
}

/// Stores a failure as this thread's last one, and returns its status.
fn store(Failure { status, text }: Failure) -> IxcStatus {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| last.replace(LastFailure { status, text }));
    status
}

/// Runs a function's body. Turns a panic into a failure.
fn caught<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        // A payload may panic when it is dropped.
        std::mem::forget(panic);
        Err(Failure { status: IxcStatus::Panic, text: format!("ixc panicked: {text}") })
    })
}

/// Runs a function's body. On an error or panic, stores it as this thread's last failure and
/// returns `failed`.
pub(crate) fn catch_failure<T>(failed: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    caught(body).unwrap_or_else(|failure| {
        store(failure);
        failed
    })
}

/// Runs the body of a function that returns a status. Stores an error or panic as this thread's
/// last failure.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Failure>) -> IxcStatus {
    caught(body).map_or_else(store, |()| IxcStatus::Ok)
}

/// Returns the message of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_error() -> *const c_char {
    LAST.with_borrow(|last| last.text.as_ptr())
}

/// Returns the status of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_error_status() -> IxcStatus {
    LAST.with_borrow(|last| last.status)
}

/// Returns the name of a status, or NULL if there is no such status.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_status_name(status: u32) -> *const c_char {
    NAMES.get(status as usize).map_or(std::ptr::null(), |name| name.as_ptr())
}
