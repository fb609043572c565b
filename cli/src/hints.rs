//! Table of command-line options that help against errors. Errors of the libraries name only an
//! abstract remedy, because programs that embed the libraries have no such options.

use std::path::Path;

use ixc_failure::Remedy;
use ixc_text::template::known;

use super::library_error::LibraryError;
use super::printable::Printable;
use super::suggestions;

/// Returns advice on an error, if an option or another path helps.
pub fn hint(error: &LibraryError<'_>) -> Option<String> {
    let paths = error.missing_file.and_then(near_paths);
    paths.or_else(|| error.remedy.map(of_remedy))
}

/// Returns the options for a remedy.
pub fn of_remedy(remedy: Remedy) -> String {
    let text = match remedy {
        Remedy::ChooseAtCompile => "give the option to `ixc compile`, or run the model file",
        Remedy::Emulate => "--emulate runs it in the emulator, slowly",
        Remedy::EmulateKernel => "--emulate runs it anywhere",
        Remedy::EmulateReplay => "without --native it is emulated",
        Remedy::CompileEmbeddings => "`ixc compile --embeddings` does that",
        Remedy::CompileText => "`ixc compile` does that; --embeddings serves the plan as it is",
        Remedy::PredictExperts => "compile it with --prefetch router, or choose previous, frequency or auto",
        Remedy::UnmapExperts => "leave --experts map out, or compile a model that has experts with --memory",
        Remedy::NameModelFile => "--model names the model file of a plan",
        Remedy::FindModelFile => "--model FILE gives its path",
        Remedy::OtherModelFile => "name the right file with --model, or compile the model again",
        Remedy::ChatTemplate => {
            let names = known::names().join(", ");
            return format!(
                "--chat-template names one ({names}) or a file with one; --raw continues a prompt without one"
            );
        }
        Remedy::LargerContext => "--ctx makes it larger",
        Remedy::LargerStep => "`ixc compile --embeddings -b TOKENS` does that",
        Remedy::ShorterPieces => "--ctx makes pieces shorter",
        Remedy::Requantise => "--allow-requantize does it anyway",
        Remedy::ReplaceFile => "--force replaces it",
        Remedy::StartOver => "--force starts it again",
        Remedy::SelectKernel => "give more of the kernel's name, or select with --op and --layer",
        Remedy::KernelSizes => "give them with --dims",
        Remedy::CompareKernel => "`ixc kernel diff FILE.ix` shows what differs; --no-override-check runs it anyway",
        Remedy::WriteKernels => "`ixc compile --dump-dir D` writes a model's kernels to D/kernels",
        Remedy::WriteSpecs => "`ixc kernel show --stage ir` and `ixc compile --dump-dir` write it",
        Remedy::FailingCommand => "--while CMD gives a command that fails for it",
        Remedy::TunedFile => "name a file to write with -o, which `--tuned FILE --target TARGET` reads",
        Remedy::TunedPlace => "name a file with -o",
        Remedy::LockLess => {
            "raise the limit with `ulimit -l unlimited`, in a systemd unit with LimitMEMLOCK=infinity, in a container with --ulimit memlock=-1, \
             or leave --mlock out"
        }
        Remedy::CompileSteps => "`ixc compile` without --moe makes a plan that runs",
        Remedy::CompileRanks => "`ixc compile --ranks N` makes one, and `--numa cut` divides a model file",
        Remedy::CompileLayers => "`ixc compile --moe` makes a plan of experts",
        Remedy::StoreExperts => {
            "compile with --no-pack, or with --pack so that the plan file has them as kernels read them"
        }
        Remedy::ListModels => "`ixc inspect --support` lists all",
        Remedy::RecordTrace => "`ixc run --trace` writes one",
        Remedy::UseEmbeddings => "`ixc embed`, `ixc serve --embeddings` and `ixc compile --embeddings` take it",
        Remedy::ServeEmbeddings => "`ixc serve --embeddings` serves the embeddings of any model",
        Remedy::AllowHost => "to add one, start the server with --allowed-host",
        Remedy::AllowOrigin => "to allow them, start the server with --allowed-origin",
        Remedy::SlotFolder => "start the server with --slot-save-path",
    };
    text.to_owned()
}

/// Returns a hint that names existing paths similar to a missing one.
fn near_paths(missing: &Path) -> Option<String> {
    let names: Vec<String> =
        suggestions::paths(missing).iter().map(|path| Printable(&path.to_string_lossy()).to_string()).collect();
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}
