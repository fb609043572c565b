//! `ixc bench --compare A B`: changes from one measurement to another, beyond noise.
//!
//! Both are documents of `ixc bench --json`. Differences between the models, machines and options
//! come first. Each row that both documents have follows, with the speed of the second relative to
//! the first, its interval, and whether the change exceeds noise ([`ixc_measure::ratio`]).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use ixc_measure::ratio::{CONFIDENCE, Ratio};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::report::{Format, SCHEMA, csv_cell};
use crate::output::{self, Document, counted, lines};
use crate::{BadInput, Usage};

/// Schema of the JSON document, and of each JSON line.
const COMPARISON: &str = "ixc.bench-comparison.v1";
/// Max size of a file: a row has some hundred bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Smallest change that counts. Two runs of the same process differ by as much, however narrow the
/// interval is.
const MIN_CHANGE: f64 = 0.01;
/// Min rounds of each side for an interval that holds in 95 of 100 cases.
const ROUNDS: usize = 4;

/// A row is slower beyond noise.
#[derive(Debug, thiserror::Error)]
#[error("slower beyond noise: {slower} of {}", counted(*rows as u64, "row"))]
pub struct Slower {
    slower: usize,
    rows: usize,
}

/// Fields that identify a row: compared rows have equal values.
const ROW: [&str; 5] = ["threads", "target", "test", "tokens", "depth"];
/// Columns that may differ between the sides if each side has one value. Such a column is compared
/// as an option.
const SETTINGS: [&str; 2] = ["threads", "target"];

/// A row that both documents have.
#[derive(Debug, Serialize)]
struct Row {
    threads: Json,
    target: Json,
    test: Json,
    tokens: Json,
    depth: Json,
    deferred: u64,
    /// Medians, in tokens per second.
    a: f64,
    b: f64,
    /// Speed of the second measurement relative to the first; `None` if a side has no rounds.
    ratio: Option<Ratio>,
    verdict: &'static str,
}

/// Difference between the settings of two measurements.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    what: String,
    a: Json,
    b: Json,
}

/// Files of measurements: `b` is compared with `a`.
#[derive(Debug)]
pub struct Pair {
    pub a: PathBuf,
    pub b: PathBuf,
}

/// Compares two files.
///
/// # Errors
/// If a file cannot be read or is not such a document, if the files have no row in common, or if
/// `out` fails. [`Slower`] if a row is slower beyond noise.
pub fn compare(paths: &Pair, format: Format, out: &mut dyn Write) -> anyhow::Result<()> {
    let (a, b) = (document(&paths.a)?, document(&paths.b)?);
    let mut differences = Vec::new();
    // First the model, then options and machine; the version of ixc comes last.
    for part in ["model", "options", "cpu", "memory", "os", "ixc"] {
        differ(part, a.get(part).unwrap_or(&Json::Null), b.get(part).unwrap_or(&Json::Null), &mut differences);
    }
    let columns = different_columns(&a, &b);
    for column in &columns {
        let of = |document: &Json| document["rows"][0][*column].clone();
        differences.push(Difference { what: format!("rows.{column}"), a: of(&a), b: of(&b) });
    }
    let (rows, missing) = rows(&a, &b, &columns).map_err(BadInput)?;
    if rows.is_empty() {
        let text = format!("{} and {} have no row in common", paths.a.display(), paths.b.display());
        return Err(BadInput(text).into());
    }
    match format {
        Format::Text => text(paths, &differences, &rows, &missing, out)?,
        Format::Json => {
            let (a, b) = (paths.a.display().to_string(), paths.b.display().to_string());
            let facts = json!({ "a": a, "b": b, "differences": differences, "rows": rows, "missing": missing });
            output::json(out, COMPARISON, &facts)?;
        }
        Format::Jsonl => {
            for row in &rows {
                serde_json::to_writer(&mut *out, &Document::new(COMPARISON, row))?;
                writeln!(out)?;
            }
        }
        Format::Csv => {
            writeln!(out, "{},deferred,a,b,ratio,low,high,confidence,verdict", ROW.join(","))?;
            for row in &rows {
                let number =
                    |of: fn(&Ratio) -> f64| row.ratio.as_ref().map_or(String::new(), |ratio| of(ratio).to_string());
                let cells = [
                    row.deferred.to_string(),
                    row.a.to_string(),
                    row.b.to_string(),
                    number(|ratio| ratio.median),
                    number(|ratio| ratio.low),
                    number(|ratio| ratio.high),
                    number(|ratio| ratio.confidence),
                    row.verdict.to_owned(),
                ];
                let cells: Vec<String> = row.key().into_iter().chain(cells).map(|cell| csv_cell(&cell)).collect();
                writeln!(out, "{}", cells.join(","))?;
            }
        }
        Format::Md => {
            let cell = |text: &str| lines(text).replace('|', "\\|");
            for Difference { what, a, b } in &differences {
                writeln!(out, "- {}: {} | {}", cell(what), cell(&value_text(a)), cell(&value_text(b)))?;
            }
            missing.iter().try_for_each(|row| writeln!(out, "- {}", cell(row)))?;
            // An empty line separates the list and the table.
            if !differences.is_empty() || !missing.is_empty() {
                writeln!(out)?;
            }
            writeln!(out, "| {} | a | b | b / a | interval | verdict |", ROW.join(" | "))?;
            writeln!(out, "|{}", "---|".repeat(ROW.len() + 5))?;
            for row in &rows {
                let (ratio, interval) = row.ratio_texts();
                let key = row.key().map(|text| cell(&text)).join(" | ");
                writeln!(out, "| {key} | {:.2} | {:.2} | {ratio} | {interval} | {} |", row.a, row.b, row.verdict)?;
            }
        }
    }
    let slower = rows.iter().filter(|row| row.verdict == SLOWER).count();
    if slower > 0 { Err(Slower { slower, rows: rows.len() }.into()) } else { Ok(()) }
}

