//! MODEL on the command line: a file or the built-in demo model, and advice if it is neither.
//!
//! All commands use one rule. MODEL is a path; `demo`, or no MODEL, is the built-in demo model. For
//! a file of that name, write `./demo`. `ORG/NAME`, `ORG/NAME:QUANT` and llama.cpp's `-hf ORG/NAME`
//! are models in the cache of Hugging Face's tools.
//!
//! This program contacts no host. With `--download`, another program fetches a model that is in no
//! cache ([`download`](super::download)). Otherwise, and for other registries, the error shows a
//! command that fetches it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::builder::{OsStringValueParser, TypedValueParser};
use ixc_compile::hub::Caches;

/// Name of the built-in demo model.
pub const DEMO: &str = "demo";

/// A model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelName {
    /// The built-in demo model.
    Demo,
    /// A file.
    Path(PathBuf),
}

impl ModelName {
    /// Returns the path, or `None` for the demo model.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ModelName::Demo => None,
            ModelName::Path(path) => Some(path),
        }
    }

    /// Returns clap's parser of a model name.
    pub fn parser() -> impl TypedValueParser<Value = ModelName> {
        OsStringValueParser::new().try_map(|name: OsString| ModelName::parse(&name))
    }

    /// Parses a name; the error is a text. During [`with_missing`], a name of a Hugging Face model
    /// that is in no cache becomes a path.
    ///
    /// # Errors
    /// If the name belongs to a registry and no such model is in a cache.
    pub fn parse(name: &OsStr) -> Result<ModelName, String> {
        if name == DEMO {
            return Ok(ModelName::Demo);
        }
        let path = Path::new(name);
        if path.exists() {
            return Ok(ModelName::Path(path.to_owned()));
        }
        if let Some(found) = name.to_str().and_then(cached_file) {
            return Ok(ModelName::Path(found));
        }
        let text = name.to_str().unwrap_or_default();
        if HubModel::parse(text).is_some()
            && let Some(missing) = &mut *missing()
        {
            missing.push(text.to_owned());
            return Ok(ModelName::Path(path.to_owned()));
        }
        match download_advice(text) {
            Some(advice) => Err(advice),
            None => Ok(ModelName::Path(path.to_owned())),
        }
    }
}

/// Names of Hugging Face models that are in no cache; `None` refuses such names.
static MISSING: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn missing() -> std::sync::MutexGuard<'static, Option<Vec<String>>> {
    MISSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `parse`, which parses a command line. Meanwhile, accepts names of Hugging Face models that
/// are in no cache. Returns the result and these names.
pub fn with_missing<T>(parse: impl FnOnce() -> T) -> (T, Vec<String>) {
    *missing() = Some(Vec::new());
    let parsed = parse();
    let mut names = missing().take().unwrap_or_default();
    // The command line is parsed more than once, so names repeat.
    names.sort_unstable();
    names.dedup();
    (parsed, names)
}

/// Hugging Face model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// The repository, `ORG/NAME`.
    pub repository: String,
    /// Files of the model in the repository.
    pub files: HubFiles,
}

/// Files of a model in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubFiles {
    /// A file.
    File(String),
    /// The GGUF files of a quantisation.
    Quantisation(String),
    /// A GGUF file or a folder of safetensors.
    Any,
}

impl HubModel {
    /// Returns the model of a name; `None` if the name is a path or of another registry.
    pub fn parse(name: &str) -> Option<HubModel> {
        let name = match on_hub(name) {
            Some(name) => name,
            None if is_path(name) || name.contains("://") || name.contains(char::is_whitespace) => return None,
            None => match name.split('/').collect::<Vec<_>>()[..] {
                // An existing folder means that the name is a path.
                [organisation, repository] if !repository.is_empty() && !Path::new(organisation).exists() => name,
                _ => return None,
            },
        };
        let name = name.trim_end_matches('/');
        let words: Vec<&str> = name.splitn(5, '/').collect();
        let (repository, files) = match (words.as_slice(), name.split_once(':')) {
            ([organisation, repository, "resolve" | "blob", _, file], _) => {
                let file = file.split('?').next().unwrap_or_default();
                (format!("{organisation}/{repository}"), HubFiles::File(file.to_owned()))
            }
            ([organisation, repository, _, ..], _) => (format!("{organisation}/{repository}"), HubFiles::Any),
            (_, Some((repository, quant))) => (repository.to_owned(), HubFiles::Quantisation(quant.to_owned())),
            (_, None) => (name.to_owned(), HubFiles::Any),
        };
        Some(HubModel { repository, files })
    }

