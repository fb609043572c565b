//! What a failed command ends with: its exit status, and what it says.
//!
//! | status | means |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed for another reason, such as a bug |
//! | 2 | the command line is wrong, or an output is an input or a file of another kind |
//! | 3 | `bench --compare` found a row that is slower beyond noise |
//! | 65 | a model, plan, IR text or request is malformed, or asks for what is not supported (`EX_DATAERR`) |
//! | 66 | a file is missing or may not be read (`EX_NOINPUT`) |
//! | 69 | this CPU lacks a feature that the target needs, or the system forbids generated code (`EX_UNAVAILABLE`) |
//! | 74 | reading or writing failed (`EX_IOERR`) |
//! | 130 | ended by Ctrl-C |

use std::io;

use ixc::error::Class;

use super::bench::compare::Slower;
use super::{BadInput, Usage, interrupt, output};

/// The exit status where a measurement is slower than another beyond noise.
const SLOWER: u8 = 3;

/// The exit status of a kind of failure.
pub const fn status(class: Class) -> u8 {
    match class {
        Class::Failed => 1,
        Class::Usage => 2,
        Class::Data => 65,
        Class::NoInput => 66,
        Class::Unavailable => 69,
        Class::Io => 74,
        Class::Interrupted => interrupt::STATUS,
    }
}

/// The exit status of a failure, and what to say about it: nothing where the reader of standard output went away.
pub fn failure(failure: &anyhow::Error) -> (u8, Option<String>) {
    let said = |class| (status(class), Some(output::describe(failure)));
    for cause in failure.chain() {
        if let Some(error) = cause.downcast_ref::<ixc::Error>() {
            return match error {
                ixc::Error::Output(error) if error.is_closed_standard_output() => (0, None),
                error => said(error.class()),
            };
        }
        if cause.is::<interrupt::Interrupted>() {
            return (status(Class::Interrupted), None);
        }
        if cause.is::<Slower>() {
            return (SLOWER, Some(output::describe(failure)));
        }
        if cause.is::<Usage>() {
            return said(Class::Usage);
        }
        if cause.is::<BadInput>() {
            return said(Class::Data);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            // Only standard output's errors come without a path around them.
            return match error.kind() {
                io::ErrorKind::BrokenPipe => (0, None),
                _ => (status(Class::Io), Some(format!("error: cannot write standard output: {error}"))),
            };
        }
    }
    said(Class::Failed)
}
