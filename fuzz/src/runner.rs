//! Runner process, which starts child processes and collects findings.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use crate::child::{Counts, PANIC, PANIC_LINE, TIMEOUT};
use crate::minimise::minimised;
use crate::{Target, scratch};

/// Max time for minimising one finding.
const MINIMISE_TIME: Duration = Duration::from_secs(30);
/// Max time to wait for a child's last case after its time is over. The child's own watchdog should
/// end it earlier.
const CASE_PATIENCE: Duration = Duration::from_secs(1800);
/// Max bytes of the key of a finding.
const MAX_KEY_BYTES: usize = 160;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Time for each target.
    pub time: Duration,
    /// Seed of a target's first child. Each further child uses the next seed.
    pub seed: u64,
    /// Folder of inputs. It contains one folder for each target.
    pub corpus: PathBuf,
    /// Folder for inputs with findings.
    pub findings: PathBuf,
}

/// A finding of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind and place of the finding. Equal findings have equal keys.
    pub key: String,
    /// File with the minimised input.
    pub path: PathBuf,
    /// Seed of the child that had the finding.
    pub seed: u64,
}

/// Result of a run of one target.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sum of the counts of all children.
    pub counts: Counts,
    /// Duration of the run.
    pub time: Duration,
    /// Distinct findings.
    pub findings: Vec<Finding>,
}

/// Temporary folder of a child, which the runner removes.
struct ChildFolder(tempfile::TempDir);

impl ChildFolder {
    fn current(&self) -> PathBuf {
        self.0.path().join("current-input")
    }

