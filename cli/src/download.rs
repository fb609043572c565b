//! `--download`: fetches a Hugging Face model into Hugging Face's cache with Hugging Face's own
//! program. `ixc` itself contacts no host.
//!
//! ```text
//! ixc run -hf ORG/NAME:Q4_K_M --download
//!     hf download ORG/NAME --include '*[-._/][Qq]4_[Kk]_[Mm][-.]*gguf'
//! ixc run -hf ORG/NAME --download
//!     hf download ORG/NAME --include '*.json'           and so on, see `CHECKPOINT`
//! ```
//!
//! `hf` and `huggingface-cli` take a single pattern in the same way, but several patterns in
//! different ways. So the program is called once for each pattern.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::anyhow;
use ixc_compile::hub::{Caches, DEFAULT_QUANTISATION};

use super::Usage;
use super::model_name::{self, HubFiles, HubModel};
use super::output::print_stderr;

/// Programs that download, the newer one first.
const PROGRAMS: [&str; 2] = ["hf", "huggingface-cli"];
/// Files of a model in Hugging Face's form: configuration, tokenizer, chat template, weights. The
/// small ones come first, so that a wrong name fails early.
const CHECKPOINT: [&str; 5] = ["*.json", "tokenizer*", "*.txt", "*.jinja", "model*.safetensors"];

/// Permission to download, for a command that takes a model.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DownloadChoice {
    /// Download the model `ORG/NAME[:QUANT]` if it is in no cache here, with Hugging Face's program
    /// `hf` or `huggingface-cli`, which must be installed.
    // The program reads this option before clap builds the command, because the parser of MODEL
    // needs the downloaded file.
    #[arg(long = "download", id = "download")]
    _download: bool,
}

/// Downloads a model that is in no cache.
///
/// # Errors
/// If no program is installed, the program fails, or the model is still missing afterwards.
pub fn fetch(name: &str) -> anyhow::Result<()> {
    let Some(model) = HubModel::parse(name) else { return Ok(()) };
    let calls = calls(&model);
    let by_hand = || calls.iter().map(|call| shell_words(PROGRAMS[0], call)).collect::<Vec<_>>().join("; ");
    if model.repository.starts_with('-') {
        return Err(Usage(format!("{name} is not a Hugging Face name: expected ORG/NAME or ORG/NAME:QUANT")).into());
    }
    let Some(program) = PROGRAMS.iter().find_map(|program| Some((*program, in_path(program)?))) else {
        return Err(Usage(format!(
            "--download needs Hugging Face's program `hf` (or `huggingface-cli`), and PATH has neither; \
             `pip install huggingface_hub` installs it, or run elsewhere: {}",
            by_hand()
        ))
        .into());
    };
    for call in &calls {
        let words = shell_words(program.0, call);
        print_stderr(&format!("ixc: {words}"));
        let status = run(&program.1, call).map_err(|error| anyhow!("cannot run `{words}`: {error}"))?;
        if !status.success() {
            return Err(anyhow!("`{words}` failed ({status}); by hand: {}", by_hand()));
        }
    }
    match model_name::cached_file(name) {
        Some(_) => Ok(()),
        None => Err(anyhow!("{}", still_missing(&model, &by_hand()))),
    }
}

/// Returns the error text for a download that succeeded without the model's files.
fn still_missing(model: &HubModel, by_hand: &str) -> String {
    let expected = match (&model.files, quantisation(model)) {
        (HubFiles::File(file), _) => format!("the file {file}"),
        (_, Some(quantisation)) => format!("a GGUF file with {quantisation} in its name"),
        (_, None) => "config.json and model*.safetensors".to_owned(),
    };
    let repository = &model.repository;
    let cache = Caches::of_environment().hub.unwrap_or_default();
    let others = match Caches::of_environment().files(repository) {
        others if others.is_empty() => String::new(),
        others => format!(", which has {}", others.join(", ")),
    };
    format!(
        "the download of {repository} ended, but its folder in {} lacks {expected}{others}; \
         name another quantisation as {repository}:QUANT, or another folder as HF_HUB_CACHE; the download was: {by_hand}",
        cache.display()
    )
}

/// Returns the quantisation of the GGUF file to download; `None` for other files.
fn quantisation(model: &HubModel) -> Option<&str> {
    match &model.files {
        HubFiles::Quantisation(quantisation) => Some(quantisation),
        HubFiles::Any if model.repository.to_ascii_lowercase().ends_with("gguf") => Some(DEFAULT_QUANTISATION),
        HubFiles::Any | HubFiles::File(_) => None,
    }
}

/// Returns the arguments of each call of the downloading program.
fn calls(model: &HubModel) -> Vec<Vec<String>> {
    let of = |rest: &[&str]| {
        let words = ["download", &model.repository].into_iter().chain(rest.iter().copied());
        words.map(str::to_owned).collect::<Vec<String>>()
    };
    match (&model.files, quantisation(model)) {
        (HubFiles::File(file), _) => vec![of(&[file])],
        (_, Some(quantisation)) => vec![of(&["--include", &pattern(quantisation)])],
        (_, None) => CHECKPOINT.iter().map(|pattern| of(&["--include", pattern])).collect(),
    }
}

/// Returns the pattern of the files of a quantisation, which is a whole word in any case: `Q4_K`
/// does not match `Q4_K_M`. In the names of a split model, a number follows the quantisation.
fn pattern(quantisation: &str) -> String {
    let any_case = |c: char| match c {
        c if c.is_ascii_alphabetic() => format!("[{}{}]", c.to_ascii_uppercase(), c.to_ascii_lowercase()),
        // Characters with a special meaning in patterns are put in brackets.
        '*' | '?' | '[' => format!("[{c}]"),
        c => c.to_string(),
    };
    format!("*[-._/]{}[-.]*gguf", quantisation.chars().map(any_case).collect::<String>())
}

/// Runs a downloading program. Its standard output goes to standard error, because standard output
/// is for results of the `ixc` command.
fn run(program: &PathBuf, arguments: &[String]) -> io::Result<ExitStatus> {
    let standard_error = io::stderr().as_fd().try_clone_to_owned()?;
    Command::new(program).args(arguments).stdin(Stdio::null()).stdout(standard_error).status()
}

/// Returns the path of a program in PATH.
fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|there| there.is_file() && there.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(is_program)
}

/// Returns a call as a command line for a shell.
fn shell_words(program: &str, arguments: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:".contains(c);
    let word = |word: &String| match word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    [program.to_owned()].into_iter().chain(arguments.iter().map(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn download_takes_the_named_files_only() {
        let words = |name: &str| {
            let calls = calls(&HubModel::parse(name).unwrap());
            calls.iter().map(|call| shell_words("hf", call)).collect::<Vec<_>>()
        };
        let gguf = "hf download a/m --include '*[-._/][Qq]4_[Kk]_[Mm][-.]*gguf'";
        assert_eq!(words("hf:a/m:Q4_K_M"), [gguf]);
        assert_eq!(words("a/m:q4_k_m"), [gguf]);
        assert_eq!(words("a/m-GGUF"), [gguf.replace("a/m", "a/m-GGUF")]);
        assert_eq!(words("https://huggingface.co/a/m/resolve/main/b/c.gguf?x"), ["hf download a/m b/c.gguf"]);
        let all = words("hf.co/a/m");
        assert_eq!((all.len(), &*all[4]), (5, "hf download a/m --include 'model*.safetensors'"));
        assert_eq!(shell_words("hf", &["it's".into()]), r"hf 'it'\''s'");
    }
}
