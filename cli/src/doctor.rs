//! `ixc doctor`: facts about this machine, its target, and missing features.

use std::io::Write;
use std::path::PathBuf;
use std::thread::available_parallelism;

use ixc_compile::machine::features::{cpu_name, features, targets};
use ixc_compile::machine::system::{Probe, executable_memory, huge_pages, io_uring, memory};
use ixc_generate::drive::{self, Measured};
use ixc_targets::Target;
use ixc_targets::cpu::{Caches, caches};
use ixc_workbench::kernels::roofline::Roofline;
use serde_json::json;

use super::output::{self, Bytes, Printable, counted};
use super::ranges::Ranges;
use super::wrap::wrapped;

/// Shows CPU features, the chosen target, memory bandwidth and what the system allows.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc doctor
  ixc doctor -v                      missing features of targets
  ixc doctor --drive large.gguf      speed of its drive
  ixc doctor --json | jq .bandwidth")]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Skip the measurements of memory bandwidth and matrix products.
    #[arg(long)]
    no_bandwidth: bool,
    /// Measure the drive of this file by reading it for a few seconds; of a folder, its largest
    /// file is read. Later runs stream with the best number of reads in flight.
    #[arg(long, value_name = "PATH")]
    drive: Option<PathBuf>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let threads = available_parallelism().map_or(1, |threads| threads.get());
        let memory = memory();
        // Measure the drive first: a wrong path then fails before the memory is measured.
        let drive = self.drive.as_deref().map(drive::measure).transpose()?;
        let mut limits: Vec<Roofline> = Vec::new();
        if !self.no_bandwidth {
            for threads in [Some(1), Some(threads).filter(|threads| *threads > 1)].into_iter().flatten() {
                limits.push(Roofline::measure(Target::native(), threads, None));
            }
        }
        let (targets, features, huge_pages) = (targets(), features(), huge_pages());
        let (ring, executable, caches) = (io_uring(), executable_memory(), caches());
        if self.json {
            let facts = json!({
                "ixc": ixc_compile::build::BUILD,
                "cpu": cpu_name(),
                "threads": threads,
                "caches": caches,
                "target": targets.iter().find(|target| target.chosen).map(|target| target.name),
                "targets": targets,
                "features": features,
                "memory": memory,
                "bandwidth": limits,
                "transparent_huge_pages": huge_pages,
                "io_uring": ring,
                "executable_memory": executable,
                "drive": drive.as_ref().map(drive_facts),
            });
            return Ok(output::json(out, "ixc.doctor.v1", &facts)?);
        }
        writeln!(out, "ixc        {}", ixc_compile::build::version())?;
        writeln!(out, "CPU        {}, {}", Printable(&cpu_name()), counted(threads as u64, "thread"))?;
        let details = output::is_verbose();
        for target in &targets {
            match (target.chosen, target.missing.as_slice()) {
                (true, _) => writeln!(out, "target     {:<16} chosen", target.name)?,
                (false, []) => writeln!(out, "target     {:<16} runs here", target.name)?,
                (false, [first, rest @ ..]) if details => {
                    writeln!(out, "target     {:<16} lacks {first}", target.name)?;
                    rest.iter().try_for_each(|missing| writeln!(out, "{:<28}lacks {missing}", ""))?;
                }
                // Most lines would say "not in CPUID": omit it.
                (false, _) => {
                    let lacks = target.lacks.replace(" (not in CPUID)", "");
                    let line = format!("target     {:<16} lacks {lacks}", target.name);
                    writeln!(out, "{}", wrapped(&line, WIDTH + 1))?;
                }
            }
        }
        if details {
            for feature in &features {
                let mark = if feature.present { "yes" } else { "no" };
                writeln!(out, "feature    {:<16} {mark:<4} {}", feature.name, feature.gives)?;
            }
        } else {
            let names = |present: bool| {
                let chosen = features.iter().filter(|feature| feature.present == present);
                chosen.map(|feature| feature.name).collect::<Vec<_>>()
            };
            for (title, names) in [("features", names(true)), ("lacking", names(false))] {
                list(out, title, &names)?;
            }
        }
        let or_unknown = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        let Caches { l1d, l2, l3 } = caches;
        writeln!(out, "caches     L1d {}, L2 {}, L3 {}", or_unknown(l1d), or_unknown(l2), or_unknown(l3))?;
        writeln!(out, "memory     {}, {} available", or_unknown(memory.total), or_unknown(memory.available))?;
        if let Some(limit) = memory.cgroup_limit {
            writeln!(out, "           limited to {} by the control group", Bytes(limit))?;
        }
        for Roofline { threads, bytes_per_second, caches, no_bandwidth, products, refused } in &limits {
            let by = counted(*threads as u64, "thread");
            let rates = bytes_per_second.iter().map(|rate| format!("memory {:.1}", rate / 1e9));
            let rates =
                rates.chain(caches.iter().map(|rate| format!("{} {:.1}", rate.level, rate.bytes_per_second / 1e9)));
            let rates: Vec<String> = rates.collect();
            if !rates.is_empty() {
                writeln!(out, "bandwidth  {} GB/s read by {by}", rates.join(", "))?;
            }
            if let Some(why) = no_bandwidth {
                writeln!(out, "           memory is not measured: {why}")?;
            }
            if let Some(reason) = refused {
                writeln!(out, "products   not measured: {}", Printable(reason))?;
                continue;
            }
            let products = products.iter().map(|rate| format!("{} {:.1}", rate.of, rate.operations_per_second / 1e9));
            writeln!(out, "products   {} GOP/s by {by}", products.collect::<Vec<_>>().join(", "))?;
        }
        let advice = match huge_pages.as_deref() {
            Some("always" | "madvise") => "; ixc uses them for activations and tables",
            _ => "; with `madvise`, ixc would use them for activations",
        };
        writeln!(out, "huge pages {}{advice}", huge_pages.as_deref().unwrap_or("unknown"))?;
        let probe = |probe: &Probe| match &probe.reason {
            None => "available".to_owned(),
            Some(reason) => format!("not available ({})", Printable(reason)),
        };
        let reader = if ring.available { "it" } else { "threads" };
        writeln!(out, "io_uring   {}; {reader} would read streamed experts", probe(&ring))?;
        if let Some(drive) = &drive {
            write_drive(out, drive)?;
        }
        writeln!(out, "JIT        executable memory {}", probe(&executable))?;
        if !executable.available {
            writeln!(out, "           compiled plans cannot run; `ixc logits --engine interpreter` can")?;
        }
        Ok(())
    }
}