const FASTER: &str = "faster";
const SLOWER: &str = "slower";
const SAME: &str = "no change beyond noise";
const TOO_FEW: &str = "too few rounds to tell";

/// Reads a document of `ixc bench --json`.
fn document(path: &Path) -> anyhow::Result<Json> {
    let text = ixc_files::read_argument(path, MAX_BYTES).map_err(ixc_error::Error::from)?;
    let wrong =
        |what: &str| BadInput(format!("{}: {what}; `ixc bench --json` writes what is compared", path.display()));
    let document: Json =
        serde_json::from_str(&text).map_err(|error| wrong(&format!("it is not a JSON document ({error})")))?;
    if document["schema"] != SCHEMA {
        return Err(wrong(&format!("its schema is {}, expected \"{SCHEMA}\"", document["schema"])).into());
    }
    if !document["rows"].is_array() {
        return Err(wrong("it has no rows").into());
    }
    Ok(document)
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

/// Returns the columns of [`SETTINGS`] that have one value in all rows of one side, and a different
/// value in all rows of the other.
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
        twice.map_or(Ok(all), |row| Err(format!("{name} has two rows of {}", row_text(row))))
    }
    let (of_left, of_right) = (by_key(&left, "a", but)?, by_key(&right, "b", but)?);
    let mut rows = Vec::new();
    for row in &left {
        let Some(&other) = of_right.get(&key(row, but)) else { continue };
        let rounds =
            |row: &Json| row["all"].as_array().into_iter().flatten().filter_map(Json::as_f64).collect::<Vec<f64>>();
        let (of_a, of_b) = (rounds(row), rounds(other));
        let ratio = Ratio::of(&of_a, &of_b);
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
                // With three rounds on each side, all of one side above the other has a chance of
                // one in twenty, in either direction. The interval then has only 90 %.
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
    fn key(&self) -> [String; 5] {
        [&self.threads, &self.target, &self.test, &self.tokens, &self.depth].map(value_text)
    }

    /// Returns the ratio and its interval, as text.
    fn ratio_texts(&self) -> (String, String) {
        self.ratio.map_or_else(Default::default, |ratio| {
            let Ratio { median, low, high, confidence } = ratio;
            (format!("{median:.3}"), format!("{low:.3} to {high:.3}, {:.0} %", 100.0 * confidence))
        })
    }
}

/// Returns a value as text, without quotes.
fn value_text(value: &Json) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => text.clone(),
        Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => value.to_string(),
    }
}

