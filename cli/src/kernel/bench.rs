//! `ixc kernel bench`: speed of a kernel on this machine.

use std::io::{self, Write};

use ixc_compile::machine::bandwidth;
use ixc_workbench::kernels::bench::{Measurement, MemoryLevel, Peak, call_work, measure, peak};
use serde_json::json;

use super::super::output::{self, Bytes, Count, count_text};
use super::super::perf::PerfChoice;
use super::super::terminal;
use super::choice::{InputChoice, KernelChoice, dims_text};

/// Measures a kernel on this machine: time per call and its spread, GB/s of weights, GOP/s, and the
/// share of the peak.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "GB/s counts bytes of weights, for attention of keys and values, and otherwise of all buffers. \
GOP/s counts two operations per multiply-add. \"caches\" calls the kernel on the same buffers, \
\"memory\" on more buffers than the caches hold. The share of bandwidth is relative to the \
bandwidth that `ixc doctor` measures. The share of the peak is relative to a loop of the same \
multiply-adds in registers. Rates are of the median round; +- is half of the interquartile range.

EXAMPLES:
  ixc kernel bench gemv_q4_k --threads 1,2
  ixc kernel bench gemm_q4_k --rows 512 --json
  ixc kernel bench linear format=q8_0 k=4096 tile=32 n=4096 shape=gemv"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    #[command(flatten)]
    inputs: InputChoice,
    /// Thread counts to measure; each thread has its own buffers.
    #[arg(short, long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Rounds of each measurement, after two warm-up rounds.
    #[arg(short, long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    repetitions: u32,
    #[command(flatten)]
    perf: PerfChoice,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measurements with one number of threads.
struct Row {
    measured: Vec<Measurement>,
    /// Bytes per second that the threads read from memory.
    bandwidth: f64,
    peak: Option<Peak>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        self.perf.enable()?;
        let case = self.inputs.case(self.kernel.choose()?)?;
        let work = call_work(&case);
        let (kernel, target) = (&case.chosen.kernel, case.chosen.target);
        let mut rows = Vec::new();
        for &threads in &self.threads {
            let threads = usize::from(threads);
            // The bandwidth is measured before and after. A slow phase of the machine would
            // otherwise raise the kernel's share of the peak.
            let before = bandwidth::measure(threads, bandwidth::BUFFER_BYTES);
            let mut measured = Vec::new();
            for place in [MemoryLevel::Caches, MemoryLevel::Memory] {
                measured.push(measure(&case, place, threads, self.repetitions)?);
            }
            let peak = match work.multiply_adds {
                0 => None,
                _ => peak(work.arithmetic, target, threads, self.repetitions)?,
            };
            let bandwidth = bandwidth::measure(threads, bandwidth::BUFFER_BYTES).max(before);
            rows.push(Row { measured, bandwidth, peak });
        }
        if self.json {
            let measured: Vec<_> = rows
                .iter()
                .flat_map(|row| row.measured.iter().map(move |measured| (row, measured)))
                .map(|(row, measured)| {
                    json!({
                        "measured": measured,
                        "bandwidth_bytes_per_second": row.bandwidth,
                        "bandwidth_share": measured.bytes_per_second / row.bandwidth,
                        "peak": row.peak,
                        "peak_share": share(measured, row),
                    })
                })
                .collect();
            let facts = json!({
                "kernel": kernel.name,
                "spec": case.chosen.spec.as_ref().map(ToString::to_string),
                "target": target.name(),
                "dims": case.dims,
                "bytes": work.bytes,
                "multiply_adds": work.multiply_adds,
                "arithmetic": work.arithmetic.name(),
                "rows": measured,
            });
            return Ok(output::json(out, "ixc.kernel-bench.v1", &facts)?);
        }
        writeln!(out, "{} on {}", kernel.name, ixc_compile::machine::features::cpu_name())?;
        let dims = if kernel.dims.is_empty() { String::new() } else { format!("{}; ", dims_text(kernel, &case.dims)) };
        writeln!(
            out,
            "{dims}{} of data and {} multiply-adds ({}) in each call",
            Bytes(work.bytes),
            Count(work.multiply_adds),
            work.arithmetic.name()
        )?;
        write_table(out, &rows)?;
        Ok(rows.iter().try_for_each(|row| write_peaks(out, row))?)
    }
}

/// Min columns of a terminal for the whole table.
const WIDE: usize = 102;

fn share(measured: &Measurement, row: &Row) -> Option<f64> {
    Some(measured.operations_per_second? / row.peak.as_ref()?.operations_per_second)
}

/// Writes a table with a row for each number of threads and location of the buffers (memory or
/// cache).
fn write_table(out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
    // A terminal of 80 columns has no room for the columns `min` and `max`.
    let details = terminal::output_width().is_none_or(|width| width >= WIDE);
    let extremes = |min: &str, max: &str| if details { format!("{min:>12} {max:>12}  ") } else { String::new() };
    writeln!(
        out,
        "{:>7} {:<6} {:>12} {:>6} {}{:>9} {:>9}  {:>9} {:>7}",
        "threads",
        "place",
        "us/call",
        "+-",
        extremes("min", "max"),
        "GB/s",
        "of memory",
        "GOP/s",
        "of peak"
    )?;
    let microseconds = |seconds: f64| format!("{:.3}", 1e6 * seconds);
    for row in rows {
        for measured in &row.measured {
            let seconds = &measured.seconds;
            let place = if measured.place == MemoryLevel::Caches { "caches" } else { "memory" };
            let operations = measured.operations_per_second.map_or("-".into(), |rate| format!("{:.1}", rate / 1e9));
            let share = share(measured, row).map_or("-".into(), |share| format!("{:.1} %", 100.0 * share));
            writeln!(
                out,
                "{:>7} {place:<6} {:>12.3} {:>4.1} % {}{:>9.2} {:>7.1} %  {operations:>9} {share:>7}",
                measured.threads,
                1e6 * seconds.median,
                100.0 * seconds.spread,
                extremes(&microseconds(seconds.min), &microseconds(seconds.max)),
                measured.bytes_per_second / 1e9,
                100.0 * measured.bytes_per_second / row.bandwidth,
            )?;
        }
    }
    Ok(())
}

/// Writes the bandwidth of memory, and the peak of the kernel's arithmetic.
fn write_peaks(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    let threads = row.measured.first().map_or(1, |measured| measured.threads);
    write!(out, "{}: memory {:.2} GB/s", count_text(threads as u64, "thread"), row.bandwidth / 1e9)?;
    match &row.peak {
        Some(peak) => {
            let rate = peak.operations_per_second / 1e9;
            writeln!(out, ", peak {rate:.1} GOP/s +- {:.1} %", 100.0 * peak.seconds.spread)
        }
        None => writeln!(out),
    }
}
