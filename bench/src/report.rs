//! The measurements, stored as JSON and shown as a table.
//!
//! Invariant: the JSON has every sample. The table is computed from the samples alone.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::process::ProgramResources;
use crate::statistics::{Ratio, Summary};
use crate::work::Work;

/// Max bytes of a report: a full comparison has some hundred kilobytes.
const MAX_BYTES: u64 = 64 << 20;
/// A run counts as disturbed if other processes kept at least this many processors busy.
const DISTURBED: f64 = 0.1;

/// Measurements of a comparison, and the machine that they were made on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The processor's name.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
    /// Bandwidth of the memory for each number of threads.
    pub bandwidth: Vec<Bandwidth>,
    /// Compared works, in the order of the table.
    pub rows: Vec<Row>,
}

/// Row of the table: measurements of all engines for one work, on one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// File of the model.
    pub model: String,
    /// Number of threads.
    pub threads: usize,
    /// The measured work.
    pub work: Work,
    /// Least number of bytes that each token reads; only for decode.
    pub bytes_per_token: Option<u64>,
    /// Bandwidth of the memory in each round, just before the entrants, in bytes per second; only
    /// for decode.
    #[serde(default)]
    pub bandwidth: Vec<f64>,
    /// Measured entrants. Ratios are relative to the first entrant.
    pub entries: Vec<Entry>,
}

/// One entrant of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the engine.
    pub engine: String,
    /// The variant of the engine.
    pub variant: String,
    /// The samples of each round.
    pub rounds: Vec<Vec<f64>>,
    /// Time and memory of the process in each round.
    pub taken: Vec<ProgramResources>,
    /// The reason why the variant was not measured.
    pub problem: Option<String>,
    /// Statistics of all samples.
    pub summary: Option<Summary>,
    /// Ratio to the first entrant; above 1 the first entrant is better.
    pub ratio: Option<Ratio>,
    /// The share of the memory's bandwidth that reading the bytes of its tokens takes.
    pub bandwidth_share: Option<f64>,
    /// Whether this variant is the best of its engine.
    pub best: bool,
    /// Rounds in which other processes were computing.
    pub disturbed: usize,
    /// Messages between ranks in the last round, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchanged: Option<RankTraffic>,
}

/// Exchanges of rank 0 in one run of a test, as `ixc bench --json` prints them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTraffic {
    /// Counted exchanges.
    pub counted: TestTraffic,
    /// Exchanges that the plan states.
    pub planned: TestTraffic,
    /// Time in exchanges, in seconds.
    pub waited: f64,
}

/// Exchanges of a rank, and its messages in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestTraffic {
    /// Number of exchanges.
    pub exchanges: u64,
    /// Messages that the rank sends.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
}

impl Entry {
    /// Returns an entrant without measurements.
    pub fn new(engine: &str, variant: &str) -> Entry {
        Entry {
            engine: engine.to_owned(),
            variant: variant.to_owned(),
            rounds: Vec::new(),
            taken: Vec::new(),
            problem: None,
            summary: None,
            ratio: None,
            bandwidth_share: None,
            best: false,
            disturbed: 0,
            exchanged: None,
        }
    }
}

impl Report {
    /// Reads a report from a file.
    pub fn read(path: &Path) -> anyhow::Result<Report> {
        let text = ixc_files::read_bytes(path, MAX_BYTES).with_context(|| format!("cannot read {}", path.display()))?;
        let mut report: Report = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not what `ixc-bench compare --json` writes", path.display()))?;
        report.settle();
        Ok(report)
    }

    /// Writes to a temporary file and renames it, so that a partial report is never visible.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        ixc_files::atomic_write(path, &text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Computes all derived fields from the samples.
    pub fn settle(&mut self) {
        for row in &mut self.rows {
            let unit = row.work.unit();
            let first = row.entries.first().map(|entry| entry.rounds.clone()).unwrap_or_default();
            let bandwidth = self.bandwidth.iter().filter(|bandwidth| bandwidth.threads == row.threads);
            let overall = bandwidth.map(|bandwidth| bandwidth.bytes_per_second).reduce(f64::max);
            // The bandwidth of a shared machine changes over time, so the bandwidth of the same
            // rounds is preferred.
            let bandwidth = Summary::from_samples(&row.bandwidth).map(|summary| summary.median).or(overall);
            for (index, entry) in row.entries.iter_mut().enumerate() {
                entry.summary = Summary::from_samples(&entry.rounds.concat());
                entry.ratio = if index == 0 { None } else { Ratio::from_rounds(unit, &first, &entry.rounds) };
                entry.disturbed = entry.taken.iter().filter(|taken| taken.foreign > DISTURBED).count();
                entry.bandwidth_share = match (row.bytes_per_token, bandwidth, entry.summary) {
                    (Some(bytes), Some(bandwidth), Some(summary)) => Some(summary.median * bytes as f64 / bandwidth),
                    _ => None,
                };
            }
            for index in 0..row.entries.len() {
                let median = |entry: &Entry| entry.summary.map(|summary| summary.median);
                let entry = &row.entries[index];
                let better = |other: &Entry| match (median(other), median(entry)) {
                    (Some(other), Some(own)) => unit.ratio(other, own) > 1.0,
                    _ => false,
                };
                let best = median(entry).is_some()
                    && !row.entries.iter().any(|other| other.engine == entry.engine && better(other));
                row.entries[index].best = best;
            }
        }
    }

