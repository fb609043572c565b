//! Errors as exceptions: the classes of `ixc/_errors.py`.

use ixc::error::Class;
use ixc::served_model::Refusal;
use pyo3::prelude::*;
use serde_json::Value;

/// Returns the code of a class, as `ixc/_errors.py` names it.
fn code(class: Class) -> &'static str {
    match class {
        Class::Usage => "usage",
        Class::Data => "data",
        Class::NoInput => "no_input",
        Class::Unavailable => "unavailable",
        Class::Io => "io",
        Class::Interrupted => "interrupted",
        Class::Failed => "failed",
    }
}

/// Returns the exception of a class with this message.
pub(crate) fn exception(py: Python<'_>, class: Class, message: &str) -> PyErr {
    let make = || {
        let make = py.import("ixc._errors")?.getattr("of_code")?;
        make.call1((code(class), message))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// Returns the exception for wrong arguments.
pub(crate) fn usage(py: Python<'_>, message: &str) -> PyErr {
    exception(py, Class::Usage, message)
}

/// Returns the exception for an error of any crate.
pub(crate) fn library_error(py: Python<'_>, error: &ixc::Error) -> PyErr {
    exception(py, error.class(), &error.to_string())
}

/// Returns the exception for a refused request.
pub(crate) fn refusal_error(py: Python<'_>, refusal: &Refusal) -> PyErr {
    let class = match refusal {
        Refusal::Busy { .. } | Refusal::Later { .. } | Refusal::Ending => Class::Unavailable,
        Refusal::Failed { .. } => Class::Failed,
        Refusal::NoSpace { .. } => Class::Io,
        _ => Class::Data,
    };
    exception(py, class, &refusal.to_string())
}

/// Returns the exception for an HTTP answer with this status and body.
pub(crate) fn answer_error(py: Python<'_>, status: u16, body: &Value) -> PyErr {
    let class = match status {
        429 | 503 => Class::Unavailable,
        507 => Class::Io,
        400..=499 => Class::Data,
        _ => Class::Failed,
    };
    let message = body["error"]["message"].as_str().map_or_else(|| body.to_string(), str::to_owned);
    exception(py, class, &message)
}