    /// Returns advice on fetching the model.
    fn advice(&self) -> String {
        let repository = &self.repository;
        let files = match &self.files {
            HubFiles::File(file) => {
                return format!(
                    "it is not in a Hugging Face cache of this machine, and ixc downloads nothing without --download: `hf download {repository} {file}` fetches it"
                );
            }
            HubFiles::Quantisation(quant) => format!("*{quant}*.gguf"),
            HubFiles::Any => "*.gguf".to_owned(),
        };
        let there = Caches::of_environment().files(repository);
        if !there.is_empty() {
            return format!(
                "the Hugging Face cache of this machine only has other files of this repository ({}), and ixc downloads nothing without --download: \
                 `hf download {repository} --include \"{files}\"` fetches it",
                there.join(", ")
            );
        }
        format!(
            "it is not in a Hugging Face cache of this machine, and ixc downloads nothing without --download: `hf download {repository} --include \"{files}\"` fetches it (`hf download {repository}` as safetensors)"
        )
    }
}

/// Returns whether a name looks like the path of a file.
fn is_path(name: &str) -> bool {
    let is_file = [".gguf", ".ixp", ".json"].iter().any(|end| name.ends_with(end));
    is_file || name.starts_with(['/', '.', '~'])
}

/// Prefixes of a Hugging Face name.
const HUB: [&str; 5] = ["hf:", "hf.co/", "huggingface.co/", "https://huggingface.co/", "https://hf.co/"];

/// Returns a Hugging Face name without its prefix, if it has one.
fn on_hub(name: &str) -> Option<&str> {
    HUB.iter().find_map(|prefix| name.strip_prefix(prefix)).map(|rest| rest.trim_start_matches('/'))
}

/// Returns the cached Hugging Face model of this name, if there is one.
pub fn cached_file(name: &str) -> Option<PathBuf> {
    let named = on_hub(name);
    if named.is_none() && (name.starts_with(['/', '.', '~']) || name.contains(char::is_whitespace)) {
        return None;
    }
    let caches = Caches::of_environment();
    let words: Vec<&str> = named.unwrap_or(name).trim_end_matches('/').splitn(5, '/').collect();
    match words[..] {
        [organisation, repository, "resolve" | "blob", _, file] => {
            caches.file(&format!("{organisation}/{repository}"), file.split('?').next().unwrap_or_default())
        }
        [organisation, repository] => {
            let (repository, quantisation) = repository
                .split_once(':')
                .map_or((repository, None), |(name, quantisation)| (name, Some(quantisation)));
            caches.find(&format!("{organisation}/{repository}"), quantisation)
        }
        _ => None,
    }
}

