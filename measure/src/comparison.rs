//! Comparison of two measurements of speed, beyond noise.
//!
//! Both measurements are documents of `ixc bench --json`. A comparison has the differences between
//! the models, machines and options, and each row that both documents have. A row has the speed of
//! the second measurement relative to the first, the confidence interval of this ratio, and whether
//! the change exceeds noise ([`crate::ratio`]).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value as Json;

use crate::ratio::{CONFIDENCE, Ratio};

/// Smallest change that counts. Even two runs of the same process differ by this much, however
/// narrow the confidence interval is.
const MIN_CHANGE: f64 = 0.01;

/// The second measurement is faster beyond noise.
pub const FASTER: &str = "faster";
/// The second measurement is slower beyond noise.
pub const SLOWER: &str = "slower";
/// The measurements do not differ beyond noise.
pub const SAME: &str = "no change beyond noise";
/// One of the measurements has too few rounds for a conclusion.
pub const TOO_FEW: &str = "too few rounds to tell";

/// Fields that identify a row: compared rows have equal values.
pub const ROW: [&str; 5] = ["threads", "target", "test", "tokens", "depth"];
/// Columns that may differ between the documents if each document has one value. Such a column is
/// compared as an option.
const SETTINGS: [&str; 2] = ["threads", "target"];

/// A row that both documents have.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Number of threads.
    pub threads: Json,
    /// Target of the code.
    pub target: Json,
    /// Name of the test.
    pub test: Json,
    /// Number of tokens that were timed.
    pub tokens: Json,
    /// Number of earlier tokens.
    pub depth: Json,
    /// Number of experts that were deferred for each token.
    pub deferred: u64,
    /// Median of the first measurement, in tokens per second.
    pub a: f64,
    /// Median of the second measurement.
    pub b: f64,
    /// Speed of the second measurement relative to the first; `None` if a side has no rounds.
    pub ratio: Option<Ratio>,
    /// Conclusion: one of [`FASTER`], [`SLOWER`], [`SAME`] and [`TOO_FEW`].
    pub verdict: &'static str,
}

/// Difference between the settings of two measurements.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Path of the field that differs.
    pub what: String,
    /// Value of the first measurement.
    pub a: Json,
    /// Value of the second measurement.
    pub b: Json,
}

/// Comparison of two documents.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Differences between models, machines and options.
    pub differences: Vec<Difference>,
    /// Rows that both documents have.
    pub rows: Vec<Row>,
    /// Descriptions of the rows that only one document has.
    pub missing: Vec<String>,
}

/// Compares the documents `a` and `b`.
///
/// # Errors
/// If a document has two rows of equal work.
pub fn compare(a: &Json, b: &Json) -> Result<Comparison, String> {
    let mut differences = Vec::new();
    // First the model, then options and machine; the version of ixc comes last.
    for part in ["model", "options", "cpu", "memory", "os", "ixc"] {
        differ(part, a.get(part).unwrap_or(&Json::Null), b.get(part).unwrap_or(&Json::Null), &mut differences);
    }
    let columns = different_columns(a, b);
    for column in &columns {
        let of = |document: &Json| document["rows"][0][*column].clone();
        differences.push(Difference { what: format!("rows.{column}"), a: of(a), b: of(b) });
    }
    let (rows, missing) = rows(a, b, &columns)?;
    Ok(Comparison { differences, rows, missing })
}

/// Settings whose differences do not count: file names, and the command line, which contains output
/// paths.
const IGNORED: [&str; 2] = ["model.file", "options.arguments"];

/// Adds the differences between two values, leaf by leaf.
fn differ(what: &str, a: &Json, b: &Json, differences: &mut Vec<Difference>) {
    // A missing field of an older version counts as empty.
    let is_empty = |value: &Json| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
    if a == b || IGNORED.contains(&what) || is_empty(a) && is_empty(b) {
        return;
    }
    match (a, b) {
        (Json::Object(_) | Json::Null, Json::Object(_) | Json::Null) => {
            let nothing = serde_json::Map::new();
            let [left, right] = [a, b].map(|side| side.as_object().unwrap_or(&nothing));
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let [a, b] = [left, right].map(|side| side.get(key).unwrap_or(&Json::Null));
                differ(&format!("{what}.{key}"), a, b, differences);
            }
        }
        _ => differences.push(Difference { what: what.to_owned(), a: a.clone(), b: b.clone() }),
    }
}

