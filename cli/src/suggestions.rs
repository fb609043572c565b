//! Suggestions for misspelt names of files and options.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Max number of a folder's files that are compared with a name.
const FILES: usize = 10_000;
/// Max files in a suggestion.
const MAX_SUGGESTIONS: usize = 3;
/// Max distance between the extensions of two names, such as `gguff` and `gguf`.
const END_LETTERS: usize = 2;

/// Returns whether a typed word is probably a misspelling of a known one: their distance is at most
/// a third of its letters.
pub fn is_near(typed: &str, known: &str) -> bool {
    let (typed, known) = (typed.to_lowercase(), known.to_lowercase());
    let (letters, known_letters) = (typed.chars().count(), known.chars().count());
    let limit = letters / 3;
    // The distance is at least the difference of lengths. Files can have names of many KB.
    letters.abs_diff(known_letters) <= limit && distance(&typed, &known) <= limit
}

/// Returns the known word that is most similar to a typed one, if it is near enough to be meant.
pub fn nearest<'w>(typed: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    known.filter(|known| is_near(typed, known)).min_by_key(|known| distance(typed, known))
}

/// Returns existing paths similar to a missing one, the most similar first.
pub fn paths(missing: &Path) -> Vec<PathBuf> {
    let (mut there, mut rest) = (PathBuf::new(), missing.components());
    while let Some(part) = rest.next() {
        if there.join(part).exists() {
            there.push(part);
            continue;
        }
        let Component::Normal(name) = part else { return Vec::new() };
        let rest = rest.as_path();
        let whole = |file: PathBuf| if rest.as_os_str().is_empty() { file } else { file.join(rest) };
        let found = near_files(&there, &name.to_string_lossy()).into_iter().map(whole);
        return found.filter(|path| path.exists()).take(MAX_SUGGESTIONS).collect();
    }
    Vec::new()
}

/// Returns the files of a folder with names similar to a given one, the most similar first.
fn near_files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(read).into_iter().flatten().take(FILES).filter_map(Result::ok);
    let mut near: Vec<(usize, String)> = entries
        .filter_map(|entry| {
            let found = entry.file_name().into_string().ok()?;
            Some((file_distance(name, &found)?, found))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, found)| folder.join(found)).collect()
}

/// Returns the distance of a file's name from a typed one; `None` if it is too large.
fn file_distance(typed: &str, found: &str) -> Option<usize> {
    let split =
        |name: &str| name.rsplit_once('.').map_or((name.to_owned(), String::new()), |(a, b)| (a.into(), b.into()));
    let ((stem, end), (found_stem, found_end)) = (split(typed), split(found));
    // The user typed the name without its extension: `own` for `own.gguf`.
    if typed == found_stem {
        return Some(0);
    }
    let ends = distance(&end, &found_end);
    let near = ends <= END_LETTERS && (stem == found_stem || is_near(&stem, &found_stem));
    near.then(|| ends + distance(&stem, &found_stem))
}

/// Returns the edit distance of two texts: insertions, deletions, replacements and swaps of
/// neighbours (Damerau 1964, without edits between swapped letters).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_differ_in_at_most_a_third() {
        assert_eq!([distance("kitten", "sitting"), distance("ab", "ba"), distance("", "abc")], [3, 1, 3]);
        for (typed, known, near) in
            [("promt", "prompt", true), ("nosuch", "no-chat", false), ("tmep", "temp", true), ("x", "y", false)]
        {
            assert_eq!(is_near(typed, known), near, "{typed} {known}");
        }
        // The lengths differ too much, so the letters are not compared: this would take a hundred
        // megabytes.
        assert!(!is_near(&"x".repeat(1 << 20), "prompt"));
    }

    #[test]
    fn near_files_match_by_stem_and_extension() {
        for (typed, found, near) in [
            ("own.gguff", "own.gguf", true),
            ("own", "own.gguf", true),
            ("onw.gguf", "own.gguf", true),
            ("a.gguf", "b.gguf", false),
            ("own.gguf", "other.gguf", false),
            ("own.gguf", "own.json", false),
        ] {
            assert_eq!(file_distance(typed, found).is_some(), near, "{typed} {found}");
        }
    }

    #[test]
    fn misspelled_parent_folder_is_corrected() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models/own.gguf");
        fs::create_dir(model.parent().unwrap()).unwrap();
        fs::write(&model, "").unwrap();
        assert_eq!(paths(&folder.path().join("modles/own.gguf")), std::slice::from_ref(&model));
        assert_eq!(paths(&folder.path().join("models/own.ggfu")), [model]);
        assert!(paths(&folder.path().join("else/own.gguf")).is_empty());
    }
}
