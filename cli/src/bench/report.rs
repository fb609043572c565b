//! Output of a measurement: a text table, JSON, JSON lines, CSV or Markdown. Each format includes
//! the setting of the measurement.
//!
//! Rows are written as soon as they are measured, so that a stopped run keeps them. JSON is the
//! exception, because it is one document.

use std::io::{self, Write};

use ixc_ir::units::Bytes;
use serde_json::json;

use super::Row;
use super::setting::Setting;
use crate::output::{self, Document, Printable, count_text};

/// Schema of the JSON document, and of each JSON line.
pub const SCHEMA: &str = "ixc.bench.v1";

/// Format of the report of a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    Text,
    /// One document.
    Json,
    /// One JSON document per row, each on one line and with the common fields.
    Jsonl,
    /// Comma-separated values: one line per row, with the common fields.
    Csv,
    /// A table in Markdown.
    Md,
}

/// Writer of the rows in one format.
pub struct Report<'w> {
    format: Format,
    /// The model's name.
    name: String,
    setting: Setting,
    out: &'w mut dyn Write,
    /// Whether the head of the report (the names of model and columns) is written.
    has_head: bool,
    rows: Vec<Row>,
}

impl<'w> Report<'w> {
    /// Creates a report about the model `name`, which writes nothing yet.
    pub fn new(format: Format, name: &str, setting: Setting, out: &'w mut dyn Write) -> Report<'w> {
        Report { format, name: name.to_owned(), setting, out, has_head: false, rows: Vec::new() }
    }

    /// Writes the head of the report, unless it is written. Call it as soon as rows are certain.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn begin(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_head, true) {
            return Ok(());
        }
        let (setting, out) = (&self.setting, &mut *self.out);
        match self.format {
            Format::Text => {
                writeln!(out, "{}", Printable(&self.name))?;
                writeln!(
                    out,
                    "{:>7} {:<15} {:<7} {:>6} {:>6} {:>12}   min .. max",
                    "threads", "target", "test", "tokens", "depth", "tokens/s"
                )?;
            }
            Format::Csv => {
                let names = setting.columns().into_iter().chain(columns(&Row::default())).map(|(name, _)| name);
                writeln!(out, "{}", names.collect::<Vec<_>>().join(","))?;
            }
            Format::Md => {
                for (name, value) in setting.columns().iter().filter(|(_, value)| !value.is_empty()) {
                    writeln!(out, "- {name}: {}", Printable(value))?;
                }
                writeln!(out, "\n| threads | target | test | tokens | depth | tokens/s | min | max |")?;
                writeln!(out, "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |")?;
            }
            Format::Json | Format::Jsonl => {}
        }
        out.flush()
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn row(&mut self, row: Row) -> io::Result<()> {
        self.begin()?;
        match self.format {
            Format::Text => self.text(&row)?,
            Format::Json => {}
            Format::Jsonl => {
                let mut facts = serde_json::to_value(&self.setting)?;
                if let (Some(facts), serde_json::Value::Object(row)) =
                    (facts.as_object_mut(), serde_json::to_value(&row)?)
                {
                    facts.extend(row);
                }
                serde_json::to_writer(&mut *self.out, &Document::new(SCHEMA, &facts))?;
                writeln!(self.out)?;
            }
            Format::Csv => {
                let values = self.setting.columns().into_iter().chain(columns(&row)).map(|(_, value)| csv_cell(&value));
                writeln!(self.out, "{}", values.collect::<Vec<_>>().join(","))?;
            }
            Format::Md => writeln!(
                self.out,
                "| {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.2} |",
                row.threads, row.target, row.test, row.tokens, row.depth, row.median, row.min, row.max
            )?,
        }
        self.rows.push(row);
        self.out.flush()
    }

    fn text(&mut self, row: &Row) -> io::Result<()> {
        let out = &mut *self.out;
        writeln!(
            out,
            "{:>7} {:<15} {:<7} {:>6} {:>6} {:>12.2}   {:.2} .. {:.2}",
            row.threads, row.target, row.test, row.tokens, row.depth, row.median, row.min, row.max
        )?;
        if let Some(deferral) = &row.deferral {
            let experts = count_text(deferral.experts.into(), "expert");
            writeln!(
                out,
                "{:>7} {experts} per token deferred: {:.3} x the speed without deferral",
                "", deferral.ratio
            )?;
        }
        if let Some(exchanged) = &row.exchanged {
            writeln!(out, "{:>7} {}", "", exchanged.text(row.tokens))?;
        }
        let read = Bytes(row.bytes_read_per_token as u64);
        match row.drive_share.map(|share| 100.0 * share) {
            Some(share) => writeln!(out, "{:>7} {read} read per token at {share:.0} % of the drive's own rate", "")?,
            None if read.0 > 0 => writeln!(out, "{:>7} {read} read per token", "")?,
            None => {}
        }
        row.forecast.iter().try_for_each(|line| writeln!(out, "{:>7} {line}", ""))
    }

    /// Prints a remark about all rows, in the text format only.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn say(&mut self, text: &str) -> io::Result<()> {
        if self.format == Format::Text { writeln!(self.out, "{text}") } else { Ok(()) }
    }

    /// Ends the report.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn finish(mut self) -> io::Result<()> {
        self.begin()?;
        if self.format != Format::Json {
            return Ok(());
        }
        let mut facts = serde_json::to_value(&self.setting)?;
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("rows".into(), json!(self.rows));
        }
        output::json(self.out, SCHEMA, &facts)
    }
}

/// Returns a row's columns, by name; repetitions are one column, separated by spaces.
fn columns(row: &Row) -> Vec<(&'static str, String)> {
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    vec![
        ("threads", row.threads.to_string()),
        ("target", row.target.to_owned()),
        ("test", row.test.to_owned()),
        ("tokens", row.tokens.to_string()),
        ("depth", row.depth.to_string()),
        ("tokens_per_second", row.median.to_string()),
        ("min", row.min.to_string()),
        ("max", row.max.to_string()),
        ("all", row.all.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")),
        ("bytes_per_token", number(row.bytes_per_token)),
        ("bytes_read_per_token", row.bytes_read_per_token.to_string()),
        ("peak_memory", number(row.peak_memory)),
        ("deferred", row.deferral.map_or(0, |deferral| deferral.experts).to_string()),
    ]
}

/// Quotes a value as in RFC 4180.
pub fn csv_cell(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_with_commas_and_quotes_are_quoted() {
        assert_eq!(super::csv_cell("a b"), "a b");
        assert_eq!(super::csv_cell("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
