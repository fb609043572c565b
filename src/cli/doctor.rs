//! `ixc doctor`: what this machine has, which target it gets, and what is missing.

use std::io::Write;
use std::thread::available_parallelism;

use ixc::machine::bandwidth;
use ixc::machine::features::{cpu_name, features, targets};
use ixc::machine::system::{Probe, executable_memory, huge_pages, io_uring, memory};
use serde_json::json;

use super::output::{self, Bytes, Printable};

/// Shows CPU features, the chosen target, memory bandwidth and what the system allows.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc doctor
  ixc doctor --json | jq .bandwidth")]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Leave out the measurement of memory bandwidth.
    #[arg(long)]
    no_bandwidth: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let threads = available_parallelism().map_or(1, |threads| threads.get());
        let memory = memory();
        // A quarter of what is free, so that looking never hurts.
        let bytes = memory.available.map_or(bandwidth::BUFFER_BYTES as u64, |free| free / 4);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(bandwidth::BUFFER_BYTES);
        let mut rates: Vec<(usize, f64)> = Vec::new();
        if !self.no_bandwidth {
            rates.push((1, bandwidth::measure(1, bytes)));
            if threads > 1 {
                rates.push((threads, bandwidth::measure(threads, bytes)));
            }
        }
        let (targets, features, huge_pages) = (targets(), features(), huge_pages());
        let (ring, executable) = (io_uring(), executable_memory());
        if self.json {
            let rates: Vec<_> =
                rates.iter().map(|(threads, rate)| json!({"threads": threads, "bytes_per_second": rate})).collect();
            let facts = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "cpu": cpu_name(),
                "threads": threads,
                "target": targets.iter().find(|target| target.chosen).map(|target| target.name),
                "targets": targets,
                "features": features,
                "memory": memory,
                "bandwidth": rates,
                "transparent_huge_pages": huge_pages,
                "io_uring": ring,
                "executable_memory": executable,
            });
            return Ok(output::json(out, &facts)?);
        }
        writeln!(out, "ixc        {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "CPU        {}, {threads} threads", Printable(&cpu_name()))?;
        for target in &targets {
            let state = match (target.chosen, target.missing.as_slice()) {
                (true, _) => "chosen".to_owned(),
                (false, []) => "runs here".to_owned(),
                (false, missing) => format!("cannot run here: lacks {}", missing.join(", ")),
            };
            writeln!(out, "target     {:<16} {state}", target.name)?;
        }
        for feature in &features {
            let mark = if feature.present { "yes" } else { "no" };
            writeln!(out, "feature    {:<16} {mark:<4} {}", feature.name, feature.gives)?;
        }
        let or_unknown = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        writeln!(out, "memory     {}, {} available", or_unknown(memory.total), or_unknown(memory.available))?;
        if let Some(limit) = memory.cgroup_limit {
            writeln!(out, "           limited to {} by the control group", Bytes(limit))?;
        }
        for (threads, rate) in &rates {
            let plural = if *threads == 1 { "" } else { "s" };
            writeln!(out, "bandwidth  {:.1} GB/s read by {threads} thread{plural}", rate / 1e9)?;
        }
        let advice = match huge_pages.as_deref() {
            Some("always" | "madvise") => "; activations and tables ask for them",
            _ => "; with `madvise`, activations would take fewer address translations",
        };
        writeln!(out, "huge pages {}{advice}", huge_pages.as_deref().unwrap_or("unknown"))?;
        let probe = |probe: &Probe| match &probe.reason {
            None => "available".to_owned(),
            Some(reason) => format!("not available ({})", Printable(reason)),
        };
        writeln!(out, "io_uring   {}; nothing uses it in this version", probe(&ring))?;
        writeln!(out, "JIT        executable memory {}", probe(&executable))?;
        if !executable.available {
            writeln!(out, "           compiled plans cannot run; `ixc logits --engine interpreter` can")?;
        }
        Ok(())
    }
}
