//! Which option mends what a library's error is about. Libraries know no options: who embeds them has none.

use std::io;
use std::path::Path;

use ixc::Error;
use ixc::error::batch::BatchError;
use ixc::eval::record::RecordError;
use ixc::files::{OutputError, ReadError};
use ixc::frontend::gguf::GgufError;
use ixc::frontend::template::known;
use ixc::kernels::KernelError;
use ixc::kernels::bundle::BundleError;
use ixc::quantise::QuantiseError;
use ixc::runtime::file::FileError;
use ixc::runtime::load::LoadError;

use super::near;
use super::printable::Printable;

/// What helps against an error, where an option does.
pub fn hint(error: &Error) -> Option<String> {
    if let Some(hint) = missing(error).and_then(near_paths) {
        return Some(hint);
    }
    let hint = match error {
        Error::PlanSays { .. } => "give the option to `ixc compile`, or run the model file",
        Error::NeedsCpu { .. } => "--emulate runs it in the emulator, slowly",
        Error::OtherOutput { embeddings: true } => "`ixc compile --embeddings` does that",
        Error::OtherOutput { embeddings: false } => "`ixc compile` does that, and --embeddings serves what it is",
        Error::NoEarlyRouters => "compile it with --prefetch router, or choose previous, frequency or auto",
        Error::NoGroups => "leave --experts map out, or compile a model that has experts with --memory",
        Error::NotPlan { .. } => "--model names the model file of a plan",
        Error::NoTemplate => {
            let names = known::names().join(", ");
            return Some(format!(
                "--chat-template names one ({names}) or a file with one; --raw continues a prompt without one"
            ));
        }
        Error::NoModelFile { .. } => "--model FILE says where it is",
        Error::Context { context, model, .. } | Error::Prompt { context, model, .. } if model > context => {
            "--ctx makes it larger"
        }
        Error::Quantise(error) => match &**error {
            QuantiseError::Quantised { .. } => "--allow-requantize does it all the same",
            QuantiseError::Output(error) => of_output(error)?,
            _ => return None,
        },
        Error::ShortText { .. } => "--ctx makes pieces shorter",
        Error::Record(RecordError::Other { .. } | RecordError::Malformed { .. }) => "--force begins it anew",
        Error::Batch(BatchError::Other { .. } | BatchError::Malformed { .. }) => "--force begins it anew",
        Error::Load(error) => of_load(error)?,
        Error::PlanFile(FileError::Source(error)) => of_load(error)?,
        Error::Output(error) | Error::PlanFile(FileError::Output(error)) => of_output(error)?,
        Error::Kernel(error) => match &**error {
            KernelError::NeedsDims { .. } => "give them with --dims",
            KernelError::Missing { .. } => "--emulate runs it anywhere",
            KernelError::Departs { path: Some(_), .. } => {
                "`ixc kernel diff FILE.ix` shows what differs; --no-override-check runs it all the same"
            }
            KernelError::Bundle(BundleError::Missing { .. }) => "without --native it is emulated",
            _ => return None,
        },
        _ => return None,
    };
    Some(hint.into())
}

/// Returns the missing file of an error.
fn missing(error: &Error) -> Option<&Path> {
    let (path, source) = match error {
        Error::Gguf(GgufError::Io { path, source, .. }) => (&**path, source),
        Error::Io { path, source, .. } | Error::Read(ReadError::Io { path, source }) => (path.as_path(), source),
        _ => return None,
    };
    (source.kind() == io::ErrorKind::NotFound).then_some(path)
}

/// Returns a hint that names existing paths similar to a missing one.
fn near_paths(missing: &Path) -> Option<String> {
    let names: Vec<String> =
        near::paths(missing).iter().map(|path| Printable(&path.to_string_lossy()).to_string()).collect();
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}

fn of_load(error: &LoadError) -> Option<&'static str> {
    match error {
        LoadError::Lock(_) => Some(
            "raise the limit with `ulimit -l unlimited`, in a systemd unit with LimitMEMLOCK=infinity, in a container with --ulimit memlock=-1, \
             or leave --mlock out",
        ),
        LoadError::NoSteps => Some("`ixc compile` without --moe makes a plan that runs"),
        LoadError::NoLayers => Some("`ixc compile --moe` makes a plan of experts"),
        LoadError::NoModelFile { .. } => Some("--model FILE says where it is"),
        LoadError::OtherModel { .. } => Some("name the right file with --model, or compile the model again"),
        LoadError::PackedExperts { .. } => {
            Some("compile with --no-pack, or with --pack so that the plan file has them as kernels read them")
        }
        _ => None,
    }
}

fn of_output(error: &OutputError) -> Option<&'static str> {
    matches!(error, OutputError::Foreign { .. }).then_some("--force replaces it")
}
