//! Tables of checksums: they show whether results have the same bits as before.
//!
//! A refactoring must not change any bits of results. If another change has to change bits, rewrite
//! the table by running the test with `IXC_BLESS=1`, and give the reason in the commit.
//!
//! ```
//! use ixc_testing::bits::Table;
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("sums.txt");
//! # std::fs::write(&path, "ccdf2c3a two of them\n").unwrap();
//! let mut table = Table::new(&path);
//! table.add("two of them", [&[1.5_f32, -2.0].map(f32::to_le_bytes).concat()[..]]);
//! table.check();
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::bless;

/// The checksums of a test's results, and the file with the expected ones. The file has a line
/// `CRC32 NAME` for each result, sorted by name.
pub struct Table {
    path: PathBuf,
    found: BTreeMap<String, u32>,
}

impl Table {
    /// Returns an empty table, to be compared with a file.
    pub fn new(path: &Path) -> Table {
        Table { path: path.to_owned(), found: BTreeMap::new() }
    }

    /// Returns the names of results that need not be computed. If `IXC_NEW` is set, these are all
    /// names in the file, so that only new results are computed. If it is not set, the list is
    /// empty.
    pub fn not_run(&self) -> BTreeSet<String> {
        let known =
            std::env::var_os("IXC_NEW").and_then(|_| std::fs::read_to_string(&self.path).ok()).unwrap_or_default();
        known.lines().filter_map(|line| line.split_once(' ')).map(|(_, name)| name.to_owned()).collect()
    }

    /// Adds the checksum of a result, whose bytes are given as pieces in order.
    ///
    /// # Panics
    /// If the name was added before.
    #[track_caller]
    pub fn add<'b>(&mut self, name: &str, pieces: impl IntoIterator<Item = &'b [u8]>) {
        let mut sum = crc32fast::Hasher::new();
        pieces.into_iter().for_each(|piece| sum.update(piece));
        assert_eq!(self.found.insert(name.to_owned(), sum.finalize()), None, "{name} is there twice");
    }

    /// Compares all checksums with the file. If `IXC_BLESS` is set, writes the file instead.
    ///
    /// # Panics
    /// If checksums differ; the message lists their names.
    #[track_caller]
    pub fn check(self) {
        self.check_in(true);
    }

    /// Compares the computed checksums with the file, if only some of the results were computed.
    ///
    /// # Panics
    /// If one of the computed checksums differs.
    #[track_caller]
    pub fn check_part(self) {
        self.check_in(false);
    }

    #[track_caller]
    fn check_in(self, whole: bool) {
        if whole && bless::is_asked_for() {
            std::fs::write(&self.path, self.text()).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
            return;
        }
        let expected =
            std::fs::read_to_string(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        let differences = self.differences(&expected, whole);
        let (first, count) = (differences.first().map_or("", String::as_str), differences.len());
        assert!(
            differences.is_empty(),
            "{}: {first}{}. Where bits shall change, IXC_BLESS=1 writes the table, and the commit says why",
            self.path.display(),
            if count > 1 {
                format!(", and {} more:\n{}", count - 1, differences[1..].join("\n"))
            } else {
                String::new()
            }
        );
    }

    fn text(&self) -> String {
        self.found.iter().fold(String::new(), |mut text, (name, sum)| {
            let _ = writeln!(text, "{sum:08x} {name}");
            text
        })
    }

    /// Returns a line for each name whose checksums differ. If `whole` is set, also returns a line
    /// for each name that only the file has, or only the test.
    fn differences(&self, expected: &str, whole: bool) -> Vec<String> {
        let lines = expected.lines().filter_map(|line| line.split_once(' '));
        let mut expected: BTreeMap<&str, &str> = lines.map(|(sum, name)| (name, sum)).collect();
        let mut differences = Vec::new();
        for (name, sum) in &self.found {
            match expected.remove(name.as_str()) {
                Some(right) if right == format!("{sum:08x}") => {}
                Some(right) => differences.push(format!("{name} has other bits than it had ({sum:08x}, not {right})")),
                None => differences.push(format!("{name} is new ({sum:08x})")),
            }
        }
        let rest = expected.into_keys().filter(|_| whole);
        differences.extend(rest.map(|name| format!("{name} is there no more")));
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_differences_are_named() {
        let mut table = Table::new(Path::new("none"));
        table.add("same", [b"a".as_slice(), b"b"]);
        table.add("other", [b"a".as_slice()]);
        table.add("new", [b"".as_slice()]);
        assert_eq!(table.text(), "00000000 new\ne8b7be43 other\n9e83486d same\n");
        assert_eq!(table.differences(&table.text(), true), [""; 0]);
        let expected = "9e83486d same\n00000001 other\n00000002 a row that went\n";
        let differences = table.differences(expected, true);
        assert_eq!(
            differences,
            [
                "new is new (00000000)",
                "other has other bits than it had (e8b7be43, not 00000001)",
                "a row that went is there no more",
            ]
        );
        assert_eq!(table.differences(expected, false), differences[..2]);
    }

    #[test]
    #[should_panic(expected = "twice is there twice")]
    fn duplicate_checksum_names_panic() {
        let mut table = Table::new(Path::new("none"));
        table.add("twice", [b"a".as_slice()]);
        table.add("twice", [b"a".as_slice()]);
    }
}