/// Returns the columns of [`SETTINGS`] that have one value in all rows of one document, and a
/// different value in all rows of the other document.
fn different_columns(a: &Json, b: &Json) -> Vec<&'static str> {
    let values = |document: &Json, column: &str| -> BTreeSet<String> {
        document["rows"].as_array().into_iter().flatten().map(|row| value_text(&row[column])).collect()
    };
    let differs = |column: &&str| {
        let [a, b] = [a, b].map(|document| values(document, column));
        a.len() == 1 && b.len() == 1 && a != b
    };
    SETTINGS.into_iter().filter(differs).collect()
}

/// Returns the work of a row as text, without the given columns, and the number of deferred
/// experts.
fn key(row: &Json, but: &[&str]) -> [String; 6] {
    let [threads, target, test, tokens, depth] =
        ROW.map(|key| if but.contains(&key) { String::new() } else { value_text(&row[key]) });
    [threads, target, test, tokens, depth, deferred_experts(row).to_string()]
}

fn deferred_experts(row: &Json) -> u64 {
    row["deferral"]["experts"].as_u64().unwrap_or(0)
}

/// Returns the rows that both documents have, compared without the columns `but`, and descriptions
/// of the other rows.
///
/// # Errors
/// If a document has two rows with the same key.
fn rows(a: &Json, b: &Json, but: &[&str]) -> Result<(Vec<Row>, Vec<String>), String> {
    type ByKey<'d> = BTreeMap<[String; 6], &'d Json>;
    let list = |document: &Json| document["rows"].as_array().cloned().unwrap_or_default();
    let (left, right) = (list(a), list(b));
    fn by_key<'d>(rows: &'d [Json], name: &str, but: &[&str]) -> Result<ByKey<'d>, String> {
        let mut all = ByKey::new();
        let twice = rows.iter().find(|row| all.insert(key(row, but), row).is_some());
        twice.map_or(Ok(all), |row| Err(format!("{name} has two rows for {}", row_text(row))))
    }
    let (of_left, of_right) = (by_key(&left, "a", but)?, by_key(&right, "b", but)?);
    let mut rows = Vec::new();
    for row in &left {
        let Some(&other) = of_right.get(&key(row, but)) else { continue };
        let rounds =
            |row: &Json| row["all"].as_array().into_iter().flatten().filter_map(Json::as_f64).collect::<Vec<f64>>();
        let (of_a, of_b) = (rounds(row), rounds(other));
        let ratio = Ratio::from_samples(&of_a, &of_b);
        let value = |key: &str| match but.contains(&key) {
            true => format!("{}|{}", value_text(&row[key]), value_text(&other[key])).into(),
            false => row[key].clone(),
        };
        let [threads, target, test, tokens, depth] = ROW.map(value);
        rows.push(Row {
            threads,
            target,
            test,
            tokens,
            depth,
            deferred: deferred_experts(row),
            a: row["median"].as_f64().unwrap_or(0.0),
            b: other["median"].as_f64().unwrap_or(0.0),
            verdict: match ratio.as_ref().map(|ratio| ratio.significant_change(MIN_CHANGE)) {
                None => TOO_FEW,
                // With three rounds on each side, the chance that all rounds of one side exceed
                // those of the other is one in twenty, for each direction. So the interval has a
                // confidence of only 90 %.
                Some(_) if ratio.is_some_and(|ratio| ratio.confidence < CONFIDENCE) => TOO_FEW,
                Some(Some(Ordering::Greater)) => FASTER,
                Some(Some(Ordering::Less)) => SLOWER,
                Some(Some(Ordering::Equal) | None) => SAME,
            },
            ratio,
        });
    }
    let alone = |from: &[Json], other: &ByKey<'_>, name: &str| -> Vec<String> {
        let alone = from.iter().filter(|row| !other.contains_key(&key(row, but)));
        alone.map(|row| format!("only in {name}: {}", row_text(row))).collect()
    };
    let missing = [alone(&left, &of_right, "a"), alone(&right, &of_left, "b")].concat();
    Ok((rows, missing))
}