/// Columns of a line.
const WIDTH: usize = 79;

/// Prints names after a title, in lines of limited length.
fn list(out: &mut dyn Write, title: &str, names: &[&str]) -> std::io::Result<()> {
    let (mut line, mut title) = (String::new(), title);
    for name in names {
        if !line.is_empty() && line.len() + name.len() + 12 > WIDTH {
            writeln!(out, "{title:<10}{line}")?;
            (title, line) = ("", String::new());
        }
        line.push(' ');
        line.push_str(name);
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "{title:<10}{line}") }
}

fn drive_facts(measured: &Measured) -> serde_json::Value {
    let probe = &measured.probe;
    let rates: Vec<_> = probe.rates.iter().map(|rate| {
        json!({"depth": rate.depth, "bytes_per_second": rate.median, "lowest": rate.lowest, "highest": rate.highest})
    }).collect();
    json!({
        "file": measured.file.display().to_string(),
        "name": measured.place.as_ref().map(|place| &place.name),
        "model": measured.place.as_ref().and_then(|place| place.model.as_ref()),
        "pcie_root": measured.place.as_ref().and_then(|place| place.root.as_ref()),
        "numa_node": measured.place.as_ref().and_then(|place| place.node),
        "near_cpus": measured.place.as_ref().and_then(|place| place.cpus.as_ref()),
        "bytes_of_a_read": probe.chunk,
        "backend": probe.backend,
        "direct": probe.direct,
        "rates": rates,
        "queue_depth": probe.depth,
        "remembered": measured.remembered.is_ok(),
        "notes": measured.notes(),
    })
}

fn write_drive(out: &mut dyn Write, measured: &Measured) -> std::io::Result<()> {
    let probe = &measured.probe;
    let name = match &measured.place {
        None => "no block device".to_owned(),
        Some(place) => {
            let model = place.model.as_deref().map_or(String::new(), |model| format!(", {model}"));
            let root = place.root.as_deref().map_or(String::new(), |root| format!(", on {root}"));
            let near = match (place.node, &place.cpus) {
                (Some(node), Some(cpus)) => format!(", near NUMA node {node} (CPUs {})", Ranges(cpus)),
                (Some(node), None) => format!(", near NUMA node {node}"),
                (None, _) => ", no NUMA node is nearer than others".into(),
            };
            format!("{}{model}{root}{near}", place.name)
        }
    };
    writeln!(out, "drive      {}", Printable(&name))?;
    writeln!(
        out,
        "           {}: random reads of {} {}, with {}",
        Printable(&measured.file.display().to_string()),
        Bytes(probe.chunk),
        if probe.direct { "past the page cache" } else { "THROUGH THE PAGE CACHE (not the rates of the drive)" },
        probe.backend
    )?;
    for rate in &probe.rates {
        writeln!(
            out,
            "           {:>2} at once {:>7.2} GB/s  ({:.2} to {:.2})",
            rate.depth,
            rate.median / 1e9,
            rate.lowest / 1e9,
            rate.highest / 1e9
        )?;
    }
    let reads = counted(probe.depth as u64, "read");
    writeln!(out, "           streaming makes {reads} at once, for 95 % of the best rate")?;
    measured.notes().iter().try_for_each(|note| writeln!(out, "           {}", Printable(note)))
}
