//! `ixc doctor`: facts about this machine, its target and missing features, and the values of
//! options in force.

use std::io::{self, Write};
use std::path::PathBuf;
use std::thread::available_parallelism;

use ixc_compile::machine::features::{Feature, TargetState, cpu_name, features, targets};
use ixc_compile::machine::system::{Memory, Probe, executable_memory, huge_pages, io_uring, memory};
use ixc_generate::drive::{self, DriveMeasurement};
use ixc_generate::plan_cache::{CachedPlan, PlanCache};
use ixc_measure::roofline::Roofline;
use ixc_sandbox::support::Support;
use ixc_targets::Target;
use ixc_targets::cpu::{Caches, caches};
use ixc_workbench::kernels::roofline;
use serde_json::{Value as Json, json};

use super::cache::{facts as cache_facts, size_text};
use super::nodes::NodesReport;
use super::output::{self, Bytes, Printable, count_text};
use super::plan_cache::CacheFolder;
use super::ranges::Ranges;
use super::settings::arguments::current;
use super::settings::report::SettingsReport;
use super::wrap::wrap;

mod ranks;

/// Describes this machine: CPU features, the chosen target, memory bandwidth, what the system
/// allows, and the options that variables and the configuration file set.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc doctor
  ixc doctor -v                      missing features of targets
  ixc doctor --drive large.gguf      speed of its drive
  ixc doctor --topology nodes.toml   places of ranks on another machine
  mpirun -n 4 ixc doctor --ranks     links between four ranks
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
    /// Show the NUMA nodes of a described machine (TOML) in place of this one's, and the places of
    /// ranks there.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    #[command(flatten)]
    links: ranks::LinkArgs,
    #[command(flatten)]
    cache: CacheFolder,
}

impl Args {
    /// Returns whether the command measures the links between ranks.
    pub fn measures_links(&self) -> bool {
        self.links.is_set()
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.links.is_set() {
            return self.links.run(self.json, out);
        }
        let settings = settings_report();
        let machine = Machine::measure(&self)?;
        if self.json {
            let mut facts = machine.facts();
            if let Some(settings) = settings {
                facts["config"] = settings.file_facts();
                facts["settings"] = settings.facts().into();
            }
            return Ok(output::json(out, "ixc.doctor.v1", &facts)?);
        }
        machine.write(out)?;
        Ok(settings.map_or(Ok(()), |settings| settings.write(out))?)
    }
}

/// Returns the values of options in force.
fn settings_report() -> Option<SettingsReport> {
    let mut command = super::command();
    command.build();
    Some(SettingsReport::new(&current()?, &command))
}

/// Measured properties of this machine.
struct Machine {
    threads: usize,
    targets: Vec<TargetState>,
    features: Vec<Feature>,
    caches: Caches,
    memory: Memory,
    drive: Option<DriveMeasurement>,
    /// NUMA nodes, if the system lists its processors.
    nodes: Option<NodesReport>,
    /// Rates of one thread and of all threads; empty if they were not measured.
    limits: Vec<Roofline>,
    huge_pages: Option<String>,
    io_uring: Probe,
    executable_memory: Probe,
    sandbox: Support,
    /// Cache of compiled plans, and its plans.
    plans: Option<(PlanCache, Vec<CachedPlan>)>,
}

impl Machine {
    /// Measures this machine.
    fn measure(args: &Args) -> anyhow::Result<Machine> {
        let threads = available_parallelism().map_or(1, |threads| threads.get());
        let memory = memory();
        let nodes = NodesReport::new(args.topology.as_deref(), !args.no_bandwidth)?;
        // Measure the drive first: a wrong path then fails before the memory is measured.
        let drive = args.drive.as_deref().map(drive::measure).transpose()?;
        let thread_counts = if threads > 1 { vec![1, threads] } else { vec![1] };
        let limits = match args.no_bandwidth {
            true => Vec::new(),
            false => thread_counts.into_iter().map(|count| roofline::measure(Target::native(), count, None)).collect(),
        };
        Ok(Machine {
            threads,
            targets: targets(),
            features: features(),
            caches: caches(),
            memory,
            drive,
            nodes,
            limits,
            huge_pages: huge_pages(),
            io_uring: io_uring(),
            executable_memory: executable_memory(),
            sandbox: Support::of_kernel(),
            // A folder that cannot be read has no plans; runs then log the reason.
            plans: args.cache.find().map(|cache| (cache.clone(), cache.list().unwrap_or_default())),
        })
    }

