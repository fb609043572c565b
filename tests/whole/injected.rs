//! System faults and kills at any system call. A library that is loaded before the C library lets
//! one call fail, or ends the process there (`support/faults.c`).
//!
//! A command with a fault either succeeds with the right result, or ends with an error and a
//! status. Its output file is either the old file or the new one. The next run needs no repair.
//!
//! ```text
//! IXC_FAULT_POINTS=20 cargo test --workspace --test whole injected::    20 calls of each kind
//! IXC_KILLS=200 cargo test --workspace --test whole injected::kill      200 kills of each command
//! IXC_FAULT_SEED=7                                                      other calls
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use ixc::ir::random::Random;

use crate::support::server::{PROMPTS, Server, completion, end};
use crate::support::{demo_model, ixc, scratch, stderr, target_without_tiles};

/// Kinds of faults. For some tests, all later calls of a kind fail too. `memory` fails only once,
/// because the C library aborts if it finds no memory for a thread's data.
const KINDS: [&str; 11] =
    ["memory", "map", "file", "open", "read", "write", "short", "sync", "rename", "thread", "clock"];

/// A tested command. `M` stands for the model, `O` for the output, and `V` for a value that makes
/// the old output differ from the new one.
struct Task {
    name: &'static str,
    line: &'static str,
    values: [&'static str; 2],
    /// Whether the result is the text on standard output, instead of a file.
    prints: bool,
}

const TASKS: [Task; 4] = [
    Task { name: "run", line: "run M --raw -p The -n V --temp 0 -t 2", values: ["3", "6"], prints: true },
    Task {
        name: "state",
        line: "run M --raw -p The -n V --temp 0 --seed 1 -t 2 --save-state O --force",
        values: ["2", "4"],
        prints: true,
    },
    Task {
        name: "compile",
        line: "compile M --target V --memory 1MiB --pack -o O --force",
        values: ["portable", "avx2"],
        prints: false,
    },
    Task {
        name: "quantise",
        line: "quantise M V --allow-requantize -t 2 -o O --force",
        values: ["Q4_0", "Q8_0"],
        prints: false,
    },
];

/// Results of a task without faults: the old output, and the new one.
struct Scene {
    task: &'static Task,
    folder: PathBuf,
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
    text: Vec<u8>,
    /// Number of the task's calls of each kind.
    counts: BTreeMap<String, u64>,
    /// Names of files in the folder after a run.
    names: Vec<String>,
}

impl Scene {
    /// Runs a task without faults, once for the old output and once for the new one.
    fn new(task: &'static Task, folder: &Path) -> Scene {
        let folder = folder.join(task.name);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(demo_model(), folder.join("m.gguf")).unwrap();
        let mut scene =
            Scene { task, folder, old: None, new: None, text: Vec::new(), counts: BTreeMap::new(), names: Vec::new() };
        succeeded(&scene.command(task.values[0]).output().unwrap());
        scene.old = scene.output();
        let counts = scene.folder.join("counts");
        let output = scene.command(task.values[1]).env("FAULT_COUNTS", &counts).output().unwrap();
        succeeded(&output);
        scene.counts = read_counts(&counts);
        scene.text = output.stdout;
        scene.new = scene.output();
        assert!(scene.old.is_none() || scene.old != scene.new, "{}: both outputs are equal", task.name);
        scene.names = names(&scene.folder);
        scene
    }

    /// Returns the task's command, with the library loaded.
    fn command(&self, value: &str) -> Command {
        let mut command = ixc(self.task.line.split(' ').map(|word| match word {
            "M" => "m.gguf",
            "O" => "out",
            "V" => value,
            word => word,
        }));
        command.current_dir(&self.folder).env("LD_PRELOAD", library().unwrap());
        command
    }

    fn output(&self) -> Option<Vec<u8>> {
        fs::read(self.folder.join("out")).ok()
    }

    /// Restores the old output, and runs the task with a fault.
    fn run(&self, fault: &str) -> Output {
        if let Some(old) = &self.old {
            fs::write(self.folder.join("out"), old).unwrap();
        }
        self.command(self.task.values[1]).env("FAULT", fault).output().unwrap()
    }

    /// Checks the output of a task with a fault. Then runs the task again without faults and checks
    /// the result.
    fn check(&self, fault: &str, output: &Output) {
        let Task { name, prints, .. } = self.task;
        let (said, found) = (stderr(output), self.output());
        assert!(found == self.old || found == self.new, "{name}, {fault}: the output is neither old nor new: {said}");
        match output.status.code() {
            Some(0) => {
                assert!(found == self.new, "{name}, {fault}: status 0 without the new output: {said}");
                assert!(!prints || output.stdout == self.text, "{name}, {fault}: wrong text with status 0: {said}");
            }
            Some(_) => assert!(said.lines().any(|line| line.starts_with("error: ")), "{name}, {fault}: {said}"),
            None => assert!(fault.starts_with("kill"), "{name}, {fault}: {}: {said}", output.status),
        }
    }

