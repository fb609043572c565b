//! `ixc bench --compare A B`: changes in speed between two measurements that exceed noise.
//!
//! Both files are documents of `ixc bench --json`. The report begins with the differences between
//! the models, machines and options of both files. Rows that both files have follow. Each row
//! states the speed in the second file relative to the first, the confidence interval of this
//! ratio, and whether the change exceeds noise ([`ixc_measure::ratio`]).

use std::io::Write;
use std::path::{Path, PathBuf};

use ixc_measure::comparison::{self, Comparison, Difference, ROW, Row, SLOWER, value_text};
use ixc_measure::ratio::{CONFIDENCE, Ratio};
use serde_json::{Value as Json, json};

use super::report::{Format, SCHEMA, csv_cell};
use crate::output::{self, Document, count_text, lines};
use crate::{BadInput, Usage};

/// Schema of the JSON document, and of each JSON line.
const COMPARISON: &str = "ixc.bench-comparison.v1";
/// Max bytes of a file. A row takes some hundred bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Min rounds in each file for a confidence interval of 95 %.
const ROUNDS: usize = 4;

/// Error that a row of the second file is slower beyond noise.
#[derive(Debug, thiserror::Error)]
#[error("slower beyond noise: {slower} of {}", count_text(*rows as u64, "row"))]
pub struct Slower {
    slower: usize,
    rows: usize,
}

/// Files of measurements: `b` is compared with `a`.
#[derive(Debug)]
pub struct Pair {
    pub a: PathBuf,
    pub b: PathBuf,
}

/// Compares two files of measurements, and writes the report to `out`.
///
/// # Errors
/// If a file cannot be read or is not a document of `ixc bench --json`, if the files have no row
/// in common, or if writing to `out` fails. [`Slower`] if a row is slower beyond noise.
pub fn compare(paths: &Pair, format: Format, out: &mut dyn Write) -> anyhow::Result<()> {
    let (a, b) = (document(&paths.a)?, document(&paths.b)?);
    let Comparison { differences, rows, missing } = comparison::compare(&a, &b).map_err(BadInput)?;
    if rows.is_empty() {
        let text = format!(
            "{} and {} have no measured row in common, so they cannot be compared",
            paths.a.display(),
            paths.b.display()
        );
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
                let (ratio, interval) = ratio_texts(row);
                let key = row.key().map(|text| cell(&text)).join(" | ");
                writeln!(out, "| {key} | {:.2} | {:.2} | {ratio} | {interval} | {} |", row.a, row.b, row.verdict)?;
            }
        }
    }
    let slower = rows.iter().filter(|row| row.verdict == SLOWER).count();
    if slower > 0 { Err(Slower { slower, rows: rows.len() }.into()) } else { Ok(()) }
}

/// Reads a document of `ixc bench --json`.
fn document(path: &Path) -> anyhow::Result<Json> {
    let text = ixc_files::read_argument(path, MAX_BYTES).map_err(ixc_error::Error::from)?;
    let wrong = |what: &str| BadInput(format!("{}: {what}; expected the output of `ixc bench --json`", path.display()));
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

/// Returns the ratio of the speeds and its confidence interval, as text.
fn ratio_texts(row: &Row) -> (String, String) {
    row.ratio.map_or_else(Default::default, |ratio| {
        let Ratio { median, low, high, confidence } = ratio;
        (format!("{median:.3}"), format!("{low:.3} to {high:.3}, {:.0} %", 100.0 * confidence))
    })
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
        writeln!(out, "           none: both have the same model, options, machine and version")?;
    }
    writeln!(
        out,
        "{:>7} {:<15} {:<7} {:>6} {:>6} {:>10} {:>10} {:>7}",
        "threads", "target", "test", "tokens", "depth", "a", "b", "b / a"
    )?;
    for row in rows {
        let [threads, target, test, tokens, depth] = row.key().map(|cell| lines(&cell));
        let (ratio, interval) = ratio_texts(row);
        writeln!(
            out,
            "{threads:>7} {target:<15} {test:<7} {tokens:>6} {depth:>6} {:>10.2} {:>10.2} {ratio:>7}",
            row.a, row.b
        )?;
        let deferred = match row.deferred {
            0 => String::new(),
            experts => format!(", {} per token deferred", count_text(experts, "expert")),
        };
        let interval = if interval.is_empty() { interval } else { format!("; b / a is {interval} confidence") };
        writeln!(out, "{:>7} {}{interval}{deferred}", "", row.verdict)?;
    }
    missing.iter().try_for_each(|row| writeln!(out, "{}", lines(row)))?;
    let unsure = rows.iter().filter_map(|row| row.ratio).any(|ratio| ratio.confidence < CONFIDENCE);
    if unsure {
        writeln!(out, "a test has fewer than {ROUNDS} rounds: measure with `-r {ROUNDS}` or more for 95 % confidence")?;
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

    fn measurement(rows: Json) -> Json {
        json!({ "model": { "bytes": 5, "file": "x" }, "rows": rows })
    }

    fn row(tokens: u64, all: &[f64]) -> Json {
        json!({ "threads": 1, "target": "avx2", "test": "decode", "tokens": tokens, "depth": 0, "median": all[0], "all": all })
    }

    #[test]
    fn comparison_fits_80_columns() {
        let side = |all: &[f64]| {
            let mut rows = vec![row(16384, all), row(8, &all[..1])];
            rows.iter_mut().for_each(|row| row["target"] = "sapphire-rapids".into());
            measurement(rows.into())
        };
        let (a, b) = (side(&[12345.0, 12346.0, 12347.0, 12348.0]), side(&[10001.0, 10002.0, 10003.0, 10004.0]));
        let Comparison { rows, missing, .. } = comparison::compare(&a, &b).unwrap();
        let mut out = Vec::new();
        text(&Pair { a: "a.json".into(), b: "b.json".into() }, &[], &rows, &missing, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("slower; b / a is ") && text.contains(comparison::TOO_FEW), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }
}