    /// Returns the properties as JSON.
    fn facts(&self) -> Json {
        json!({
            "ixc": ixc_compile::build::BUILD,
            "cpu": cpu_name(),
            "threads": self.threads,
            "caches": self.caches,
            "target": self.targets.iter().find(|target| target.chosen).map(|target| target.name),
            "targets": self.targets,
            "features": self.features,
            "memory": self.memory,
            "bandwidth": self.limits,
            "numa": self.nodes.as_ref().map(NodesReport::facts),
            "transparent_huge_pages": self.huge_pages,
            "io_uring": self.io_uring,
            "executable_memory": self.executable_memory,
            "sandbox": sandbox_facts(self.sandbox),
            "drive": self.drive.as_ref().map(drive_facts),
            "plan_cache": self.plans.as_ref().map(|(cache, plans)| cache_facts(cache, plans)),
        })
    }

    /// Writes the properties as lines with labels.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "ixc        {}", ixc_compile::build::version())?;
        writeln!(out, "CPU        {}, {}", Printable(&cpu_name()), count_text(self.threads as u64, "thread"))?;
        let details = output::is_verbose();
        self.targets.iter().try_for_each(|target| write_target(out, target, details))?;
        self.write_features(out, details)?;
        let Caches { l1d, l2, l3 } = self.caches;
        writeln!(out, "caches     L1d {}, L2 {}, L3 {}", or_unknown(l1d), or_unknown(l2), or_unknown(l3))?;
        let Memory { total, available, .. } = self.memory;
        writeln!(out, "memory     {}, {} available", or_unknown(total), or_unknown(available))?;
        if let Some(limit) = self.memory.cgroup_limit {
            writeln!(out, "           limited to {} by the control group", Bytes(limit))?;
        }
        self.nodes.iter().try_for_each(|nodes| nodes.write(out))?;
        self.limits.iter().try_for_each(|limits| write_limits(out, limits))?;
        self.write_system(out)
    }

    /// Writes the features of the CPU: their names, or a line for each with `details`.
    fn write_features(&self, out: &mut dyn Write, details: bool) -> io::Result<()> {
        if details {
            return self.features.iter().try_for_each(|feature| {
                let mark = if feature.present { "yes" } else { "no" };
                writeln!(out, "feature    {:<16} {mark:<4} {}", feature.name, feature.gives)
            });
        }
        for (title, present) in [("features", true), ("lacking", false)] {
            let features = self.features.iter().filter(|feature| feature.present == present);
            let names: Vec<&str> = features.map(|feature| feature.name).collect();
            list(out, title, &names)?;
        }
        Ok(())
    }

    /// Writes what the operating system allows, and the speed of the drive.
    fn write_system(&self, out: &mut dyn Write) -> io::Result<()> {
        let advice = match self.huge_pages.as_deref() {
            Some("always" | "madvise") => "; ixc uses them for activations and tables",
            _ => "; with `madvise`, ixc would use them for activations",
        };
        writeln!(out, "huge pages {}{advice}", self.huge_pages.as_deref().unwrap_or("unknown"))?;
        let probe = |probe: &Probe| match &probe.reason {
            None => "available".to_owned(),
            Some(reason) => format!("not available ({})", Printable(reason)),
        };
        writeln!(out, "io_uring   {}", probe(&self.io_uring))?;
        if !self.io_uring.available {
            writeln!(out, "           threads read streamed experts instead")?;
        }
        if let Some(drive) = &self.drive {
            write_drive(out, drive)?;
        }
        writeln!(out, "JIT        executable memory {}", probe(&self.executable_memory))?;
        if !self.executable_memory.available {
            writeln!(out, "           compiled plans cannot run; `ixc logits --engine interpreter` can")?;
        }
        write_sandbox(out, self.sandbox)?;
        match &self.plans {
            Some((cache, plans)) => {
                writeln!(out, "plan cache {}", size_text(cache, plans))?;
                writeln!(out, "           {}", Printable(&cache.folder().display().to_string()))
            }
            None => writeln!(out, "plan cache off: neither XDG_CACHE_HOME nor HOME is set"),
        }
    }
}