/// Returns the key of a row as text.
fn row_text(row: &Json) -> String {
    ROW.map(|key| format!("{key} {}", value_text(&row[key]))).join(", ")
}

impl Row {
    /// Returns the fields that identify the row, as text.
    pub fn key(&self) -> [String; 5] {
        [&self.threads, &self.target, &self.test, &self.tokens, &self.depth].map(value_text)
    }
}

/// Returns a value as text, without quotes.
pub fn value_text(value: &Json) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => text.clone(),
        Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn measurement(rows: Json) -> Json {
        json!({ "model": { "bytes": 5, "file": "x" }, "rows": rows })
    }

    fn row(tokens: u64, all: &[f64]) -> Json {
        json!({ "threads": 1, "target": "avx2", "test": "decode", "tokens": tokens, "depth": 0, "median": all[0], "all": all })
    }

    #[test]
    fn rows_are_compared_by_equal_work() {
        let a = measurement(json!([row(8, &[10.0, 10.1, 9.9, 10.0]), row(16, &[5.0, 5.1]), row(32, &[1.0])]));
        let b = measurement(json!([row(64, &[1.0]), row(16, &[9.0, 9.1]), row(8, &[8.0, 8.1, 7.9, 8.0])]));
        let (rows, missing) = rows(&a, &b, &[]).unwrap();
        assert_eq!(rows.iter().map(|row| row.verdict).collect::<Vec<_>>(), [SLOWER, TOO_FEW]);
        assert!(
            missing.len() == 2 && missing[0].contains("only in a") && missing[1].contains("tokens 64"),
            "{missing:?}"
        );
    }

    #[test]
    fn rows_that_differ_only_in_threads_are_paired() {
        let with = |threads: &[u64]| {
            let rows: Vec<Json> = (threads.iter())
                .flat_map(|threads| [8, 16].map(|tokens| (threads, tokens)))
                .map(|(threads, tokens)| {
                    let mut row = row(tokens, &[1.0, 1.0, 1.0, 1.0]);
                    row["threads"] = (*threads).into();
                    row
                })
                .collect();
            measurement(rows.into())
        };
        let (one, two, both) = (with(&[1]), with(&[2]), with(&[1, 2]));
        assert_eq!(different_columns(&one, &two), ["threads"]);
        let (pairs, missing) = rows(&one, &two, &["threads"]).unwrap();
        assert_eq!((pairs.len(), missing.len(), &pairs[0].threads), (2, 0, &json!("1|2")));
        // If a side has several values, each row is compared with the row of the same value.
        assert!(different_columns(&one, &both).is_empty() && different_columns(&one, &one).is_empty());
        let (pairs, missing) = rows(&one, &both, &[]).unwrap();
        assert_eq!((pairs.len(), missing.len()), (2, 2));
    }

    #[test]
    fn options_missing_in_older_output_are_no_difference() {
        let differ = |a: &Json, b: &Json| {
            let mut differences = Vec::new();
            super::differ("options", a, b, &mut differences);
            differences.into_iter().map(|difference| difference.what).collect::<Vec<_>>()
        };
        let (old, new) = (json!({ "pin": "off" }), json!({ "pin": "off", "given": {} }));
        assert!(differ(&old, &new).is_empty());
        assert_eq!(differ(&old, &json!({ "pin": "off", "given": { "cache": "lru" } })), ["options.given.cache"]);
    }

    #[test]
    fn settings_are_compared_by_field_except_file_names() {
        let mut differences = Vec::new();
        let a = json!({ "file": "a", "bytes": 1, "formats": { "q4_k": 1 } });
        let b = json!({ "file": "b", "bytes": 2, "formats": { "q4_k": 1, "f32": 3 } });
        differ("model", &a, &b, &mut differences);
        let names: Vec<&str> = differences.iter().map(|difference| &*difference.what).collect();
        assert_eq!(names, ["model.bytes", "model.formats.f32"]);
    }
}