    /// Runs the task again without faults.
    fn run_again(&self, fault: &str) {
        let output = self.command(self.task.values[1]).output().unwrap();
        succeeded(&output);
        assert!(self.output() == self.new, "{}, after {fault}: the output is not the new one", self.task.name);
        assert!(!self.task.prints || output.stdout == self.text, "{}, after {fault}: wrong text", self.task.name);
        assert_eq!(names(&self.folder), self.names, "{}, after {fault}: files remain", self.task.name);
    }
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, stderr(output));
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read_counts(path: &Path) -> BTreeMap<String, u64> {
    let line = |line: &str| line.split_once(' ').map(|(kind, count)| (kind.to_owned(), count.parse().unwrap()));
    fs::read_to_string(path).unwrap().lines().filter_map(line).collect()
}

/// Returns the compiled library. Prints a line and returns `None` without a C compiler.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whole/support/faults.c");
        let library = scratch("injected-library").join("faults.so");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
        let Ok(built) = built else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "there is no cc");
            println!("NOT RUN: faults of the system: there is no cc");
            return None;
        };
        succeeded(&built);
        Some(library)
    });
    path.as_deref()
}

/// Returns a number from the environment.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Returns the test's random generator.
fn random() -> Random {
    let seed = number("IXC_FAULT_SEED", 1);
    println!("seed {seed}");
    Random::new(seed)
}

#[test]
fn failed_calls_are_errors_or_change_nothing() {
    if library().is_none() {
        return;
    }
    let (folder, mut random, points) = (scratch("injected-calls"), random(), number("IXC_FAULT_POINTS", 1));
    for task in &TASKS {
        let scene = Scene::new(task, &folder);
        for kind in KINDS {
            let (count, mut statuses) = (scene.counts[kind], BTreeMap::<i32, u32>::new());
            for point in 0..points.min(count) {
                let stays = if kind != "memory" && point % 2 == 0 { "+" } else { "" };
                let fault = format!("{kind}:{}{stays}", 1 + random.below(count));
                let output = scene.run(&fault);
                scene.check(&fault, &output);
                *statuses.entry(output.status.code().unwrap()).or_default() += 1;
            }
            println!("{}: {kind}: {count} calls; faults by status: {statuses:?}", task.name);
        }
        scene.run_again("faults");
    }
}

/// Checks that refused threads, full drives and unreadable files have the right status, also at the
/// first call.
#[test]
fn certain_faults_have_their_status() {
    if library().is_none() {
        return;
    }
    let folder = scratch("injected-certain");
    let [run, _, compile, quantise] = TASKS.each_ref().map(|task| Scene::new(task, &folder));
    for (scene, fault, status, part) in [
        (&compile, "write:1+", 74, "No space left on device"),
        (&quantise, "write:1+", 74, "No space left on device"),
        (&quantise, "sync:1", 74, "Input/output error"),
        (&run, "file:1", 74, "Cannot allocate memory"),
        (&run, "memory:20000", 1, "out of memory"),
        (&run, "thread:1+", 1, "Resource temporarily unavailable"),
    ] {
        let output = scene.run(fault);
        scene.check(fault, &output);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{fault}: {said}");
        assert!(said.contains(part), "{fault}: {said}");
    }
    // Partial reads and writes, and jumps of the clock, change nothing.
    for (scene, fault) in [(&run, "short:1+"), (&compile, "short:1+"), (&quantise, "short:1+"), (&run, "clock:1+")] {
        let output = scene.run(fault);
        scene.check(fault, &output);
        assert!(output.status.success(), "{fault}: {}", stderr(&output));
    }
}

#[test]
fn killed_commands_leave_the_old_or_the_new_output() {
    if library().is_none() {
        return;
    }
    let (folder, mut random, kills) = (scratch("injected-kills"), random(), number("IXC_KILLS", 3));
    for task in TASKS.iter().filter(|task| task.line.contains('O')) {
        let scene = Scene::new(task, &folder);
        for _ in 0..kills {
            let fault = format!("kill:{}", 1 + random.below(scene.counts["kill"]));
            scene.check(&fault, &scene.run(&fault));
            scene.run_again(&fault);
        }
        println!("{}: {kills} kills", task.name);
    }
}

/// Runs the demo model with a cache of plans, and returns the output.
fn run_cached(cache: &Path, variable: &str, value: &str) -> Output {
    let mut command = ixc(["run", "--raw", "-p", "The", "-n", "4", "--temp", "0", "-t", "2", "--cache-dir"]);
    command
        .arg(cache)
        .arg(demo_model())
        .env_remove("IXC_NO_CACHE")
        .env("LD_PRELOAD", library().unwrap())
        .env(variable, value);
    command.output().unwrap()
}

