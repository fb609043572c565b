//! Arguments of this process, and the program that it starts for helper processes.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use ixc_text::template::own_program;

/// Arguments and helper program in a process of another program.
#[derive(Debug)]
struct Invocation {
    /// Arguments, beginning with the program's name.
    arguments: Vec<OsString>,
    /// Program that is started for helper processes, if the embedding program named one.
    helper: Option<PathBuf>,
}

/// Invocation by a library or an extension module; `None` if the program runs in its own process.
static EMBEDDED: RwLock<Option<Invocation>> = RwLock::new(None);

/// Sets the invocation in a process of another program.
pub(crate) fn set(arguments: Vec<OsString>, helper: Option<PathBuf>) {
    *EMBEDDED.write().unwrap_or_else(PoisonError::into_inner) = Some(Invocation { arguments, helper });
}

/// Returns the arguments, beginning with the program's name.
pub(crate) fn arguments() -> Vec<OsString> {
    let embedded = EMBEDDED.read().unwrap_or_else(PoisonError::into_inner);
    embedded.as_ref().map_or_else(|| std::env::args_os().collect(), |invocation| invocation.arguments.clone())
}

/// Returns whether the process belongs to another program.
pub(crate) fn is_embedded() -> bool {
    EMBEDDED.read().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Returns the program that is started for helpers.
///
/// # Errors
/// If the system does not provide the program's path, or the embedding program named no helper.
pub(crate) fn helper_program() -> io::Result<PathBuf> {
    let embedded = EMBEDDED.read().unwrap_or_else(PoisonError::into_inner);
    match embedded.as_ref().map(|invocation| invocation.helper.clone()) {
        None => own_program(),
        Some(Some(helper)) => Ok(helper),
        Some(None) => Err(io::Error::new(io::ErrorKind::NotFound, "the program `ixc` is not installed")),
    }
}
