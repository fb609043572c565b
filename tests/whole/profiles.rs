//! Symbols of generated code for profilers: perf maps, jitdumps and gdb's JIT interface. A parser
//! in this file checks the files. If perf and gdb are installed, they check them, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{ixc, scratch, stderr};
use ixc_testing::tools::{InstalledTool, Tool};

/// Linux's profiler.
const PERF: Tool = Tool {
    name: "perf",
    programs: &["perf"],
    variable: None,
    version_arguments: &["--version"],
    before: "perf version ",
    needed_version: "any (Debian: linux-perf)",
    is_suitable: |_| true,
};

const GDB: Tool = Tool {
    name: "gdb",
    programs: &["gdb"],
    variable: None,
    version_arguments: &["--version"],
    before: "GNU gdb",
    needed_version: "any (Debian: gdb)",
    is_suitable: |_| true,
};

/// A record of a jitdump.
struct Record {
    id: u32,
    time: u64,
    body: Vec<u8>,
}

/// Reads a jitdump, strictly following the description of the format.
fn records(bytes: &[u8]) -> Vec<Record> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!([word(0), word(4), word(8), word(12), word(16)], [0x4a69_5444, 1, 40, 62, 0]);
    let mut at = 40;
    let mut records = Vec::new();
    while at < bytes.len() {
        let length = word(at + 4) as usize;
        assert!(length >= 16 && at + length <= bytes.len(), "{at} {length}");
        records.push(Record { id: word(at), time: long(at + 8), body: bytes[at + 16..at + length].to_vec() });
        at += length;
    }
    assert!(records.windows(2).all(|pair| pair[0].time <= pair[1].time));
    records
}

fn text(bytes: &[u8]) -> (&str, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap();
    (std::str::from_utf8(&bytes[..end]).unwrap_or("\u{ff}"), &bytes[end + 1..])
}

/// Returns the path of the only file in a folder with this extension.
fn ending(folder: &Path, ending: &str) -> PathBuf {
    let found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let found: Vec<PathBuf> = found.into_iter().filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
    let [one] = found.as_slice() else { panic!("{found:?}") };
    one.clone()
}

const BENCH: [&str; 7] = ["kernel", "bench", "gemv_q4_k", "-r", "2", "--perf", "map,jitdump,gdb"];

#[test]
fn perf_map_and_jitdump_name_kernels_and_lines() {
    let folder = scratch("profiles");
    let child = ixc(BENCH).env("JITDUMPDIR", &folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    assert!(stderr(&output).contains(&format!("profile: {}", map.display())), "{}", stderr(&output));
    let lines = fs::read_to_string(&map).unwrap();
    fs::remove_file(&map).unwrap();
    let mut mapped = BTreeSet::new();
    for line in lines.lines() {
        let [start, bytes, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(u64::from_str_radix(start, 16).unwrap() > 0 && u64::from_str_radix(bytes, 16).unwrap() > 0, "{line}");
        assert!(mapped.insert(name.to_owned()), "{name} is there twice");
    }
    // The expected symbols are the kernel for data in the caches, the kernel for data in memory,
    // and the loops that measure the machine's peak.
    assert!(
        mapped.iter().any(|name| name.starts_with("gemv_q4_k")) && mapped.iter().any(|name| name.ends_with(".2")),
        "{mapped:?}"
    );
    let (mut names, mut with_lines, mut last) = (BTreeSet::new(), 0, 0);
    for Record { id, body, .. } in records(&fs::read(ending(&folder, ".dump")).unwrap()) {
        let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        match id {
            // This record has the code of a kernel.
            0 => {
                let (address, bytes) = (long(16), long(24) as usize);
                assert_eq!((long(8), u32::from_le_bytes(body[..4].try_into().unwrap())), (address, pid));
                let (name, code) = text(&body[40..]);
                assert_eq!(code.len(), bytes, "{name}");
                assert!(names.insert(name.to_owned()), "{name} is there twice");
                assert!(last == 0 || last == address, "lines of another kernel");
                last = 0;
            }
            // This record has the lines of a kernel's IR.
            2 => {
                let (address, entries) = (long(0), long(8));
                let (mut rest, mut source) = (&body[16..], String::new());
                for _ in 0..entries {
                    let at = u64::from_le_bytes(rest[..8].try_into().unwrap());
                    let line = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
                    let (name, more) = text(&rest[16..]);
                    if name != "\u{ff}" {
                        source = fs::read_to_string(name).unwrap();
                    }
                    assert!(at >= address && (1..=source.lines().count()).contains(&line), "{line} of {name}");
                    rest = more;
                }
                assert!(rest.is_empty() && entries > 1);
                (with_lines, last) = (with_lines + 1, address);
            }
            3 => assert!(body.is_empty()),
            4 => assert!(long(0) > long(8) && body.len().is_multiple_of(8)),
            other => panic!("record {other}"),
        }
    }
    assert_eq!(names, mapped);
    assert!(with_lines > 0 || !cfg!(target_arch = "x86_64"));
}

/// Checks that perf converts the record of a run to shared objects, and prints a report with kernel
/// names.
#[test]
fn perf_reads_the_jitdump() {
    let Some(InstalledTool { program, .. }) = PERF.find("jitdumps through perf") else { return };
    let folder = scratch("profiles-perf");
    let perf = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(&folder).stdin(Stdio::null());
        command.output().unwrap()
    };
    let ixc = env!("CARGO_BIN_EXE_ixc");
    let event = ["record", "-k", "mono", "-e", "cpu-clock", "-F", "999", "-o", "perf.data", "--"];
    let recorded = Command::new(&program)
        .args(event)
        .arg(ixc)
        .args(["kernel", "bench", "gemv_q4_k", "-r", "5", "--perf", "jitdump"])
        .current_dir(&folder)
        .env("JITDUMPDIR", &folder)
        .output()
        .unwrap();
    if !recorded.status.success() || !folder.join("perf.data").exists() {
        println!("NOT RUN: jitdumps through perf: perf record is not allowed here: {}", stderr(&recorded));
        return;
    }
    let injected = perf(&["inject", "--jit", "-i", "perf.data", "-o", "named.data"]);
    assert!(injected.status.success(), "{}", stderr(&injected));
    let objects = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let objects = objects.filter(|name| name.starts_with("jitted-") && name.ends_with(".so")).count();
    assert!(objects > 0, "perf inject made no shared object: {}", stderr(&injected));
    let report = perf(&["report", "-i", "named.data", "--stdio", "--sort", "symbol"]);
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.status.success() && text.contains("gemv_q4_k"), "{text}\n{}", stderr(&report));
}

