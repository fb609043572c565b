//! Order of the measurements. An entrant is a variant of an engine. Every round runs all entrants
//! of a job directly after each other, each round in another order. A temporary slowdown of the
//! machine then affects all of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::bandwidth::Bandwidth;
use crate::process::{FinishedProgram, Launcher};
use crate::report::{Entry, Report, Row};
use crate::rivals::{self, Places, Rival, Sample};
use crate::work::{Group, Job, Work};

/// Runs ixc and rivals on the same models, interleaved, and prints medians, spreads and ratios.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc-bench compare --ixc target/release/ixc --llama DIR/build/bin model.gguf
  ixc-bench compare --ixc target/release/ixc --llama DIR/build/bin model.gguf -t 1,2 --depth 8192 --first-token --json out.json
  ixc-bench compare --ixc new=target/release/ixc --ixc old=/tmp/ixc model.gguf    two builds
  ixc-bench compare --ixc target/release/ixc --kt DIR/venv/bin/python --layer layer.gguf
  ixc-bench compare --ixc ranks=target/release/ixc --ixc one=target/release/ixc -t 2 model.gguf \
    --launcher ranks='mpirun -n 2' --processes ranks=2 --file ranks=plan.ixp    ranks and threads

Setting up rivals: bench/peers/setup.sh. What each row includes: bench/README.md.")]
pub struct Args {
    #[command(flatten)]
    places: Places,
    /// Models.
    models: Vec<PathBuf>,
    /// Numbers of threads.
    #[arg(short, long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Tokens of prefill; 0 omits the measurement.
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "32,128,512")]
    prefill: Vec<usize>,
    /// Tokens of decode from an empty context; 0 omits the measurement.
    #[arg(short = 'n', long, default_value_t = 64)]
    decode: usize,
    /// Also measure decode after each of these numbers of tokens.
    #[arg(short, long, value_delimiter = ',')]
    depth: Vec<usize>,
    /// Tokens of decode at a depth.
    #[arg(long, default_value_t = 16)]
    depth_decode: usize,
    /// Also measure the time from start to first token.
    #[arg(long)]
    first_token: bool,
    /// The prompt for the first token.
    #[arg(long, default_value = "Once upon a time there was")]
    prompt: String,
    /// Also measure one layer of experts. The file is made if it does not exist.
    #[arg(long, value_name = "FILE")]
    layer: Option<PathBuf>,
    /// Rounds: each round starts every entrant once.
    #[arg(short, long, default_value_t = 5)]
    rounds: usize,
    /// Rounds of decode at a depth, where computing the tokens before takes most of the time.
    #[arg(long, value_name = "N")]
    depth_rounds: Option<usize>,
    /// Measurements of each work by one process, after one run that does not count.
    #[arg(long, default_value_t = 1)]
    repetitions: usize,
    /// After the first round, leave out variants of an engine that are slower than its best one by
    /// more than this percentage in all works.
    #[arg(long, value_name = "PERCENT")]
    screen: Option<f64>,
    /// Command that precedes every measured command, such as `taskset -c 0,1`; split at spaces.
    #[arg(long, value_name = "COMMAND")]
    prefix: Option<String>,
    /// Seconds after which a command is ended; its entrant is then left out of that job.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,
    /// Size in GiB of the buffer for measuring the memory's bandwidth.
    #[arg(long, value_name = "GIB", default_value_t = 2.0)]
    bandwidth_size: f64,
    /// Write all samples to a file, after every round.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An entrant of the comparison: a variant of an engine.
struct Entrant<'r> {
    rival: &'r dyn Rival,
    variant: usize,
    name: String,
}

