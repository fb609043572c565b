//! Text of a forecast for several ranks.

use std::fmt::{self, Display, Formatter};

use ixc_ir::units::{Bytes, count_text};

use super::ClusterForecast;
use super::step::{RankForecast, RankSeconds, StepForecast};

impl Display for ClusterForecast {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (decode, prefill) = (&self.decode, &self.prefill);
        let machines = self.ranks.div_ceil(self.sockets.max(1));
        writeln!(
            f,
            "{} by {}, on {} ({})",
            count_text(self.ranks.into(), "rank"),
            self.division,
            count_text(machines.into(), "machine"),
            self.machines
        )?;
        writeln!(
            f,
            "decode    {} tokens/s, {} ms a token at position {}; bound: {}",
            rate(decode),
            milliseconds(decode.seconds),
            decode.position,
            decode.bound.words()
        )?;
        writeln!(
            f,
            "prefill   {} tokens/s, {} tokens in {} ms; bound: {}",
            rate(prefill),
            prefill.tokens,
            milliseconds(prefill.seconds),
            prefill.bound.words()
        )?;
        write_token(f, decode)?;
        write_ranks(f, decode)?;
        if self.compared.len() > 1 {
            writeln!(f)?;
            for row in &self.compared {
                match (row.seconds, &row.problem) {
                    (Some(seconds), _) => writeln!(f, "{:<9} {} ms a token", row.division, milliseconds(seconds))?,
                    (None, problem) => {
                        writeln!(f, "{:<9} not possible: {}", row.division, problem.as_deref().unwrap_or("no reason"))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Writes the mean time of a rank for a decoded token, and the exchanges.
fn write_token(f: &mut Formatter<'_>, step: &StepForecast) -> fmt::Result {
    let RankSeconds { memory, compute, drive, barriers, latency, transfer, waiting } = step.mean;
    let causes = [
        ("memory", memory),
        ("compute", compute),
        ("drive", drive),
        ("barriers", barriers),
        ("link latency", latency),
        ("link bandwidth", transfer),
        ("waiting", waiting),
    ];
    let causes: Vec<String> = causes
        .iter()
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(name, seconds)| format!("{name} {}", milliseconds(*seconds)))
        .collect();
    writeln!(f, "token     mean of ranks, ms: {}", causes.join(", "))?;
    let counts = &step.exchanges;
    let kinds = [("all_reduce", counts.all_reduce), ("all_gather", counts.all_gather), ("send", counts.send)];
    let kinds: Vec<String> =
        kinds.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect();
    if !kinds.is_empty() {
        writeln!(
            f,
            "exchanges {}: {}; {} on machines, {} between machines",
            kinds.join(", "),
            count_text(counts.messages, "message"),
            Bytes(counts.bytes_inside as u64),
            Bytes(counts.bytes_between as u64)
        )?;
    }
    writeln!(f, "balance   {:.0} %: mean work of a rank, relative to the busiest rank", step.balance * 100.0)
}

/// Writes a line for each rank, or one line for several consecutive ranks with equal times.
fn write_ranks(f: &mut Formatter<'_>, step: &StepForecast) -> fmt::Result {
    writeln!(f)?;
    writeln!(
        f,
        "{:<9} {:>10} {:>12} {:>10} {:>10} {:>10}",
        "ranks", "weights", "read/token", "work ms", "links ms", "waits ms"
    )?;
    let rows: Vec<[String; 5]> = step.ranks.iter().map(cells).collect();
    let mut first = 0;
    while first < rows.len() {
        let equal = rows[first..].iter().take_while(|row| **row == rows[first]).count();
        let last = first + equal - 1;
        let ranks = if last == first { first.to_string() } else { format!("{first}-{last}") };
        let [weights, read, work, links, waits] = &rows[first];
        writeln!(f, "{ranks:<9} {weights:>10} {read:>12} {work:>10} {links:>10} {waits:>10}")?;
        first = last + 1;
    }
    Ok(())
}

fn cells(rank: &RankForecast) -> [String; 5] {
    let seconds = &rank.seconds;
    [
        Bytes(rank.weights).to_string(),
        Bytes(rank.read as u64).to_string(),
        milliseconds(seconds.work()),
        milliseconds(seconds.latency + seconds.transfer),
        milliseconds(seconds.waiting),
    ]
}

fn rate(step: &StepForecast) -> String {
    let rate = step.tokens_per_second;
    if rate < 100.0 { format!("{rate:.2}") } else { format!("{rate:.0}") }
}

fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}
