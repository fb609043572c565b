//! Child process that runs cases within limits. The runner reads its exit status:
//!
//! | status | meaning |
//! | --- | --- |
//! | 0 | the time is over; standard output has the counts |
//! | [`PANIC`] | a thread panicked |
//! | [`TIMEOUT`] | a case took too long |
//! | a signal | stack overflow, refused allocation, invalid access |
//!
//! Each input is written to a file before its case begins, so that the runner finds it after a
//! crash.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ixc_ir::random::Random;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::corpus::Corpus;
use crate::mutate::Mutator;
use crate::{Outcome, Target};

/// Exit status after a panic.
pub const PANIC: i32 = 85;
/// Exit status after a case that took too long.
pub const TIMEOUT: i32 = 86;
/// Beginning of the line on standard error that describes a panic.
pub const PANIC_LINE: &str = "finding: panic at ";
/// Time between two checks of the watchdog.
const WATCH_PERIOD: Duration = Duration::from_millis(50);
/// Max elapsed time of a case, as a multiple of its max CPU time.
const WAIT_FACTOR: u64 = 20;
/// Max bytes of private memory of a child, in addition to the memory that the target's cases may
/// use.
const BASE_MEMORY: u64 = 1 << 30;

/// Whether a thread panicked.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
/// Time at which the current case began, in milliseconds since [`clock`] started, plus one; 0
/// between cases.
static CASE_BEGIN: AtomicU64 = AtomicU64::new(0);

/// Numbers of cases, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of cases.
    pub cases: u64,
    /// Number of accepted inputs.
    pub accepted: u64,
    /// Number of different kinds of outcomes.
    pub kinds: u64,
    /// Duration of the longest case, in milliseconds.
    pub longest_ms: u64,
}

impl Counts {
    /// Returns the counts as the text that a child prints to standard output.
    pub fn text(&self) -> String {
        format!("counts {} {} {} {}", self.cases, self.accepted, self.kinds, self.longest_ms)
    }

    /// Reads the last counts in a child's standard output.
    pub fn parse(text: &str) -> Option<Counts> {
        let line = text.lines().rev().find_map(|line| line.strip_prefix("counts "))?;
        let mut numbers = line.split(' ').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Counts { cases: next()?, accepted: next()?, kinds: next()?, longest_ms: next()? })
    }
}

/// Returns the time since the first call, in milliseconds.
fn clock() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// Sets the limits of the process: memory, core files, and the time of a case. Panics of all
/// threads become findings.
fn limit(target: &Target) {
    let set = |resource, bytes: u64| {
        // If a limit cannot be set, the runner finds fewer faults, but no case behaves differently.
        let _ = setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) });
    };
    set(Resource::Data, BASE_MEMORY + target.memory_bytes);
    set(Resource::Core, 0);
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
        let message = panic.payload_as_str().unwrap_or("(no text)").replace('\n', " ");
        // The grammar matcher turns panics inside its libraries into errors (`ixc_grammar`), so
        // they are not findings.
        if !["/llguidance-", "/derivre-", "/toktrie-"].iter().any(|part| place.contains(part)) {
            eprintln!("{PANIC_LINE}{place}: {message:.300}");
            HAS_PANICKED.store(true, Ordering::SeqCst);
        }
    }));
    watch(target.case_seconds * 1000);
}

/// Ends the process after a case that takes more than `most` milliseconds of CPU time, or much more
/// elapsed time. On a busy machine, elapsed time alone is not a good measure.
fn watch(most: u64) {
    std::thread::spawn(move || {
        clock();
        let (mut seen, mut cpu_begin) = (0, 0);
        loop {
            std::thread::sleep(WATCH_PERIOD);
            let begin = CASE_BEGIN.load(Ordering::SeqCst);
            if begin != seen {
                (seen, cpu_begin) = (begin, cpu_time());
            }
            let waited = (clock() + 1).saturating_sub(begin);
            let is_over = cpu_time().saturating_sub(cpu_begin) > most || waited > most * WAIT_FACTOR;
            if begin > 0 && is_over {
                eprintln!("finding: a case took more than {most} ms");
                std::process::exit(TIMEOUT);
            }
        }
    });
}

/// Returns the CPU time of this process in milliseconds, from `/proc/self/stat` (proc(5)).
fn cpu_time() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces. The CPU times in user and system
    // mode are fields 14 and 15, in hundredths of a second.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10
}

/// Runs a case. Ends the process if a thread panicked.
fn case(target: &Target, input: &[u8]) -> Outcome {
    CASE_BEGIN.store(clock() + 1, Ordering::SeqCst);
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    CASE_BEGIN.store(0, Ordering::SeqCst);
    match result {
        Ok(outcome) if !HAS_PANICKED.load(Ordering::SeqCst) => outcome,
        _ => std::process::exit(PANIC),
    }
}

/// Runs one input, and prints its outcome.
pub fn run_one(target: &Target, input: &[u8]) {
    limit(target);
    println!("{:?}", case(target, input));
}

/// Runs each input of a corpus, and prints the counts.
///
/// # Errors
/// If the corpus cannot be read, or the current input cannot be written to `current`.
pub fn replay(target: &Target, folder: &Path, current: &Path) -> io::Result<()> {
    limit(target);
    let current = CurrentInput(File::create(current)?);
    let corpus = Corpus::read(target, folder)?;
    let mut counts = Counts::default();
    let mut kinds = Corpus::default();
    for input in corpus.inputs() {
        current.set(input)?;
        counts.add(&case(target, input), &mut kinds, input);
    }
    println!("{}", counts.text());
    Ok(())
}

/// Runs the corpus, and then mutated inputs until the time is over, and prints the counts. The
/// whole corpus runs even if it takes longer than the time.
///
/// # Errors
/// If the corpus cannot be read, or the current input cannot be written to `current`.
pub fn fuzz(target: &Target, folder: &Path, current: &Path, seed: u64, time: Duration) -> io::Result<()> {
    limit(target);
    let current = CurrentInput(File::create(current)?);
    let begin = Instant::now();
    let mut corpus = Corpus::read(target, folder)?;
    let mutator = Mutator { dictionary: target.dictionary, max_bytes: target.max_bytes };
    let mut random = Random::new(seed);
    let mut counts = Counts::default();
    let seeds = corpus.inputs().len();
    for number in 0.. {
        if number >= seeds && begin.elapsed() >= time {
            break;
        }
        let input = match corpus.inputs().get(number) {
            Some(input) if number < seeds => input.clone(),
            _ => mutator.mutated(corpus.pick(&mut random), corpus.pick(&mut random), &mut random),
        };
        current.set(&input)?;
        let case_begin = Instant::now();
        let outcome = case(target, &input);
        counts.longest_ms = counts.longest_ms.max(case_begin.elapsed().as_millis() as u64);
        counts.add(&outcome, &mut corpus, &input);
        if number.is_power_of_two() || number.is_multiple_of(256) {
            println!("{}", counts.text());
        }
    }
    println!("{}", counts.text());
    io::stdout().flush()
}

impl Counts {
    fn add(&mut self, outcome: &Outcome, corpus: &mut Corpus, input: &[u8]) {
        self.cases += 1;
        self.accepted += u64::from(matches!(outcome, Outcome::Accepted(_)));
        corpus.count(input, outcome);
        self.kinds = corpus.kinds() as u64;
    }
}

/// File with the input of the current case.
struct CurrentInput(File);

impl CurrentInput {
    fn set(&self, input: &[u8]) -> io::Result<()> {
        self.0.set_len(input.len() as u64)?;
        self.0.write_all_at(input, 0)
    }
}