#[test]
fn killed_writers_of_the_plan_cache_harm_no_later_run() {
    if library().is_none() {
        return;
    }
    let (folder, mut random, kills) = (scratch("injected-cache"), random(), number("IXC_KILLS", 3));
    let counts = folder.join("counts");
    let right = run_cached(&folder.join("cache"), "FAULT_COUNTS", counts.to_str().unwrap());
    succeeded(&right);
    let count = read_counts(&counts)["kill"];
    for kill in 0..kills {
        let cache = folder.join(format!("cache-{kill}"));
        let fault = format!("kill:{}", 1 + random.below(count));
        let killed = run_cached(&cache, "FAULT", &fault);
        assert!(right.stdout.starts_with(&killed.stdout), "{fault}: {}", String::from_utf8_lossy(&killed.stdout));
        // The first run may write the plan, and the second one reads it.
        for _ in 0..2 {
            let output = run_cached(&cache, "FAULT", "none");
            succeeded(&output);
            assert_eq!(output.stdout, right.stdout, "after {fault}");
        }
    }
}

/// Returns the command of a server with a prompt cache, and with the library loaded.
fn server(cache: &Path) -> Command {
    let mut command = ixc(["serve", "demo", "--port", "0", "-t", "2", "--target", target_without_tiles().name()]);
    // The sandbox would refuse the library's signal and its file with counts, so it is off.
    command
        .args(["--sandbox", "off", "--prompt-cache"])
        .arg(cache)
        .env("LD_PRELOAD", library().unwrap())
        .stdout(Stdio::null());
    command
}

/// Returns the texts for several long prompts, until the server no longer answers.
fn texts(server: &Server) -> Vec<String> {
    let ask = |prompt: &str| {
        let body = completion(&prompt.repeat(12), 4).to_string();
        let length = body.len();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close";
        let mut stream = TcpStream::connect(server.address()).ok()?;
        stream.write_all(format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let object: serde_json::Value = serde_json::from_str(body).ok()?;
        Some(object["choices"][0]["text"].as_str()?.to_owned())
    };
    PROMPTS.iter().map_while(|prompt| ask(prompt)).collect()
}

#[test]
fn killed_servers_keep_their_prompt_cache_usable() {
    if library().is_none() {
        return;
    }
    let (folder, mut random, kills) = (scratch("injected-serve"), random(), number("IXC_KILLS", 3));
    let counts = folder.join("counts");
    let mut first = server(&folder.join("cache"));
    let first = Server::spawn({
        first.env("FAULT_COUNTS", &counts);
        first
    })
    .unwrap();
    let right = texts(&first);
    assert_eq!(right.len(), PROMPTS.len());
    end(first);
    let count = read_counts(&counts)["kill"];
    let (cache, mut ended) = (folder.join("killed"), 0);
    for kill in 0..kills {
        // Most calls come before the first request. The first kill comes at a call that certainly
        // occurs.
        let call = if kill == 0 { count / 2 } else { count - random.below(count / 3) };
        let fault = format!("kill:{call}");
        let mut command = server(&cache);
        command.env("FAULT", &fault);
        if let Some(mut killed) = Server::spawn(command) {
            let found = texts(&killed);
            assert_eq!(found[..], right[..found.len()], "{fault}");
            ended += u64::from(killed.child.try_wait().unwrap().is_some());
        } else {
            // The server was killed before it listened.
            ended += 1;
        }
        let restarted = Server::spawn(server(&cache)).unwrap_or_else(|| panic!("{fault}: the server does not start"));
        assert_eq!(texts(&restarted), right, "after {fault}");
        end(restarted);
    }
    assert!(ended > 0, "no server was killed");
}

/// Checks that a server that has no free descriptor for a connection accepts the connection later.
#[test]
fn server_survives_refused_connections() {
    if library().is_none() {
        return;
    }
    let folder = scratch("injected-accept");
    for fault in ["accept:1", "accept:2"] {
        let mut command = server(&folder.join("cache"));
        command.env("FAULT", fault);
        let server = Server::spawn(command).unwrap();
        assert_eq!(texts(&server).len(), PROMPTS.len(), "{fault}");
        end(server);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_text() {
    let run = |threads: &str| {
        let output = ixc(["run", "demo", "--raw", "-p", "The", "-n", "6", "--temp", "0", "-t", threads]).output();
        let output = output.unwrap();
        succeeded(&output);
        output.stdout
    };
    let right = run("1");
    // Machines may limit the number of threads.
    let most = if number("IXC_FAULT_POINTS", 1) > 1 { "1024" } else { "64" };
    for threads in ["2", "3", most] {
        assert_eq!(run(threads), right, "{threads} threads");
    }
}

/// Checks that a process that is stopped for a while continues, and prints the same text.
#[test]
fn stopped_run_continues() {
    let run = || ixc(["run", "demo", "--raw", "-p", "The", "-n", "400", "--temp", "0", "-t", "2"]);
    let right = run().output().unwrap();
    succeeded(&right);
    let mut child = run().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut text = vec![0];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut text).unwrap();
    let id = libc::pid_t::try_from(child.id()).unwrap();
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        // SAFETY: the child was not waited for, so its id is still its own.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
        if signal == libc::SIGSTOP {
            let mut status = 0;
            // SAFETY: as above; the call writes to `status`.
            assert_eq!(unsafe { libc::waitpid(id, &raw mut status, libc::WUNTRACED) }, id);
            assert!(libc::WIFSTOPPED(status), "the run ended before the signal");
        }
    }
    stdout.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text, right.stdout);
}