    fn command(&self, words: &[&str]) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).env(scratch::VARIABLE, self.0.path());
        // Removes settings of the caller, so that they do not reach the tested code.
        for variable in ["IXC_LOG", "IXC_CONFIG"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// Returns the key of a finding: its kind and place. Returns `None` if the child succeeded.
fn key(status: ExitStatus, stderr: &str) -> Option<String> {
    let panic = stderr.lines().find_map(|line| line.strip_prefix(PANIC_LINE));
    let aborted =
        stderr.lines().find(|line| line.contains("overflowed its stack") || line.contains("memory allocation"));
    let mut key = match (status.code(), status.signal()) {
        (Some(0), _) => return None,
        (Some(TIMEOUT), _) => "timeout".to_owned(),
        (Some(PANIC), _) => format!("panic {}", panic.unwrap_or_default()),
        (_, Some(signal)) => format!("signal {signal} {}", aborted.or(panic).unwrap_or_default()),
        (code, None) => format!("status {code:?} {}", stderr.lines().last().unwrap_or_default()),
    };
    key.retain(|character| !character.is_ascii_digit() || status.code() == Some(PANIC));
    let end = (0..=key.len().min(MAX_KEY_BYTES)).rev().find(|at| key.is_char_boundary(*at)).unwrap_or(0);
    key.truncate(end);
    Some(key)
}

/// Waits for a child. Kills the child after `time`, because its watchdog may hang, too.
fn wait(mut command: Command, time: Duration) -> io::Result<Output> {
    let child = command.spawn()?;
    let pid = rustix::process::Pid::from_child(&child);
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if is_done.recv_timeout(time) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            // No thread has waited for the child yet, so the process number still belongs to it.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    let output = child.wait_with_output();
    drop(done);
    let _ = watchdog.join();
    output
}

/// Runs one input in a child. Returns the key of the finding, if there is one.
///
/// # Errors
/// If the child cannot be started.
pub fn finding_of(target: &Target, input: &[u8]) -> io::Result<Option<String>> {
    let folder = ChildFolder(tempfile::tempdir()?);
    fs::write(folder.current(), input)?;
    let current = folder.current();
    let command = folder.command(&["one", target.name, &current.to_string_lossy()])?;
    let output = wait(command, CASE_PATIENCE)?;
    Ok(key(output.status, &String::from_utf8_lossy(&output.stderr)))
}

/// Runs the inputs of the corpus in a child, without mutations.
///
/// # Errors
/// If a child cannot be started, or a file cannot be read or written.
pub fn replay(target: &Target, options: &RunnerOptions) -> io::Result<Report> {
    let begin = Instant::now();
    let folder = ChildFolder(tempfile::tempdir()?);
    let mut report = Report::default();
    let (corpus, current) = (options.corpus.to_string_lossy(), folder.current());
    let command = folder.command(&["replay-child", target.name, &corpus, &current.to_string_lossy()])?;
    let output = wait(command, Duration::from_secs(600))?;
    report.add(target, &output, &folder, options, options.seed)?;
    report.time = begin.elapsed();
    Ok(report)
}

/// Fuzzes a target until the time is over.
///
/// # Errors
/// If a child cannot be started, or a file cannot be read or written.
pub fn fuzz(target: &Target, options: &RunnerOptions) -> io::Result<Report> {
    let begin = Instant::now();
    let mut report = Report::default();
    for seed in options.seed.. {
        let left = options.time.saturating_sub(begin.elapsed());
        if left.is_zero() {
            break;
        }
        let folder = ChildFolder(tempfile::tempdir()?);
        let (corpus, current) = (options.corpus.to_string_lossy(), folder.current());
        let (seed_text, time) = (seed.to_string(), left.as_millis().to_string());
        let words = ["fuzz-child", target.name, &corpus, &current.to_string_lossy(), &seed_text, &time];
        let output = wait(folder.command(&words)?, left + CASE_PATIENCE)?;
        report.add(target, &output, &folder, options, seed)?;
    }
    report.time = begin.elapsed();
    Ok(report)
}

impl Report {
    /// Returns whether no case ran. In that case, the absence of findings means nothing.
    pub fn is_idle(&self) -> bool {
        self.counts.cases == 0 && self.findings.is_empty()
    }

    /// Adds the result of a child. If the child has a new finding, minimises and stores it.
    fn add(
        &mut self,
        target: &Target,
        output: &Output,
        folder: &ChildFolder,
        options: &RunnerOptions,
        seed: u64,
    ) -> io::Result<()> {
        let counts = Counts::parse(&String::from_utf8_lossy(&output.stdout)).unwrap_or_default();
        self.counts.cases += counts.cases;
        self.counts.accepted += counts.accepted;
        self.counts.kinds = self.counts.kinds.max(counts.kinds);
        self.counts.longest_ms = self.counts.longest_ms.max(counts.longest_ms);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let Some(key) = key(output.status, &stderr) else { return Ok(()) };
        if self.findings.iter().any(|finding| finding.key == key) {
            return Ok(());
        }
        let input = fs::read(folder.current())?;
        let path = stored(target, &key, &input, options)?;
        println!("{}: {key}\n  seed {seed}, input {}", target.name, path.display());
        self.findings.push(Finding { key, path, seed });
        Ok(())
    }
}

/// Minimises an input with a finding, and stores it. Returns the path of the file.
fn stored(target: &Target, key: &str, input: &[u8], options: &RunnerOptions) -> io::Result<PathBuf> {
    let again = |bytes: &[u8]| finding_of(target, bytes).is_ok_and(|found| found.as_deref() == Some(key));
    // Findings that depend on earlier cases, or whose cases are slow, are stored without
    // minimising.
    let is_slow = key.starts_with("timeout");
    let small = if !is_slow && again(input) { minimised(input, MINIMISE_TIME, again) } else { input.to_vec() };
    let path = options.findings.join(format!("{}-{:08x}", target.name, crc32fast::hash(key.as_bytes())));
    fs::create_dir_all(&options.findings)?;
    fs::write(&path, small)?;
    Ok(path)
}

/// Returns the reports as a table in Markdown.
pub fn table(reports: &BTreeMap<&str, Report>) -> String {
    let mut text = String::from(
        "| target | cases | accepted | kinds of outcomes | longest case | seconds | findings |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (name, report) in reports {
        let Counts { cases, accepted, kinds, longest_ms } = report.counts;
        let (seconds, findings) = (report.time.as_secs(), report.findings.len());
        text += &format!("| {name} | {cases} | {accepted} | {kinds} | {longest_ms} ms | {seconds} | {findings} |\n");
    }
    text
}

/// Returns the default folder for inputs with findings.
pub fn default_findings(corpus: &Path) -> PathBuf {
    corpus.with_file_name("findings")
}