    /// Returns the report as a table of text.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}, {} processors", self.processor, self.processors)?;
        for bandwidth in &self.bandwidth {
            let rate = bandwidth.bytes_per_second * 1e-9;
            writeln!(out, "memory is read at {rate:.1} GB/s by {}", threads(bandwidth.threads))?;
        }
        let mut heading = None;
        for row in &self.rows {
            let this = (row.model.as_str(), row.threads);
            if heading != Some(this) {
                heading = Some(this);
                writeln!(out, "\n{}, {}", row.model, threads(row.threads))?;
                writeln!(
                    out,
                    "{:<32} {:<30} {:>10} {:>21}  {:>7} {:>15}  {:>9}",
                    "", "", "median", "min .. max", "ahead", "min .. max", "bandwidth"
                )?;
            }
            let title = format!("{}, {}", row.work, row.work.unit().name());
            if let Some(bandwidth) = Summary::from_samples(&row.bandwidth) {
                let [median, min, max] = [bandwidth.median, bandwidth.min, bandwidth.max].map(|rate| rate * 1e-9);
                let spread = format!("{min:.1} .. {max:.1}");
                writeln!(out, "{:<32} {:<30} {median:>10.1} {spread:>21}", "memory meanwhile, GB/s", "")?;
            }
            for (index, entry) in row.entries.iter().enumerate() {
                write_entry(out, row, entry, if index == 0 { &title } else { "" })?;
            }
        }
        let entries = || self.rows.iter().flat_map(|row| &row.entries);
        writeln!(out, "\n\"ahead\": how many times better {} is.", self.first_name())?;
        if entries().any(|entry| entry.best && !entry.variant.is_empty()) {
            writeln!(out, "*: the best of the measured variants of its engine.")?;
        }
        if entries().any(|entry| entry.bandwidth_share.is_some()) {
            writeln!(out, "\"bandwidth\": bytes that the tokens read at least, as a share of what memory gave.")?;
        }
        if entries().any(|entry| entry.disturbed > 0) {
            writeln!(out, "!n: in n rounds, other programs kept more than {DISTURBED} processors busy.")?;
        }
        Ok(())
    }

    fn first_name(&self) -> &str {
        let first = self.rows.first().and_then(|row| row.entries.first());
        first.map_or("the first", |entry| &entry.engine)
    }
}

fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

fn write_entry(out: &mut String, row: &Row, entry: &Entry, title: &str) -> std::fmt::Result {
    let unit = row.work.unit();
    let mut name = entry.engine.clone();
    if !entry.variant.is_empty() {
        name = format!("{name} {}{}", entry.variant, if entry.best { " *" } else { "" });
    }
    write!(out, "{title:<32} {name:<30}")?;
    let Some(summary) = entry.summary else {
        return writeln!(out, " {}", entry.problem.as_deref().unwrap_or("not measured"));
    };
    let spread = format!("{} .. {}", unit.text(summary.min), unit.text(summary.max));
    let (mut ahead, mut range, mut share) = (String::new(), String::new(), String::new());
    if let Some(ratio) = entry.ratio {
        ahead = format!("{:.2}x", ratio.of_medians);
        range = format!("{:.2} .. {:.2}", ratio.min, ratio.max);
    }
    if let Some(value) = entry.bandwidth_share {
        share = format!("{:.0} %", value * 100.0);
    }
    let mut rest = format!(" {:>10} {spread:>21}  {ahead:>7} {range:>15}  {share:>9}", unit.text(summary.median));
    if entry.disturbed > 0 {
        write!(rest, " !{}", entry.disturbed)?;
    }
    if let Some(problem) = &entry.problem {
        write!(rest, " then {problem}")?;
    }
    writeln!(out, "{}", rest.trim_end())?;
    match (entry.exchanged, row.work.tokens()) {
        (Some(exchanged), Some(tokens)) => writeln!(out, "{:<32} {}", "", messages(exchanged, tokens)),
        _ => Ok(()),
    }
}