/// Checks that gdb shows the kernel's name and the lines of its IR, and finds its callers.
#[test]
fn gdb_names_kernels_and_their_callers() {
    let Some(InstalledTool { program, .. }) = GDB.find("gdb's JIT interface") else { return };
    let name = {
        let shown = crate::support::stdout(ixc(["kernel", "show", "gemv_q4_k", "--stage", "ir"]));
        shown.lines().find_map(|line| line.strip_prefix("kernel ")?.split(' ').next().map(str::to_owned)).unwrap()
    };
    let break_at = format!("break {name}");
    // gdb prints the position with source lines at the breakpoint, and again after a few
    // instructions.
    let at = ["info line *$pc", "list", "stepi 30", "frame"];
    let begin = ["set pagination off", "set confirm off", "set breakpoint pending on", &break_at, "run", "bt"];
    let commands = [&begin[..], &at, &["kill", "quit"]].concat();
    let folder = scratch("profiles-gdb");
    let mut gdb = Command::new(program);
    gdb.args(["-nx", "-batch"]).stdin(Stdio::null());
    commands.iter().for_each(|command| {
        gdb.args(["-ex", command]);
    });
    let output = gdb
        .arg("--args")
        .arg(env!("CARGO_BIN_EXE_ixc"))
        .args(["kernel", "bench", "gemv_q4_k", "-r", "2", "--perf", "gdb"])
        .env("JITDUMPDIR", &folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let refused =
        ["ptrace: Operation not permitted", "Couldn't get registers", "warning: Could not trace the inferior"];
    if refused.iter().any(|refused| text.contains(refused) || stderr(&output).contains(refused)) {
        println!("NOT RUN: gdb's JIT interface: gdb may trace nothing here: {}", stderr(&output));
        return;
    }
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert!(frames.first().is_some_and(|frame| frame.contains(&name)), "{text}\n{}", stderr(&output));
    assert!(frames.len() > 3 && frames.iter().any(|frame| frame.contains("ixc")), "{text}");
    // gdb shows a line of the written file, with its text.
    let source = format!("{name}.ix");
    assert!(frames[0].contains(&source), "{text}");
    let told = text.lines().find(|line| line.starts_with("Line ")).unwrap_or_else(|| panic!("{text}"));
    assert!(told.contains(&source) && told.contains(&format!("<{name}")), "{told}");
    let file = fs::read_to_string(ending(&ending(&folder, ".ix"), &source)).unwrap();
    let lines: Vec<&str> = file.lines().collect();
    let shown = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(n, line)| Some((n.parse::<usize>().ok()?, line)));
    let shown: Vec<(usize, &str)> = shown.collect();
    assert!(shown.len() > 3 && shown.iter().all(|(n, line)| lines[n - 1] == *line), "{shown:?}\n{text}");
}

#[test]
fn unwritable_jitdump_is_refused() {
    let nowhere = scratch("profiles-nowhere").join("no/folder");
    let output = ixc(["kernel", "bench", "silu", "-r", "2", "--perf", "jitdump"]).env("JITDUMPDIR", &nowhere).output();
    let output = output.unwrap();
    assert!(
        output.status.code() == Some(74) && stderr(&output).contains("cannot make the jitdump"),
        "{}",
        stderr(&output)
    );
}
