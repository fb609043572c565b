//! Uniform access to the errors of all library crates in a chain of causes.

use std::error::Error as StdError;
use std::path::Path;

use ixc_compile::Error as CompileError;
use ixc_failure::{Class, Remedy};
use ixc_generate::Error as GenerationError;
use ixc_measure::Error as MeasureError;
use ixc_serve::Error as ServeError;
use ixc_workbench::Error as WorkbenchError;

/// The properties of a library's error.
pub struct LibraryError<'e> {
    /// The kind of failure.
    pub class: Class,
    /// The change that may help.
    pub remedy: Option<Remedy>,
    /// The path of a file that does not exist.
    pub missing_file: Option<&'e Path>,
    /// Whether the reader of standard output has closed it.
    pub is_closed_standard_output: bool,
}

impl<'e> LibraryError<'e> {
    /// Returns the properties of a cause, if it is the error of a library.
    pub fn downcast(cause: &'e (dyn StdError + 'static)) -> Option<LibraryError<'e>> {
        macro_rules! ask {
            ($($error:ty),+) => {
                $(
                    if let Some(error) = cause.downcast_ref::<$error>() {
                        return Some(LibraryError {
                            class: error.class(),
                            remedy: error.remedy(),
                            missing_file: error.missing_file(),
                            is_closed_standard_output: error.is_closed_standard_output(),
                        });
                    }
                )+
            };
        }
        ask!(ixc_error::Error, CompileError, GenerationError, MeasureError, WorkbenchError, ServeError);
        None
    }
}