/// Returns a line about the messages of a rank for each token of a test.
fn messages(exchanged: RankTraffic, tokens: usize) -> String {
    let RankTraffic { counted, planned, waited } = exchanged;
    let tokens = tokens.max(1) as f64;
    let numbers = |traffic: TestTraffic| {
        let (messages, bytes) = (traffic.messages as f64 / tokens, traffic.bytes as f64 / tokens);
        format!("{messages:.2} messages of {bytes:.0} bytes in all")
    };
    let plan = if counted == planned { "as planned".to_owned() } else { format!("planned {}", numbers(planned)) };
    format!("  per token {}, {plan}; {:.3} ms in exchanges", numbers(counted), waited * 1e3 / tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let entry = |engine: &str, variant: &str, values: [f64; 3]| {
            let mut entry = Entry::new(engine, variant);
            entry.rounds = values.map(|value| vec![value]).to_vec();
            entry.taken = vec![ProgramResources { status: Some(0), foreign: 0.0, ..ProgramResources::default() }; 3];
            entry
        };
        let mut failed = Entry::new("mistral.rs", "");
        failed.problem = Some("exit status 1: no such architecture".into());
        let mut disturbed = entry("llama.cpp", "repack 1 fa 0", [20.0, 25.0, 30.0]);
        disturbed.taken[1].foreign = 0.9;
        let mut ranks = entry("ixc", "", [40.0, 42.0, 36.0]);
        let counted = TestTraffic { exchanges: 128, messages: 64, bytes: 65_536 };
        let planned = TestTraffic { messages: 128, ..counted };
        ranks.exchanged = Some(RankTraffic { counted, planned, waited: 0.016 });
        let decode = Row {
            model: "m.gguf".into(),
            threads: 2,
            work: Work::Decode { tokens: 64, depth: 0 },
            bytes_per_token: Some(500_000_000),
            bandwidth: vec![20e9, 25e9, 26e9],
            entries: vec![ranks, disturbed, entry("llama.cpp", "repack 0 fa 1", [32.0, 30.0, 31.0]), failed],
        };
        let start = Row {
            work: Work::FirstToken,
            bytes_per_token: None,
            bandwidth: Vec::new(),
            entries: vec![entry("ixc", "", [0.1, 0.2, 0.1]), entry("llama.cpp", "", [0.4, 0.2, 0.3])],
            ..decode.clone()
        };
        let mut report = Report {
            processor: "CPU".into(),
            processors: 2,
            bandwidth: vec![Bandwidth { threads: 2, buffer: 1, bytes_per_second: 26e9 }],
            rows: vec![decode, start],
        };
        report.settle();
        report
    }

    #[test]
    fn report_marks_best_variant_and_computes_ratios() {
        let report = report();
        let best: Vec<bool> = report.rows[0].entries.iter().map(|entry| entry.best).collect();
        assert_eq!(best, [true, false, true, false]);
        let ratio = report.rows[0].entries[2].ratio.unwrap();
        assert_eq!((ratio.of_medians, ratio.min), (40.0 / 31.0, 36.0 / 31.0));
        assert_eq!(report.rows[0].entries[0].bandwidth_share, Some(0.8));
        // Less is better for this work.
        assert_eq!(report.rows[1].entries[1].ratio.unwrap().of_medians, 0.3 / 0.1);
    }

    #[test]
    fn table_shows_all_columns_and_notes() {
        let expected = "\
CPU, 2 processors
memory is read at 26.0 GB/s by 2 threads

m.gguf, 2 threads
                                                                    median            min .. max    ahead      min .. max  bandwidth
memory meanwhile, GB/s                                                25.0          20.0 .. 26.0
decode 64, t/s                   ixc                                 40.00        36.00 .. 42.00                                80 %
                                   per token 1.00 messages of 1024 bytes in all, planned 2.00 messages of 1024 bytes in all; 0.250 ms in exchanges
                                 llama.cpp repack 1 fa 0             25.00        20.00 .. 30.00    1.60x    1.20 .. 2.00       50 % !1
                                 llama.cpp repack 0 fa 1 *           31.00        30.00 .. 32.00    1.29x    1.16 .. 1.40       62 %
                                 mistral.rs                     exit status 1: no such architecture
start to first token, ms         ixc                               100.000    100.000 .. 200.000
                                 llama.cpp                         300.000    200.000 .. 400.000    3.00x    1.00 .. 4.00

\"ahead\": how many times better ixc is.
*: the best of the measured variants of its engine.
\"bandwidth\": bytes that the tokens read at least, as a share of what memory gave.
!n: in n rounds, other programs kept more than 0.1 processors busy.
";
        assert_eq!(report().table(), expected);
    }

    #[test]
    fn report_survives_json_round_trip() {
        let report = report();
        let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(again, report);
    }
}