/// Returns advice on fetching a model with a registry's name; `None` if the name is an ordinary
/// path.
fn download_advice(name: &str) -> Option<String> {
    if let Some(model) = HubModel::parse(name) {
        return Some(model.advice());
    }
    if name.starts_with("https://") || name.starts_with("http://") {
        return Some(format!(
            "ixc downloads nothing from URLs; `curl -LO {name}` fetches the file, then pass its path as MODEL"
        ));
    }
    if is_path(name) {
        return None;
    }
    if name.contains(char::is_whitespace) {
        let advice = "there is no such file; give a text after MODEL, which may be `demo`, or with -p";
        return (!name.contains('/')).then(|| advice.to_owned());
    }
    match name.split('/').collect::<Vec<_>>()[..] {
        [one] if one.split_once(':').is_some_and(|(model, tag)| !model.is_empty() && !tag.is_empty()) => Some(
            "no such file, and ixc has no registry and downloads nothing: `hf download ORG/NAME --include \"*.gguf\"` \
                  fetches a model from Hugging Face, then pass its file as MODEL"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Options of llama.cpp that name a Hugging Face model. clap would read `-hf` as `-h`, and print
/// the help.
const HUB_OPTIONS: [&str; 6] = ["-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "--hf"];
/// Options of llama.cpp that name a file in a Hugging Face repository.
const FILE_OPTIONS: [&str; 2] = ["-hff", "--hf-file"];
/// Options whose value may begin with a hyphen, because it is text.
const TEXT_OPTIONS: [&str; 5] = ["-p", "--prompt", "--system", "--system-prompt", "--text"];

/// Replaces llama.cpp's options for a Hugging Face model (`-hf ORG/NAME`, and `-hff FILE` for one
/// of its files) by MODEL.
///
/// # Errors
/// A text, if an option has no value.
pub fn without_hub_options(arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let (mut kept, mut repository, mut file) = (Vec::new(), None, None);
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        let word = argument.to_str().unwrap_or_default();
        if word == "--" {
            kept.push(argument);
            kept.extend(rest);
            break;
        }
        let is_text = kept.last().is_some_and(|before: &OsString| TEXT_OPTIONS.iter().any(|option| before == option));
        let (option, value) = word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        let Some(option) = HUB_OPTIONS.iter().find(|known| **known == option && !is_text) else {
            kept.push(argument);
            continue;
        };
        let value = value.map(str::to_owned).or_else(|| rest.next()?.into_string().ok());
        let value = value.filter(|value| !value.starts_with('-') && !value.is_empty());
        let value = value.ok_or_else(|| format!("{option} takes a name: {option} ORG/NAME"))?;
        match FILE_OPTIONS.contains(option) {
            true => file = Some(value),
            false => repository = Some((kept.len(), value)),
        }
    }
    let Some((at, repository)) = repository else {
        return match file {
            Some(_) => Err("the model of the file is missing; -hf ORG/NAME names it".to_owned()),
            None => Ok(kept),
        };
    };
    let name = match file {
        Some(file) => format!("hf:{repository}/resolve/main/{file}"),
        None => format!("hf:{repository}"),
    };
    kept.insert(at, name.into());
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_names_are_distinguished_from_paths() {
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
        assert!(parse("The borrow checker").unwrap_err().contains("or with -p"));
        assert_eq!(parse("no such model.gguf"), Ok(ModelName::Path("no such model.gguf".into())));
    }

    #[test]
    fn options_of_the_hub_become_the_model() {
        let option = |words: &[&str]| {
            let words = without_hub_options(words.iter().map(OsString::from).collect())?;
            Ok::<_, String>(words.iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" "))
        };
        for (words, right) in [
            (&["run", "-hf", "a/b", "-p", "x"][..], "run hf:a/b -p x"),
            (&["run", "-p", "x", "--hf-repo=a/b:Q4_0"], "run -p x hf:a/b:Q4_0"),
            (&["run", "-hf", "a/b", "--hf-file", "c/d.gguf"], "run hf:a/b/resolve/main/c/d.gguf"),
            (&["run", "-p", "-hf"], "run -p -hf"),
            (&["tokenize", "--", "-hf", "a/b"], "tokenize -- -hf a/b"),
            (&["run", "-h"], "run -h"),
            (&[], ""),
        ] {
            assert_eq!(option(words), Ok(right.to_owned()));
        }
        for words in [&["run", "-hf"][..], &["run", "-hf", "-p"], &["run", "--hf="], &["run", "-hff", "x.gguf"]] {
            assert!(option(words).unwrap_err().contains("ORG/NAME"), "{words:?}");
        }
    }
}
