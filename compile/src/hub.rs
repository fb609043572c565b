//! Models that other tools have downloaded to this machine: the caches of Hugging Face's tools and
//! of llama.cpp.
//!
//! ```text
//! ~/.cache/huggingface/hub/models--ORG--NAME/refs/main                     the name of a snapshot
//! ~/.cache/huggingface/hub/models--ORG--NAME/snapshots/SNAPSHOT/…          its files, as links
//! ~/.cache/llama.cpp/ORG_NAME_FILE.gguf
//! ```
//!
//! This module downloads nothing. Of several GGUF files, it chooses the same one as llama.cpp: the
//! named quantisation, or else Q4_K_M, Q8_0, or the first file. For a split model, it chooses the
//! first part. If there are no GGUF files, the model is a folder of safetensors.

use std::fs;
use std::path::{Path, PathBuf};

use ixc_files::read_text;

/// Max length of the name of a snapshot.
const MAX_REFERENCE: u64 = 256;
/// Max number of files in a folder.
const MAX_FILES: usize = 4096;
/// Quantisation that is chosen if the requested name contains none.
pub const DEFAULT_QUANTISATION: &str = "Q4_K_M";
/// Default quantisations, in order of preference.
const PREFERRED: [&str; 2] = [DEFAULT_QUANTISATION, "Q8_0"];
/// Prefixes of GGUF files that are not language models.
const OTHER_FILES: [&str; 3] = ["mmproj", "mtp-", "imatrix"];

/// Folders of downloaded models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// Hugging Face's cache.
    pub hub: Option<PathBuf>,
    /// llama.cpp's cache.
    pub llama: Option<PathBuf>,
}

impl Caches {
    /// Returns the folders from the environment: `HF_HUB_CACHE`, `HF_HOME`, `LLAMA_CACHE`,
    /// `XDG_CACHE_HOME`.
    pub fn of_environment() -> Caches {
        Caches::from_variables(&|name| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())
        })
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Caches {
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let below = |name: &str| cache.as_ref().map(|cache| cache.join(name));
        let home = variable("HF_HOME").or_else(|| below("huggingface"));
        let hub = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
        Caches {
            hub: hub.or_else(|| Some(home?.join("hub"))),
            llama: variable("LLAMA_CACHE").or_else(|| below("llama.cpp")),
        }
    }

    /// Returns a model of a repository `ORG/NAME`: the file of a quantisation, if one is named, or
    /// the folder.
    pub fn find(&self, repository: &str, quantisation: Option<&str>) -> Option<PathBuf> {
        let (organisation, name) = parts(repository)?;
        let snapshot = self.snapshot(organisation, name);
        if let Some(snapshot) = &snapshot {
            let files = gguf_files(snapshot, &|_| true);
            if let Some(file) = choose(&files, quantisation) {
                return Some(file);
            }
        }
        if let Some(folder) = &self.llama {
            let prefix = format!("{organisation}_{name}_");
            let files = gguf_files(folder, &|file| file.starts_with(&prefix));
            if let Some(file) = choose(&files, quantisation) {
                return Some(file);
            }
        }
        let is_model = |folder: &Path| quantisation.is_none() && ixc_model_files::checkpoint::is_checkpoint(folder);
        snapshot.filter(|snapshot| is_model(snapshot))
    }

    /// Returns the names of the GGUF files in a repository's snapshot. An error lists them, to
    /// suggest other quantisations.
    pub fn files(&self, repository: &str) -> Vec<String> {
        let Some((organisation, name)) = parts(repository) else { return Vec::new() };
        let files = self.snapshot(organisation, name).map(|snapshot| gguf_files(&snapshot, &|_| true));
        let names = files.into_iter().flatten();
        names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
    }

    /// Returns the path of a file in a repository.
    pub fn file(&self, repository: &str, file: &str) -> Option<PathBuf> {
        let (organisation, name) = parts(repository)?;
        let inside = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
        if !Path::new(file).components().all(inside) {
            return None;
        }
        let found = self.snapshot(organisation, name).map(|snapshot| snapshot.join(file));
        let other = self.llama.as_ref().map(|folder| folder.join(format!("{organisation}_{name}_{file}")));
        found.into_iter().chain(other).find(|path| path.is_file())
    }

    /// Returns the folder of a repository's snapshot.
    fn snapshot(&self, organisation: &str, name: &str) -> Option<PathBuf> {
        let folder = self.hub.as_ref()?.join(format!("models--{organisation}--{name}"));
        let snapshots = folder.join("snapshots");
        let main = read_text(&folder.join("refs/main"), MAX_REFERENCE).ok();
        let named = main.as_deref().map(str::trim).filter(|name| is_plain(name)).map(|name| snapshots.join(name));
        // A snapshot that was not downloaded as `main` has no file `refs/main`. If it is the only
        // snapshot, it is used.
        let only = || {
            let mut all = entries(&snapshots).into_iter().filter(|path| path.is_dir());
            all.next().filter(|_| all.next().is_none())
        };
        named.filter(|path| path.is_dir()).or_else(only)
    }
}

/// Splits a repository into organisation and name, if both are valid folder names.
fn parts(repository: &str) -> Option<(&str, &str)> {
    let (organisation, name) = repository.split_once('/')?;
    (is_plain(organisation) && is_plain(name)).then_some((organisation, name))
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

/// Returns a folder's entries, sorted.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .take(MAX_FILES)
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .collect();
    paths.sort_unstable();
    paths
}

