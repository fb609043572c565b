//! MODEL on the command line: a file, or the built-in demo model; and what to say where it is neither.
//!
//! One rule for all commands: MODEL is a path; `demo`, or no MODEL, is the built-in demo model. (A file of that name is `./demo`.) Nothing
//! is downloaded, so names of registries and llama.cpp's `-hf` are errors that say how to fetch a model.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};

/// What stands for the built-in demo model.
const DEMO: &str = "demo";

/// A model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelName {
    /// The built-in one.
    Demo,
    /// A file.
    Path(PathBuf),
}

impl ModelName {
    /// Its path, unless it is the demo model.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ModelName::Demo => None,
            ModelName::Path(path) => Some(path),
        }
    }

    /// As clap takes it.
    pub fn parser() -> impl TypedValueParser<Value = ModelName> {
        OsStringValueParser::new().try_map(|name: OsString| ModelName::parse(&name))
    }

    fn parse(name: &OsStr) -> Result<ModelName, String> {
        if name == DEMO {
            return Ok(ModelName::Demo);
        }
        let path = Path::new(name);
        if path.exists() {
            return Ok(ModelName::Path(path.to_owned()));
        }
        match name.to_str().and_then(elsewhere) {
            Some(advice) => Err(advice),
            None => Ok(ModelName::Path(path.to_owned())),
        }
    }
}

/// How to fetch a model that is named as registries name them; `None` where the name is a path like any other.
fn elsewhere(name: &str) -> Option<String> {
    let hub = ["hf:", "hf.co/", "huggingface.co/", "https://huggingface.co/", "https://hf.co/"];
    if let Some(rest) = hub.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        return Some(hub_advice(rest.trim_start_matches('/')));
    }
    if name.starts_with("https://") || name.starts_with("http://") {
        return Some(format!("ixc downloads nothing; `curl -LO {name}` fetches it, then give the file"));
    }
    let is_file = [".gguf", ".ixp", ".json"].iter().any(|end| name.ends_with(end));
    if is_file || name.starts_with(['/', '.', '~']) || name.contains(char::is_whitespace) {
        return None;
    }
    match name.split('/').collect::<Vec<_>>()[..] {
        // A folder that is there means a path.
        [organisation, repository] if !repository.is_empty() && !Path::new(organisation).exists() => {
            Some(hub_advice(name))
        }
        [one] if one.split_once(':').is_some_and(|(model, tag)| !model.is_empty() && !tag.is_empty()) => Some(
            "no such file, and ixc has no registry and downloads nothing: `hf download ORG/NAME --include \"*.gguf\"` \
                  fetches a model from Hugging Face, then give the file"
                .to_owned(),
        ),
        _ => None,
    }
}

/// How to fetch a model of Hugging Face: `ORG/NAME`, `ORG/NAME:QUANT`, which names the files, or the address of one of its files,
/// `ORG/NAME/resolve/REVISION/FILE`.
fn hub_advice(name: &str) -> String {
    let name = name.trim_end_matches('/');
    let words: Vec<&str> = name.splitn(5, '/').collect();
    let (repository, files) = match (words.as_slice(), name.split_once(':')) {
        ([organisation, repository, "resolve" | "blob", _, file], _) => {
            let file = file.split('?').next().unwrap_or_default();
            return format!(
                "ixc downloads nothing: `hf download {organisation}/{repository} {file}` fetches it, then give the file"
            );
        }
        ([organisation, repository, _, ..], _) => (format!("{organisation}/{repository}"), "*.gguf".to_owned()),
        (_, Some((repository, quant))) => (repository.to_owned(), format!("*{quant}*.gguf")),
        (_, None) => (name.to_owned(), "*.gguf".to_owned()),
    };
    format!("ixc downloads nothing: `hf download {repository} --include \"{files}\"` fetches it, then give the file")
}

/// Options of llama.cpp that name a model of Hugging Face. clap would read `-hf` as `-h`, and print the help.
const HUB_OPTIONS: [&str; 6] = ["-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "--hf"];
/// Options whose value may begin with a hyphen: what follows them is text.
const TEXT_OPTIONS: [&str; 5] = ["-p", "--prompt", "--system", "--system-prompt", "--text"];

/// What to say where the arguments ask for a model of Hugging Face.
pub fn hub_option(arguments: &[OsString]) -> Option<String> {
    let words: Vec<&str> = arguments.iter().map(|argument| argument.to_str().unwrap_or_default()).collect();
    let words = words.split(|word| *word == "--").next().unwrap_or_default();
    let is_text = |at: usize| {
        at.checked_sub(1).and_then(|before| words.get(before)).is_some_and(|word| TEXT_OPTIONS.contains(word))
    };
    words.iter().enumerate().filter(|(at, _)| !is_text(*at)).find_map(|(at, word)| {
        let (option, value) = word.split_once('=').map_or((*word, None), |(option, value)| (option, Some(value)));
        let option = HUB_OPTIONS.iter().find(|known| **known == option)?;
        let value =
            value.or_else(|| words.get(at + 1).copied()).filter(|value| !value.starts_with('-') && !value.is_empty());
        Some(format!("{option} {}: {}", value.unwrap_or_default(), hub_advice(value.unwrap_or("ORG/NAME"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_registries_are_told_from_paths() {
        let parse = |name: &str| ModelName::parse(OsStr::new(name));
        assert_eq!(parse("demo"), Ok(ModelName::Demo));
        for path in
            ["./demo", "no-such.gguf", "src/none", "/none/at", "../a/b", "~/model", "plain", "C:\\models\\x.gguf"]
        {
            assert_eq!(parse(path), Ok(ModelName::Path(path.into())));
        }
        for (name, command) in [
            ("hf:Qwen/Qwen3-30B-A3B-GGUF", "`hf download Qwen/Qwen3-30B-A3B-GGUF --include \"*.gguf\"`"),
            ("hf://a/b:Q4_K_M", "`hf download a/b --include \"*Q4_K_M*.gguf\"`"),
            ("https://huggingface.co/a/b/", "`hf download a/b --include"),
            ("https://huggingface.co/a/b/tree/main", "`hf download a/b --include"),
            ("https://huggingface.co/a/b/resolve/main/c/d.gguf?download=true", "`hf download a/b c/d.gguf`"),
            ("nobody/nothing", "`hf download nobody/nothing --include"),
            ("nobody/nothing:Q8_0", "*Q8_0*.gguf"),
            ("qwen3:30b", "`hf download ORG/NAME"),
            ("https://example.org/m.gguf", "`curl -LO https://example.org/m.gguf`"),
        ] {
            let said = parse(name).unwrap_err();
            assert!(said.contains(command) && said.contains("downloads nothing"), "{name}: {said}");
        }
    }

    #[test]
    fn options_of_the_hub_are_found_and_texts_left_alone() {
        let option = |words: &[&str]| hub_option(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(
            option(&["run", "-hf", "a/b", "-p", "x"])
                .unwrap()
                .contains("-hf a/b: ixc downloads nothing: `hf download a/b ")
        );
        assert!(option(&["run", "--hf-repo=a/b:Q4_0"]).unwrap().contains("*Q4_0*"));
        assert!(option(&["run", "-hf"]).unwrap().contains("ORG/NAME"));
        for words in [&["run", "-p", "-hf"][..], &["run", "-h"], &["tokenize", "--", "-hf", "a/b"], &[]] {
            assert_eq!(option(words), None, "{words:?}");
        }
    }
}