fn or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// Writes whether a target runs on this machine, and the features that the machine lacks. With
/// `details`, each has its own line.
fn write_target(out: &mut dyn Write, target: &TargetState, details: bool) -> io::Result<()> {
    match (target.chosen, target.missing.as_slice()) {
        (true, _) => writeln!(out, "target     {:<16} chosen", target.name),
        (false, []) => writeln!(out, "target     {:<16} runs here", target.name),
        (false, [first, rest @ ..]) if details => {
            writeln!(out, "target     {:<16} lacks {first}", target.name)?;
            rest.iter().try_for_each(|missing| writeln!(out, "{:<28}lacks {missing}", ""))
        }
        // Most features are missing because CPUID does not report them, so this reason is left out.
        (false, _) => {
            let lacks = target.lacks.replace(" (not in CPUID)", "");
            let line = format!("target     {:<16} lacks {lacks}", target.name);
            writeln!(out, "{}", wrap(&line, WIDTH + 1))
        }
    }
}

/// Writes the bandwidth of memory and caches, and the rates of matrix products.
fn write_limits(out: &mut dyn Write, limits: &Roofline) -> io::Result<()> {
    let Roofline { threads, bytes_per_second, caches, no_bandwidth, products, refused } = limits;
    let by = count_text(*threads as u64, "thread");
    let memory = bytes_per_second.iter().map(|rate| format!("memory {:.1}", rate / 1e9));
    let caches = caches.iter().map(|rate| format!("{} {:.1}", rate.level, rate.bytes_per_second / 1e9));
    let rates: Vec<String> = memory.chain(caches).collect();
    if !rates.is_empty() {
        writeln!(out, "bandwidth  {} GB/s read by {by}", rates.join(", "))?;
    }
    if let Some(why) = no_bandwidth {
        writeln!(out, "           memory is not measured: {why}")?;
    }
    if let Some(reason) = refused {
        return writeln!(out, "products   not measured: {}", Printable(reason));
    }
    let products = products.iter().map(|rate| format!("{} {:.1}", rate.of, rate.operations_per_second / 1e9));
    writeln!(out, "products   {} GOP/s by {by}", products.collect::<Vec<_>>().join(", "))
}

/// Max columns of a line.
const WIDTH: usize = 79;

/// Prints names after a title, in lines of limited length.
fn list(out: &mut dyn Write, title: &str, names: &[&str]) -> io::Result<()> {
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

/// Returns the features of the operating system's kernel that a sandbox uses, as JSON.
fn sandbox_facts(support: Support) -> Json {
    json!({"landlock": support.landlock, "seccomp": support.seccomp, "missing": support.missing()})
}

/// Writes the features of the operating system's kernel that a sandbox uses.
fn write_sandbox(out: &mut dyn Write, support: Support) -> io::Result<()> {
    let landlock = match support.landlock {
        0 => "no Landlock".to_owned(),
        version => format!("Landlock {version}"),
    };
    writeln!(out, "sandbox    {landlock}, {}", if support.seccomp { "seccomp" } else { "no seccomp" })?;
    support.missing().iter().try_for_each(|missing| writeln!(out, "           lacks {missing}"))
}

fn drive_facts(measured: &DriveMeasurement) -> serde_json::Value {
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
        "remembered": measured.stored.is_ok(),
        "notes": measured.notes(),
    })
}

fn write_drive(out: &mut dyn Write, measured: &DriveMeasurement) -> io::Result<()> {
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
    let reads = count_text(probe.depth as u64, "read");
    writeln!(out, "           streaming of experts makes {reads} at once, for 95 % of the best rate")?;
    measured.notes().iter().try_for_each(|note| writeln!(out, "           {}", Printable(note)))
}
