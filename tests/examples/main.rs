//! Tests of the examples. Each example is run with the command in its first lines, and must print
//! the recorded text.
//!
//! `cargo test --workspace` builds the examples before it runs the tests. For this test alone:
//!
//! ```text
//! cargo build --workspace --examples && cargo test --workspace --test examples
//! ```

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ixc::targets::{Feature, Target};
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn demo_model() -> PathBuf {
    root().join("examples/models/rustling-q4_k_m.gguf")
}

/// Returns the command of an example. Cargo puts the examples' programs next to this test's
/// program.
fn example(name: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_ixc")).with_file_name("examples").join(name);
    assert!(program.is_file(), "{} is not built; run `cargo build --workspace --examples`", program.display());
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Runs a command with text on its standard input, and returns its output. It must succeed.
fn run(mut command: Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the output of an example with these arguments.
fn output(name: &str, arguments: &[&str]) -> String {
    let mut command = example(name);
    command.args(arguments);
    run(command, "")
}

#[test]
fn every_example_is_tested_and_shows_its_command() {
    let source = include_str!("main.rs");
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let head: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(head.contains(&format!("cargo run --release --example {name}")), "{name} does not show its command");
        let tests = [format!("output(\"{name}\""), format!("example(\"{name}\"")];
        assert!(tests.iter().any(|test| source.contains(test)), "{name} is not tested");
    }
}

#[test]
fn chat_answers_each_line() {
    let answers = run(example("chat"), "What is a trait?\nAnd a lifetime?\n");
    // Tiles round products in another order, so the small model gives other answers.
    let tiles = Target::native().features().has(Feature::AmxTile);
    insta::assert_snapshot!(
        if tiles { "chat_answers_each_line_with_tiles" } else { "chat_answers_each_line" },
        answers
    );
}

#[test]
fn complete_prints_text_and_its_end() {
    insta::assert_snapshot!(output("complete", &[]));
    let model = demo_model();
    let of_file = output("complete", &[model.to_str().unwrap(), "The borrow checker"]);
    assert_eq!(of_file, output("complete", &[]));
}

#[test]
fn embeddings_prints_cosines() {
    insta::assert_snapshot!(output("embeddings", &[]));
}

#[test]
fn requests_prints_each_text() {
    insta::assert_snapshot!(output("requests", &[]));
}

#[test]
fn sampler_leaves_evidence() {
    insta::assert_snapshot!(output("sampler", &[]));
}

#[test]
fn pass_limits_the_logits() {
    let text = output("pass", &[]);
    insta::assert_snapshot!(text);
    let numbers = text.lines().last().unwrap().split_once("with the pass ").unwrap().1;
    let (found, expected) = numbers.trim().split_once("; expected ").unwrap();
    assert_eq!(found, expected);
}

#[test]
fn moe_adds_the_halves_up() {
    let text = output("moe", &[]);
    assert!(text.ends_with("the halves add up: true\n"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn kernels_runs_each_target() {
    let text = output("kernels", &[]);
    assert!(text.contains("portable: silu("), "{text}");
}

/// Returns the path of a plan of the demo model with streamed experts. The plan is in a folder that
/// is removed at the end.
fn plan() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ixp");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ixc"));
    command.args(["compile", "--memory", "1MiB", "--prefetch", "router", "--prefetch-extra", "8", "--pack", "-o"]);
    command.arg(&plan).arg(demo_model()).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    let plan = plan.to_str().unwrap().to_owned();
    (folder, plan)
}

#[test]
fn streaming_compares_policies() {
    let (folder, plan) = plan();
    let text = folder.path().join("text.txt");
    fs::write(&text, "The borrow checker").unwrap();
    let text = output("streaming", &[&plan, text.to_str().unwrap(), "25"]);
    assert!(text.lines().filter(|line| line.starts_with(" 25 %")).count() > 5, "{text}");
}

#[test]
fn overlap_compares_bounds() {
    let (_folder, plan) = plan();
    let text = output("overlap", &[&plan, "50", "400", "2"]);
    assert_eq!(text.lines().filter(|line| line.starts_with(" 50 %")).count(), 6, "{text}");
}

/// A process that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn server_streams_an_answer() {
    let mut command = example("server");
    command.arg(demo_model()).arg("127.0.0.1:0");
    let mut server = Server(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let address = address.unwrap_or_else(|| panic!("{line:?} is no address"));
    let ask = |body: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask(b"What is a trait?");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("transfer-encoding: chunked"), "{head}");
    // The last chunk is empty, so the answer is complete.
    assert!(body.len() > 20 && body.ends_with("\r\n0\r\n\r\n"), "{body:?}");
    let refused = ask(&b"word ".repeat(4000));
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("the context holds"), "{refused}");
}