/// Results of one job: rows of the report, and the state of each entrant.
struct Course<'r> {
    job: Job,
    rounds: usize,
    entrants: Vec<Entrant<'r>>,
    /// Rows of the report; the row of peak memory is the last one.
    rows: Vec<Row>,
    /// Whether each entrant failed or was left out, so it runs no more; by the entrant's
    /// index.
    out: Vec<bool>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0 && args.repetitions > 0, "rounds and repetitions must be above 0");
    ensure!(args.threads.iter().all(|&threads| threads > 0), "threads must be above 0");
    ensure!(!args.models.is_empty() || args.layer.is_some(), "there is no model");
    for model in &args.models {
        ixc_files::open_regular(model).with_context(|| format!("cannot open {}", model.display()))?;
    }
    let launcher = Launcher {
        prefix: args.prefix.iter().flat_map(|prefix| prefix.split_whitespace()).map(OsString::from).collect(),
        limit: Some(std::time::Duration::from_secs(args.limit)),
    };
    let rivals = rivals::table(&args.places)?;
    let (processor, processors) = processor();
    let mut report = Report { processor, processors, ..Report::default() };
    for &threads in &args.threads {
        let bandwidth = bandwidth(&launcher, threads, args.bandwidth_size)?;
        eprintln!("memory is read at {:.1} GB/s by {threads} threads", bandwidth.bytes_per_second * 1e-9);
        report.bandwidth.push(bandwidth);
    }
    if let Some(layer) = &args.layer {
        crate::layer::make_where_missing(layer)?;
    }
    let jobs = args.jobs();
    for (job, rounds) in jobs {
        let mut course = Course::new(job, rounds, &rivals);
        let done = report.rows.len();
        for round in 0..rounds {
            if matches!(course.job.group, Group::Decode | Group::Depth(_)) {
                let bandwidth = bandwidth(&launcher, course.job.threads, args.bandwidth_size)?;
                let decode = course.rows.iter_mut().filter(|row| matches!(row.work, Work::Decode { .. }));
                decode.for_each(|row| row.bandwidth.push(bandwidth.bytes_per_second));
            }
            course.round(round, &launcher);
            if let (0, Some(percent)) = (round, args.screen) {
                course.screen(percent);
            }
            report.rows.truncate(done);
            report.rows.extend(course.rows.iter().cloned());
            report.settle();
            if let Some(path) = &args.json {
                report.write(path)?;
            }
        }
    }
    print!("{}", report.table());
    Ok(())
}

impl Args {
    /// Returns all jobs with their rounds, in the order in which they run.
    fn jobs(&self) -> Vec<(Job, usize)> {
        let mut jobs = Vec::new();
        let depth_rounds = self.depth_rounds.unwrap_or(self.rounds);
        let mut add = |model: &Path, threads: usize, group: Group, works: Vec<Work>, rounds: usize| {
            if !works.is_empty() {
                let (model, prompt) = (model.to_owned(), self.prompt.clone());
                jobs.push((Job { group, works, model, threads, repetitions: self.repetitions, prompt }, rounds));
            }
        };
        for model in &self.models {
            for &threads in &self.threads {
                let prefills =
                    self.prefill.iter().filter(|&&tokens| tokens > 0).map(|&tokens| Work::Prefill { tokens });
                add(model, threads, Group::Prefill, prefills.collect(), self.rounds);
                let decode = |tokens, depth| if tokens > 0 { vec![Work::Decode { tokens, depth }] } else { Vec::new() };
                add(model, threads, Group::Decode, decode(self.decode, 0), self.rounds);
                for &depth in self.depth.iter().filter(|&&depth| depth > 0) {
                    add(model, threads, Group::Depth(depth), decode(self.depth_decode, depth), depth_rounds);
                }
                if self.first_token {
                    add(model, threads, Group::FirstToken, vec![Work::FirstToken], self.rounds);
                }
            }
        }
        if let Some(layer) = &self.layer {
            for &threads in &self.threads {
                let works = crate::layer::TOKENS.iter().map(|&tokens| Work::Layer { tokens }).collect();
                add(layer, threads, Group::Layer, works, self.rounds);
            }
        }
        jobs
    }
}

