//! Models that a server finds in a folder, and their names in requests.

use std::io;
use std::path::{Path, PathBuf};

use super::model_name::DEMO;

/// Returns a model's name: the file's stem, without the number of a split model's part.
pub(super) fn name_of(path: Option<&Path>) -> String {
    let Some(path) = path else { return DEMO.to_owned() };
    // `.` and `..` have no file name, so the name comes from the canonical path.
    let whole = if path.file_name().is_none() { path.canonicalize().ok() } else { None };
    let path = whole.as_deref().unwrap_or(path);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    // A folder's name may contain dots.
    let name = if path.is_dir() { path.file_name().unwrap_or_default().to_string_lossy() } else { stem };
    split_number(&name).map_or(&*name, |(before, _)| before).to_owned()
}

/// Splits the file stem of a split model's part into the text before its number, and the number.
fn split_number(stem: &str) -> Option<(&str, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (before, number) = rest.rsplit_once('-')?;
    count.parse::<u32>().ok().and(Some((before, number.parse().ok()?)))
}

/// Returns the models and plans in a folder, sorted by name. They are model files and plans by
/// extension, and folders of safetensors. A split model is listed by its first part.
pub(super) fn models_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_first = split_number(&stem).is_none_or(|(_, number)| number == 1);
        let is_file = path.extension().is_some_and(|extension| extension == "gguf" || extension == "ixp");
        if is_file && is_first && path.is_file() || path.join("config.json").is_file() {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_model_is_named_after_its_file() {
        for (path, name) in [
            ("/a/Qwen3-30B-A3B.Q4_K_M.gguf", "Qwen3-30B-A3B.Q4_K_M"),
            ("big-00001-of-00009.gguf", "big"),
            ("plan.ixp", "plan"),
            ("one-of-many.gguf", "one-of-many"),
        ] {
            assert_eq!(name_of(Some(Path::new(path))), name);
        }
        assert_eq!(name_of(None), "demo");
        let here = std::env::current_dir().unwrap();
        assert_eq!(name_of(Some(Path::new("."))), here.file_name().unwrap().to_string_lossy());
    }
}