fn text(
    paths: &Pair,
    differences: &[Difference],
    rows: &[Row],
    missing: &[String],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    writeln!(
        out,
        "a          {}\nb          {}",
        lines(&paths.a.display().to_string()),
        lines(&paths.b.display().to_string())
    )?;
    for Difference { what, a, b } in differences {
        let cut = |value: &Json| value_text(value).chars().take(120).collect::<String>();
        writeln!(out, "different  {}: {} | {}", lines(what), lines(&cut(a)), lines(&cut(b)))?;
    }
    if differences.is_empty() {
        writeln!(out, "           the same model, options, machine and version")?;
    }
    writeln!(
        out,
        "{:>7} {:<15} {:<7} {:>6} {:>6} {:>10} {:>10} {:>7}",
        "threads", "target", "test", "tokens", "depth", "a", "b", "b / a"
    )?;
    for row in rows {
        let [threads, target, test, tokens, depth] = row.key().map(|cell| lines(&cell));
        let (ratio, interval) = row.ratio_texts();
        writeln!(
            out,
            "{threads:>7} {target:<15} {test:<7} {tokens:>6} {depth:>6} {:>10.2} {:>10.2} {ratio:>7}",
            row.a, row.b
        )?;
        let deferred = match row.deferred {
            0 => String::new(),
            experts => format!(", {} per token deferred", counted(experts, "expert")),
        };
        let interval = if interval.is_empty() { interval } else { format!("; b / a is {interval} confidence") };
        writeln!(out, "{:>7} {}{interval}{deferred}", "", row.verdict)?;
    }
    missing.iter().try_for_each(|row| writeln!(out, "{}", lines(row)))?;
    let unsure = rows.iter().filter_map(|row| row.ratio).any(|ratio| ratio.confidence < CONFIDENCE);
    if unsure {
        writeln!(out, "fewer than {ROUNDS} rounds of a test: measure with `-r {ROUNDS}` or more for 95 % confidence")?;
    }
    Ok(())
}

/// Returns the two files of `--compare`, or `None` if the option is absent.
///
/// # Errors
/// If the number of files is not two.
pub fn pair(paths: &[PathBuf]) -> anyhow::Result<Option<Pair>> {
    match paths {
        [] => Ok(None),
        [a, b] => Ok(Some(Pair { a: a.clone(), b: b.clone() })),
        _ => Err(Usage("--compare takes two files".into()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rows: Json) -> Json {
        json!({ "schema": SCHEMA, "model": { "bytes": 5, "file": "x" }, "rows": rows })
    }

    fn row(tokens: u64, all: &[f64]) -> Json {
        json!({ "threads": 1, "target": "avx2", "test": "decode", "tokens": tokens, "depth": 0, "median": all[0], "all": all })
    }

    #[test]
    fn rows_are_compared_by_equal_work() {
        let a = measured(json!([row(8, &[10.0, 10.1, 9.9, 10.0]), row(16, &[5.0, 5.1]), row(32, &[1.0])]));
        let b = measured(json!([row(64, &[1.0]), row(16, &[9.0, 9.1]), row(8, &[8.0, 8.1, 7.9, 8.0])]));
        let (rows, missing) = rows(&a, &b, &[]).unwrap();
        assert_eq!(rows.iter().map(|row| row.verdict).collect::<Vec<_>>(), [SLOWER, TOO_FEW]);
        assert!(
            missing.len() == 2 && missing[0].contains("only in a") && missing[1].contains("tokens 64"),
            "{missing:?}"
        );
    }

    #[test]
    fn comparison_fits_80_columns() {
        let side = |all: &[f64]| {
            let mut rows = vec![row(16384, all), row(8, &all[..1])];
            rows.iter_mut().for_each(|row| row["target"] = "sapphire-rapids".into());
            measured(rows.into())
        };
        let (a, b) = (side(&[12345.0, 12346.0, 12347.0, 12348.0]), side(&[10001.0, 10002.0, 10003.0, 10004.0]));
        let (rows, missing) = rows(&a, &b, &[]).unwrap();
        let mut out = Vec::new();
        text(&Pair { a: "a.json".into(), b: "b.json".into() }, &[], &rows, &missing, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("slower; b / a is ") && text.contains(TOO_FEW), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
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
            measured(rows.into())
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
