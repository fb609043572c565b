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
        Remedy::Emulate => "--emulate runs the plan in the emulator, slowly",
        Remedy::EmulateKernel => "--emulate runs the kernel on any machine",
        Remedy::EmulateReplay => "without --native, the emulator runs the code",
        Remedy::CompileEmbeddings => "`ixc compile --embeddings` compiles a model for embeddings",
        Remedy::CompileText => "`ixc compile` compiles a model for text; --embeddings serves this plan as it is",
        Remedy::PredictExperts => {
            "compile the model with --prefetch router, or run the plan with --prefetch previous, frequency or auto"
        }
        Remedy::UnmapExperts => "leave --experts map out, or compile a model that has experts with --memory",
        Remedy::NameModelFile => "--model gives a plan its model file",
        Remedy::FindModelFile => "--model FILE gives the path of the model file",
        Remedy::OtherModelFile => "name the right file with --model, or compile the model again",
        Remedy::ChatTemplate => {
            let names = known::names().join(", ");
            return format!(
                "--chat-template takes the name of a template ({names}) or a file; --raw continues a prompt without a template"
            );
        }
        Remedy::LargerContext => "--ctx makes the context larger",
        Remedy::LargerStep => "`ixc compile --embeddings -b TOKENS` sets the tokens of a step",
        Remedy::ShorterPieces => "a smaller --ctx makes the pieces of the text shorter",
        Remedy::Requantise => "--allow-requantize quantises it again anyway",
        Remedy::ReplaceFile => "--force replaces the file",
        Remedy::StartOver => "--force starts the file again from the beginning",
        Remedy::SelectKernel => "give a longer part of the kernel's name, or select a kernel with --op and --layer",
        Remedy::KernelSizes => "give the dims with --dims",
        Remedy::CompareKernel => "`ixc kernel diff FILE.ix` shows what differs; --no-override-check runs it anyway",
        Remedy::WriteKernels => "`ixc compile --dump-dir D` writes a model's kernels to D/kernels",
        Remedy::WriteSpecs => "`ixc kernel show --stage ir` and `ixc compile --dump-dir` write the line with the spec",
        Remedy::FailingCommand => "--while CMD gives a command that fails for the kernel",
        Remedy::TunedFile => "name a file to write with -o, which `--tuned FILE --target TARGET` reads",
        Remedy::TunedPlace => "name a file with -o",
        Remedy::LockLess => {
            "raise the limit with `ulimit -l unlimited`, in a systemd unit with LimitMEMLOCK=infinity, in a container with --ulimit memlock=-1, \
             or leave --mlock out"
        }
        Remedy::CompileSteps => "`ixc compile` without --moe makes a plan of a whole model, which runs on its own",
        Remedy::CompileRanks => {
            "`ixc compile --ranks N` makes a plan for N ranks, and `--numa cut` divides a model file"
        }
        Remedy::CompileLayers => "`ixc compile --moe` makes a plan of expert layers",
        Remedy::StoreExperts => {
            "compile with --no-pack, or with --pack, which stores the packed experts in the plan file"
        }
        Remedy::ListModels => "`ixc inspect --support` lists all supported architectures",
        Remedy::RecordTrace => "`ixc run --trace` writes a trace",
        Remedy::UseEmbeddings => {
            "`ixc embed`, `ixc serve --embeddings` and `ixc compile --embeddings` take such a model"
        }
        Remedy::ServeEmbeddings => "`ixc serve --embeddings` serves the embeddings of any model",
        Remedy::AllowHost => "to add a name, start the server with --allowed-host",
        Remedy::AllowOrigin => "to allow pages of an origin, start the server with --allowed-origin",
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
