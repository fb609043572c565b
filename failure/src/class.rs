//! Kinds of failures.

/// The kind of a failure, which determines a program's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The request contradicts itself, is out of range, or would overwrite a protected file.
    Usage,
    /// A model, a plan, IR text or a request is malformed or not supported.
    Data,
    /// A file is missing or may not be read.
    NoInput,
    /// The CPU lacks a feature of the target, or the system forbids generated code.
    Unavailable,
    /// Reading or writing failed.
    Io,
    /// The user interrupted the work.
    Interrupted,
    /// Other failures, such as a lack of memory or a bug.
    Failed,
}
