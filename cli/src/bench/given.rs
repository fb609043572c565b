//! Command-line options of an `ixc bench` run, recorded for comparisons.
//!
//! The options come from the definition of the command line, without those in [`EXCLUDED`]. So new
//! options are recorded without a change here. Files are recorded by content, not by name:
//!
//! ```json
//! {"cache": "lru", "override": "1 file of 3512 bytes, CRC-32 8a1f09c2"}
//! ```

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use crate::output::count_text;

/// Options that do not influence the measurement, or that are recorded elsewhere: in rows, in the
/// model, or under another name.
pub const EXCLUDED: [&str; 23] = [
    "model",
    "model_file",
    "prefill",
    "decode",
    "depth",
    "threads",
    "repetitions",
    "pin",
    "memory",
    "defer",
    "tile",
    "weights",
    "kv",
    "options",
    "tuned",
    "text",
    "compare",
    "format",
    "json",
    "verbose",
    "quiet",
    "log_file",
    "config",
];
/// Max number of files of a folder that are read. It exceeds the number of kernels of any model.
const MAX_FILES: usize = 4096;
/// Max size of a file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// Returns the given options with their values, by their names on the command line; an empty map
/// for another command.
pub fn given_options(command: &clap::Command, matches: &ArgMatches) -> BTreeMap<String, String> {
    let mut given = BTreeMap::new();
    for arg in command.get_arguments().filter(|arg| !EXCLUDED.contains(&arg.get_id().as_str())) {
        let id = arg.get_id().as_str();
        // Help and version do not have values.
        let source = matches.try_contains_id(id).is_ok().then(|| matches.value_source(id)).flatten();
        if matches!(source, None | Some(ValueSource::DefaultValue)) {
            continue;
        }
        let values: Vec<String> = matches.get_raw(id).into_iter().flatten().map(|value| text(arg, value)).collect();
        given.insert(arg.get_long().unwrap_or(id).to_owned(), values.join(" "));
    }
    given
}

/// Returns the text of an option's value. For a path, the text identifies the file's content.
fn text(arg: &Arg, value: &OsStr) -> String {
    let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let content = is_path.then(|| content(Path::new(value))).flatten();
    content.unwrap_or_else(|| value.to_string_lossy().into_owned())
}

/// Returns a text that identifies the content of a file or of a folder's files; `None` if they
/// cannot be read.
pub fn content(path: &Path) -> Option<String> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files =
            std::fs::read_dir(path).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
        files.truncate(MAX_FILES);
    }
    let (mut crc, mut bytes) = (crc32fast::Hasher::new(), 0);
    for file in &files {
        let content = ixc_files::read_bytes(file, MAX_BYTES).ok()?;
        crc.update(&content);
        bytes += content.len();
    }
    let count = count_text(files.len() as u64, "file");
    Some(format!("{count} of {bytes} bytes, CRC-32 {:08x}", crc.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn parse_options(words: &[&str]) -> BTreeMap<String, String> {
        let command = Cli::command();
        let words = ["ixc", "bench"].iter().chain(words);
        let matches = command.clone().try_get_matches_from(words).unwrap();
        given_options(command.find_subcommand("bench").unwrap(), matches.subcommand_matches("bench").unwrap())
    }

    #[test]
    fn bench_records_all_given_options_not_shown_elsewhere() {
        let command = Cli::command();
        let bench = command.find_subcommand("bench").unwrap();
        let mut ids: Vec<&str> = bench.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        ids.extend(command.get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().as_str()));
        for id in EXCLUDED {
            assert!(ids.contains(&id), "{id} is no option of bench");
        }
        assert_eq!(parse_options(&["-p", "8", "--json"]), BTreeMap::new());
        let found =
            parse_options(&["--cache", "lru", "--experts", "map", "--prefetch-extra", "2", "--target", "portable"]);
        let found: Vec<String> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(found, ["cache=lru", "experts=map", "prefetch-extra=2", "target=portable"]);
    }

    #[test]
    fn file_options_are_compared_by_content() {
        let folder = std::env::temp_dir().join(format!("ixc-given-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("k.ix");
        let found = |text: &str| {
            std::fs::write(&file, text).unwrap();
            parse_options(&["--override", file.to_str().unwrap()])["override"].clone()
        };
        assert_eq!(found("one"), "1 file of 3 bytes, CRC-32 7a6c86f1");
        assert_ne!(found("two"), found("one"));
        assert_eq!(parse_options(&["--override", folder.to_str().unwrap()])["override"], found("one"));
        assert_eq!(parse_options(&["--start-from", "nowhere.ix"])["start-from"], "nowhere.ix");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