impl<'r> Course<'r> {
    fn new(job: Job, rounds: usize, rivals: &'r [Box<dyn Rival>]) -> Course<'r> {
        let mut entrants = Vec::new();
        for rival in rivals {
            for (variant, name) in rival.variants().into_iter().enumerate() {
                if rival.command(variant, &job).is_some() {
                    entrants.push(Entrant { rival: rival.as_ref(), variant, name });
                }
            }
        }
        let model = job.model.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let works = job.works.iter().copied().chain([Work::Memory { group: job.group }]);
        let rows = works.map(|work| Row {
            model: model.clone(),
            threads: job.threads,
            work,
            bytes_per_token: None,
            bandwidth: Vec::new(),
            entries: entrants.iter().map(|entrant| Entry::new(entrant.rival.name(), &entrant.name)).collect(),
        });
        let rows = rows.collect();
        let out = vec![false; entrants.len()];
        Course { job, rounds, entrants, rows, out }
    }

    /// Runs all entrants once.
    fn round(&mut self, round: usize, launcher: &Launcher) {
        let count = self.entrants.len();
        for place in 0..count {
            // The first entrant of a round changes, so none is always first.
            let index = (place + round) % count;
            if self.out[index] {
                continue;
            }
            let Some(command) = self.entrants[index].rival.command(self.entrants[index].variant, &self.job) else {
                continue;
            };
            let entrant = &self.entrants[index];
            let done = launcher.run(&command).and_then(|finished| {
                let samples = entrant.rival.read(&self.job, &finished.stdout);
                Ok((samples.context("the output of the benchmark cannot be parsed")?, finished))
            });
            let (name, threads) = (format!("{} {}", entrant.rival.name(), entrant.name), self.job.threads);
            let said = match done {
                Ok((samples, finished)) => self.take(index, samples, &finished),
                Err(error) => self.give_up(index, &format!("{error:#}")),
            };
            let (round, rounds) = (round + 1, self.rounds);
            eprintln!("{} -t {threads} round {round}/{rounds} {name}: {said}", self.rows[0].model);
        }
    }

    /// Stores the samples of an entrant, and returns a line about them.
    fn take(&mut self, index: usize, samples: Vec<Sample>, finished: &FinishedProgram) -> String {
        let mut said = Vec::new();
        let mut missing = None;
        for row in &mut self.rows {
            let values = match row.work {
                Work::FirstToken => vec![finished.taken.seconds],
                Work::Memory { .. } => vec![finished.taken.peak_memory as f64],
                work => match samples.iter().find(|sample| sample.work == work) {
                    Some(sample) => {
                        row.bytes_per_token = row.bytes_per_token.or(sample.bytes_per_token);
                        row.entries[index].exchanged = sample.exchanged;
                        sample.values.clone()
                    }
                    None => {
                        missing = Some(format!("the output of the benchmark has no result for {work}"));
                        continue;
                    }
                },
            };
            let unit = row.work.unit();
            let texts: Vec<String> = values.iter().map(|&value| unit.text(value)).collect();
            said.push(format!("{} {} {}", row.work, texts.join(" "), unit.name()));
            row.entries[index].rounds.push(values);
            row.entries[index].taken.push(finished.taken);
        }
        if let Some(problem) = missing {
            said.push(self.give_up(index, &problem));
        }
        if finished.taken.foreign > 0.0 {
            said.push(format!("others {:.2}", finished.taken.foreign));
        }
        said.join(", ")
    }

    /// Marks an entrant as failed, so that it runs no more. Returns a line about it.
    fn give_up(&mut self, index: usize, problem: &str) -> String {
        self.out[index] = true;
        for row in &mut self.rows {
            row.entries[index].problem = Some(problem.to_owned());
        }
        problem.to_owned()
    }

    /// Removes variants that are slower than the best variant of their engine by more than
    /// `percent` in every work.
    fn screen(&mut self, percent: f64) {
        let works = || self.rows.iter().filter(|row| !matches!(row.work, Work::Memory { .. }));
        let slow: Vec<bool> =
            (0..self.entrants.len()).map(|index| works().all(|row| is_slow(row, index, percent))).collect();
        for (index, slow) in slow.into_iter().enumerate() {
            if slow && !self.out[index] {
                self.give_up(index, "left out after the first round: another variant of the same engine was faster");
            }
        }
    }
}

/// Returns whether another variant of the same engine is better by more than `percent`.
fn is_slow(row: &Row, index: usize, percent: f64) -> bool {
    let median =
        |entry: &Entry| crate::statistics::Summary::from_samples(&entry.rounds.concat()).map(|summary| summary.median);
    let own = &row.entries[index];
    let Some(value) = median(own) else { return false };
    let same = row.entries.iter().filter(|entry| entry.engine == own.engine);
    same.filter_map(median).any(|other| row.work.unit().ratio(other, value) > 1.0 + percent / 100.0)
}

/// Measures the bandwidth in a separate process, with the prefix of all other commands.
fn bandwidth(launcher: &Launcher, threads: usize, size: f64) -> anyhow::Result<Bandwidth> {
    let (threads, size) = (threads.to_string(), size.to_string());
    let mut command: Vec<OsString> = vec![std::env::current_exe()?.into()];
    command.extend(["bandwidth", "-t", &threads, "--size", &size].map(OsString::from));
    let finished = launcher.run(&command)?;
    serde_json::from_str(&finished.stdout).context("the output of `ixc-bench bandwidth` cannot be parsed")
}

/// Returns the processor's name, and the number of processors that this process may use.
fn processor() -> (String, usize) {
    let info = ixc_files::read_system(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned());
    (name, std::thread::available_parallelism().map_or(1, usize::from))
}
