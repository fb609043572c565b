//! `ixc run --batch`: reads requests from a file and writes answers to another file, and resumes
//! after an interruption.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ixc, piped, scratch, stderr, stdout};

/// Returns the command that runs a batch with the demo model.
fn batch(folder: &Path, more: &[&str]) -> Command {
    let mut command = ixc(["run", "demo", "-t", "2", "-c", "256", "--temp", "0", "--batch"]);
    command.arg(folder.join("in.jsonl")).arg("-o").arg(folder.join("out.jsonl")).args(more);
    command
}

/// Returns the answers with their line numbers. Each line number occurs once.
fn answers(folder: &Path) -> Vec<(u64, Value)> {
    let text = fs::read_to_string(folder.join("out.jsonl")).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    let mut all: Vec<(u64, Value)> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|answer| (answer["line"].as_u64().unwrap(), answer))
        .collect();
    all.sort_by_key(|(line, _)| *line);
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "{text}");
    all
}

fn folder_with(name: &str, lines: &[String]) -> PathBuf {
    let folder = scratch(name);
    fs::write(folder.join("in.jsonl"), lines.join("\n")).unwrap();
    folder
}

/// Checks that each answer has the text that `ixc run` prints for the request alone, in every
/// format of requests.
#[test]
fn batch_answers_equal_single_runs() {
    let prompts = ["The borrow checker", "A trait is", "Once upon a time there was", "fn main() {", "Lifetimes"];
    let mut lines: Vec<String> =
        prompts.iter().enumerate().map(|(i, prompt)| json!({"id": i, "prompt": prompt}).to_string()).collect();
    lines[2] = json!({
        "custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": prompts[2], "max_tokens": 10},
    })
    .to_string();
    lines[3] = json!({"prompt": prompts[3], "max_tokens": 3, "n": 2}).to_string();
    lines.push(json!({"messages": [], "max_tokens": 4}).to_string());
    lines.insert(1, "   ".to_owned());
    let folder = folder_with("batch_answers", &lines);
    let output = batch(&folder, &["-n", "10", "--parallel", "3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("6 requests answered, 1 of them with an error"), "{}", stderr(&output));
    let found = answers(&folder);
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 3, 4, 5, 6, 7]);
    let text = |at: usize| found[at].1["response"]["body"]["choices"][0]["text"].as_str().unwrap().trim_end();
    for (at, prompt, count) in [
        (0, prompts[0], "10"),
        (1, prompts[1], "10"),
        (2, prompts[2], "10"),
        (3, prompts[3], "3"),
        (4, prompts[4], "10"),
    ] {
        let alone =
            stdout(ixc(["run", "demo", "--raw", "-p", prompt, "-n", count, "--temp", "0", "-t", "2", "-c", "256"]));
        assert_eq!(text(at), alone.trim_end(), "{prompt}");
    }
    assert_eq!(
        (&found[0].1["id"], &found[2].1["custom_id"], &found[2].1["id"]),
        (&json!(0), &json!("c"), &Value::Null)
    );
    assert_eq!(found[3].1["response"]["body"]["choices"].as_array().unwrap().len(), 2);
    let refused = &found[5].1["response"];
    assert_eq!(refused["status_code"], 400, "{refused}");
    assert!(refused["body"]["error"]["message"].as_str().unwrap().starts_with("messages has 0 entries"), "{refused}");
}