/// Returns the models in a folder and its subfolders. For a split model, this is the first part.
fn gguf_files(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = entries(folder);
    let inner = all.iter().filter(|path| path.is_dir()).flat_map(|path| entries(path));
    let is_model = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let later = name.contains("-of-") && !name.contains("-00001-of-");
        name.ends_with(".gguf") && !later && wanted(name) && !OTHER_FILES.iter().any(|other| name.starts_with(other))
    };
    all.iter().cloned().chain(inner).filter(is_model).collect()
}

/// Returns the file of a quantisation, or the default file if none is named.
fn choose(files: &[PathBuf], quantisation: Option<&str>) -> Option<PathBuf> {
    let of = |quantisation: &str| files.iter().find(|file| is_of(file, quantisation)).cloned();
    match quantisation {
        Some(quantisation) => of(quantisation),
        None => PREFERRED.iter().find_map(|preferred| of(preferred)).or_else(|| files.first().cloned()),
    }
}

/// Whether a file's name contains a quantisation as a word, ignoring case. `Q4_K` is not a word of
/// `…-Q4_K_M.gguf`.
fn is_of(file: &Path, quantisation: &str) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_uppercase();
    let wanted = quantisation.to_ascii_uppercase();
    let edge = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    !wanted.is_empty()
        && name.match_indices(&wanted).any(|(at, _)| {
            let bytes = name.as_bytes();
            let before = at.checked_sub(1).map(|before| &bytes[before]);
            // In the names of llama.cpp's cache, for example, the quantisation follows a `_`.
            (edge(before) || before == Some(&b'_')) && edge(bytes.get(at + wanted.len()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_folders_follow_environment_variables() {
        let of = |set: &[(&str, &str)]| {
            let set = set.to_vec();
            let found = Caches::from_variables(&move |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            });
            [found.hub, found.llama].map(|path| path.map(|path| path.display().to_string()).unwrap_or_default())
        };
        assert_eq!(of(&[("HOME", "/h")]), ["/h/.cache/huggingface/hub", "/h/.cache/llama.cpp"]);
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), ["/x/huggingface/hub", "/x/llama.cpp"]);
        assert_eq!(of(&[("HOME", "/h"), ("HF_HOME", "/f"), ("LLAMA_CACHE", "/l")]), ["/f/hub", "/l"]);
        assert_eq!(of(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")])[0], "/c");
        assert_eq!(of(&[]), ["", ""]);
    }

    #[test]
    fn quantisation_must_be_a_whole_word_of_file_name() {
        for (name, quantisation, right) in [
            ("Qwen3-8B-Q4_K_M.gguf", "q4_k_m", true),
            ("Qwen3-8B-Q4_K_M.gguf", "Q4_K", false),
            ("Qwen3-8B-IQ4_XS.gguf", "Q4_XS", false),
            ("m.Q8_0-00001-of-00003.gguf", "Q8_0", true),
            ("org_name_m_q8_0.gguf", "Q8_0", true),
            ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", true),
            ("m-bf16.gguf", "F16", false),
        ] {
            assert_eq!(is_of(Path::new(name), quantisation), right, "{name} {quantisation}");
        }
    }

    #[test]
    fn cached_hub_files_are_found() {
        let folder = std::env::temp_dir().join(format!("ixc-hub-{}", std::process::id()));
        let make = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let at = |path: &str| Some(folder.join(path));
        let caches = Caches { hub: at("hub"), llama: at("llama") };
        make("hub/models--a--m/refs/main", "abc\n");
        for name in [
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "mmproj-F16.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
        ] {
            make(&format!("hub/models--a--m/snapshots/abc/{name}"), "");
        }
        make("hub/models--a--m/snapshots/old/m-Q2_K.gguf", "");
        let snapshot = "hub/models--a--m/snapshots/abc";
        assert_eq!(caches.find("a/m", None), at(&format!("{snapshot}/m-Q4_K_M.gguf")));
        assert_eq!(caches.find("a/m", Some("bf16")), at(&format!("{snapshot}/BF16/m-BF16-00001-of-00002.gguf")));
        assert_eq!((caches.find("a/m", Some("Q2_K")), caches.find("a/other", None)), (None, None));
        let files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-BF16-00001-of-00002.gguf"];
        assert_eq!(
            (caches.files("a/m"), caches.files("a/other"), caches.files("..")),
            (files.map(String::from).into(), vec![], vec![])
        );
        assert_eq!(caches.file("a/m", "m-Q8_0.gguf"), at(&format!("{snapshot}/m-Q8_0.gguf")));
        for hostile in ["../abc/m-Q8_0.gguf", "/etc/passwd", "none.gguf"] {
            assert_eq!(caches.file("a/m", hostile), None, "{hostile}");
        }
        for hostile in ["../x", "a/..", "a/b/c", "a", "/m", "a/"] {
            assert_eq!(caches.find(hostile, None), None, "{hostile}");
        }
        // This repository has original weights, so the folder is returned. It has one snapshot and
        // no reference.
        make("hub/models--a--s/snapshots/def/config.json", "{}");
        make("hub/models--a--s/snapshots/def/model.safetensors", "");
        assert_eq!(caches.find("a/s", None), at("hub/models--a--s/snapshots/def"));
        assert_eq!(caches.find("a/s", Some("Q4_K_M")), None);
        make("llama/a_l_l-q4_k_m.gguf", "");
        assert_eq!(caches.find("a/l", None), at("llama/a_l_l-q4_k_m.gguf"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
