//! Exit status and error message of a failed command.
//!
//! | status | means |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed for another reason, such as a bug |
//! | 2 | the command line is wrong, or an output is an input or a file of another kind |
//! | 3 | `bench --compare` found a row that is slower beyond noise |
//! | 65 | a model, plan, IR text, request or setting is malformed or unsupported (`EX_DATAERR`) |
//! | 66 | a file is missing or may not be read (`EX_NOINPUT`) |
//! | 69 | the CPU lacks a feature, or generated code is forbidden (`EX_UNAVAILABLE`) |
//! | 74 | reading or writing failed (`EX_IOERR`) |
//! | 130 | ended by Ctrl-C |

use std::io;

use ixc_failure::Class;
use ixc_runtime::engine::FollowError;
use ixc_transport::TransportError;
use ixc_transport::handshake::HandshakeError;

use super::bench::compare::Slower;
use super::library_error::LibraryError;
use super::settings::arguments::with_sources;
use super::settings::error::ConfigError;
use super::{BadInput, Usage, interrupt, output};

/// Exit status if a row is slower beyond noise.
const SLOWER: u8 = 3;

/// Returns the exit status of a kind of failure.
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

/// Returns the exit status of a failure, and its message; no message if the reader of standard
/// output has closed it.
pub fn failure(failure: &anyhow::Error) -> (u8, Option<String>) {
    let said = |class| (status(class), Some(output::describe(failure)));
    for cause in failure.chain() {
        if let Some(error) = LibraryError::downcast(cause) {
            return if error.is_closed_standard_output { (0, None) } else { said(error.class) };
        }
        if cause.is::<interrupt::Interrupted>() {
            return (status(Class::Interrupted), None);
        }
        if cause.is::<Slower>() {
            return (SLOWER, Some(output::describe(failure)));
        }
        if cause.is::<Usage>() {
            let (status, message) = said(Class::Usage);
            return (status, message.map(with_sources));
        }
        if let Some(error) = cause.downcast_ref::<ConfigError>() {
            return said(error.class());
        }
        if let Some(error) = cause.downcast_ref::<FollowError>() {
            return said(error.class());
        }
        if let Some(error) = cause.downcast_ref::<HandshakeError>() {
            return said(error.class());
        }
        if let Some(error) = cause.downcast_ref::<TransportError>() {
            return said(error.class());
        }
        if cause.is::<BadInput>() {
            return said(Class::Data);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            // An I/O error without a path is an error of standard output.
            return match error.kind() {
                io::ErrorKind::BrokenPipe => (0, None),
                _ => (status(Class::Io), Some(format!("error: cannot write standard output: {error}"))),
            };
        }
    }
    said(Class::Failed)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ixc_codegen::module::CodegenError;
    use ixc_compile::Error as CompileError;
    use ixc_error::Error;
    use ixc_files::{FileKind, NotRegular, OutputError, ReadError};
    use ixc_generate::Error as GenerationError;
    use ixc_model_files::checkpoint::CheckpointError;
    use ixc_passes::error::PassError;
    use ixc_passes::manager::StopError;
    use ixc_runtime::engine::StepError;
    use ixc_runtime::execute::ExecuteError;
    use ixc_runtime::file::FileError;
    use ixc_runtime::load::LoadError;
    use ixc_runtime::storage::memory::MemoryError;
    use ixc_runtime::streaming::StreamError;

    use super::*;

    #[test]
    fn wrapped_error_class_determines_exit_status() {
        let path = || PathBuf::from("model");
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let pipe = || ReadError::Io { path: path(), source: NotRegular { found: FileKind::Pipe }.into() };
        let no_pass = || PassError::NoModel { pass: "lower" };
        let memory = |bytes| LoadError::Memory(MemoryError { what: "weights", bytes, source: full() });
        let unmapped = || CodegenError::ExecutableMemory { source: missing() };
        let cases: Vec<(Error, u8)> = vec![
            (Error::io("model".as_ref(), "open")(missing()), 66),
            (Error::io("model".as_ref(), "write")(full()), 74),
            (pipe().into(), 66),
            // The folder of the checkpoint exists, so the status is not that of a missing file.
            (CheckpointError::Read(pipe()).into(), 74),
            (OutputError::NoName { path: path() }.into(), 2),
            (
                FileError::Output(OutputError::NotRegular { path: path(), found: FileKind::Pipe, kind: "plan" }).into(),
                74,
            ),
            (FileError::Source(Box::new(LoadError::NoWeights)).into(), 65),
            (FileError::Source(Box::new(LoadError::ModelFile { path: path(), source: missing() })).into(), 66),
            (FileError::Source(Box::new(LoadError::Codegen(Box::new(unmapped())))).into(), 65),
            (LoadError::Codegen(Box::new(unmapped())).into(), 69),
            (unmapped().into(), 69),
            (LoadError::Threads { found: 0 }.into(), 2),
            (LoadError::NoModelFile { path: path() }.into(), 66),
            (memory(1 << 46).into(), 1),
            (memory(1 << 47).into(), 65),
            (StepError::NoTokens.into(), 65),
            (StepError::Execute(ExecuteError::Stream(StreamError::TakenBack)).into(), 1),
            (GenerationError::Drive { source: Box::new(StreamError::TakenBack) }.into(), 74),
            (no_pass().into(), 2),
            // A file names the unknown pass, so the file is invalid data.
            (CompileError::Stop { path: path(), source: Box::new(StopError::Pass(no_pass())) }.into(), 65),
        ];
        for (error, expected) in cases {
            let text = error.to_string();
            assert_eq!(status(error.class()), expected, "{text}");
            assert_eq!(failure(&error.into()).0, expected, "{text}");
        }
    }
}