/// Checks that user messages are formatted with the template and with the system message of the
/// command line.
#[test]
fn batch_prompts_become_chat_turns_on_request() {
    let lines = [json!({"prompt": "Hi", "max_tokens": 4}), json!({"prompt": [1, 2]})].map(|line| line.to_string());
    let folder = folder_with("batch_chat", &lines);
    let output = batch(&folder, &["--chat-template", "chatml", "--system", "Be brief."]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found = answers(&folder);
    let body = &found[0].1["response"]["body"];
    assert_eq!(
        (&body["object"], &body["choices"][0]["message"]["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    let alone =
        ["run", "demo", "-p", "Hi", "-n", "4", "--temp", "0", "-t", "2", "-c", "256", "--chat-template", "chatml"];
    let alone = stdout(ixc(alone.into_iter().chain(["--system", "Be brief."])));
    assert_eq!(body["choices"][0]["message"]["content"].as_str().unwrap().trim(), alone.trim());
    assert!(found[1].1["error"]["message"].as_str().unwrap().starts_with("line 2: prompt must be a text"));
}

/// Checks that each invalid line gets one answer, with the fault and its position.
#[test]
fn invalid_batch_lines_get_error_answers() {
    let mut input = Vec::new();
    let long = "x".repeat((32 << 20) + 1);
    for line in [
        &b"{\"prompt\": "[..],
        b"[]",
        b"\xff\xfe",
        b"{\"id\": \"\\u0000\", \"prompt\": \"x\", \"temperature\": 1001}",
        b"{\"prompt\": \"x\", \"stream\": true}",
        b"{\"prompt\": \"x\", \"max_tokens\": 1e99}",
        long.as_bytes(),
        b"{\"prompt\": \"The\", \"max_tokens\": 1}",
    ] {
        input.extend_from_slice(line);
        input.push(b'\n');
    }
    // This line has 100,000 nested arrays.
    input.extend_from_slice("[".repeat(100_000).as_bytes());
    let folder = scratch("batch_errors");
    fs::write(folder.join("in.jsonl"), &input).unwrap();
    let output = batch(&folder, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found = answers(&folder);
    let said = |answer: &Value| match &answer["error"]["message"] {
        Value::String(message) => message.clone(),
        _ => answer["response"]["body"]["error"]["message"].as_str().unwrap_or("nothing").to_owned(),
    };
    let said: Vec<String> = found.iter().map(|(_, answer)| said(answer)).collect();
    for (said, expected) in said.iter().zip([
        "line 1: the body is not JSON",
        "line 2: the body is a list, must be an object",
        "line 3: the text begins with the byte order mark of UTF-16",
        "temperature is 1001, must be a number",
        "line 5: stream must be false: answers of a batch cannot be streamed",
        "max_tokens is 1e+99, must be a whole number",
        "line 7: the line has 33554433 bytes; the limit is 33554432",
        "nothing",
        "line 9: the body has too many values",
    ]) {
        assert!(said.starts_with(expected), "{said} is not {expected}");
    }
    assert_eq!(said.len(), 9);
    assert_eq!(found[3].1["id"], "\0");
}

/// Checks that a resumed batch keeps complete answers, cuts off a partial one, and answers the
/// remaining requests. A batch does not resume with another input.
#[test]
fn batch_resumes_after_its_complete_answers() {
    let lines: Vec<String> =
        (0..12).map(|i| json!({"prompt": format!("{i} is"), "max_tokens": 3}).to_string()).collect();
    let folder = folder_with("batch_goes_on", &lines);
    let out = folder.join("out.jsonl");
    assert!(batch(&folder, &[]).output().unwrap().status.success());
    let whole = fs::read_to_string(&out).unwrap();
    let expected = answers(&folder);
    assert_eq!(expected.len(), 12);
    // Returns the texts of answers, because ids and times differ.
    let texts = |all: &[(u64, Value)]| -> Vec<Value> {
        all.iter().map(|(_, answer)| answer["response"]["body"]["choices"][0]["text"].clone()).collect()
    };
    let written: Vec<&str> = whole.split_inclusive('\n').collect();
    let kept = written[..5].concat();
    for torn in ["", "{", &written[5][..written[5].len() - 1], &written[6][..9]] {
        fs::write(&out, format!("{kept}{torn}")).unwrap();
        let output = batch(&folder, &[]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("7 requests answered, 5 answered before"), "{}", stderr(&output));
        assert!(fs::read_to_string(&out).unwrap().starts_with(&kept));
        assert_eq!(texts(&answers(&folder)), texts(&expected));
    }
    // All requests have answers in the output already, so the next run changes nothing.
    let before = fs::read(&out).unwrap();
    assert!(batch(&folder, &[]).output().unwrap().status.success());
    assert_eq!(fs::read(&out).unwrap(), before);

    let mut others = lines.clone();
    others[3] = json!({"prompt": "another"}).to_string();
    fs::write(folder.join("in.jsonl"), others.join("\n")).unwrap();
    let output = batch(&folder, &["-n", "2"]).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.code() == Some(2) && said.contains("answers line 4 of another batch"), "{said}");
    assert_eq!(fs::read(&out).unwrap(), before);
    assert!(batch(&folder, &["-n", "2", "--force"]).output().unwrap().status.success());
    assert_eq!(answers(&folder).len(), 12);
    for (there, status, says) in [
        ("a letter", 2, "is not a file of a batch's answers"),
        ("{\"line\": 1}\n", 65, "line 1 is not an answer of a batch"),
        ("{\"line\":1,\"request\":\"g\"}\n", 65, "line 1 is not an answer of a batch"),
        ("{\"line\":1,\"request\":\"0\"}\n{\"line\":1,\"request\":\"0\"}\n", 65, "line 1 is not an answer of a batch"),
        ("{\"line\":1,\"request\":\"0\"}\nmy notes", 65, "line 1 is not an answer of a batch"),
    ] {
        fs::write(&out, there).unwrap();
        let output = batch(&folder, &[]).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(status) && said.contains(says), "{said}");
        assert_eq!(fs::read_to_string(&out).unwrap(), there);
    }
    // The input file is refused as the output.
    let same = folder.join("in.jsonl");
    let output = ixc(["run", "demo", "--batch"]).arg(&same).arg("-o").arg(&same).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// Checks that after Ctrl-C or a kill, no answer is lost and no request is answered twice.
#[cfg(unix)]
#[test]
fn interrupted_batch_resumes_without_loss() {
    let lines: Vec<String> = (0..40)
        .map(|i| json!({"prompt": format!("{i} is"), "max_tokens": 60, "ignore_eos": true}).to_string())
        .collect();
    let folder = folder_with("batch_interrupted", &lines);
    let out = folder.join("out.jsonl");
    let mut before = 0;
    for (signal, status) in [(libc::SIGINT, Some(130)), (libc::SIGKILL, None)] {
        let mut child = batch(&folder, &[]).stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while fs::read(&out).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count() <= before {
            assert!(begin.elapsed() < Duration::from_secs(120) && child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: the child's id is its own until it is waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        assert_eq!(child.wait().unwrap().code(), status);
        before = fs::read(&out).unwrap().iter().filter(|byte| **byte == b'\n').count();
        assert!(before < lines.len(), "it was too fast to be interrupted");
    }
    let output = batch(&folder, &[]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("{before} answered before")), "{}", stderr(&output));
    assert_eq!(answers(&folder).len(), lines.len());
}

/// Checks that requests may come from a pipe.
#[test]
fn batch_reads_standard_input() {
    let folder = scratch("batch_pipe");
    let mut command = ixc(["run", "demo", "-t", "2", "-c", "64", "--batch", "-", "-n", "2", "-o"]);
    command.arg(folder.join("out.jsonl"));
    let output = piped(command, "{\"prompt\": \"The\"}\n{\"prompt\": \"A\"}\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(answers(&folder).len(), 2);
}
