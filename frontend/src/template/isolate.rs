//! Rendering in a child process: JSON in on its standard input, JSON out on its standard output, and limits that the
//! system keeps. The child may abort, run out of memory or be killed; its parent turns each into an error.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use serde::{Deserialize, Serialize};

use super::{Budget, CPU_SECONDS, Conversation, Limit, STACK_BYTES, TemplateError, render as in_process};

/// The argument that makes a program call [`serve_render_request`].
pub const RENDER_ARGUMENT: &str = "__render-chat-template";

/// Most that is read of a child's complaints.
const MAX_COMPLAINT_BYTES: u64 = 16 << 10;
/// What an answer may have over its text: JSON's quotes and escapes (six bytes for a control character).
const ANSWER_BYTES_PER_OUTPUT_BYTE: u64 = 6;
/// Address space beside stack and heap: the program itself, and what the allocator reserves without using it.
const RESERVED_BYTES: u64 = 1 << 30;

/// What a child is asked.
#[derive(Serialize, Deserialize)]
struct Request {
    source: String,
    conversation: Conversation,
}

/// Set in a child: one that renders in a child itself does not know its argument, and would go on so for ever.
const RENDERING: &str = "IXC_RENDERING";

/// The program that runs, to be started once more as the helper: on Linux the open file that it was started from, which is there also after
/// an upgrade has put another in its place; elsewhere its path.
///
/// # Errors
/// When the system does not say where it is.
pub fn own_program() -> io::Result<PathBuf> {
    let open = Path::new("/proc/self/exe");
    // Where there is no /proc the path will do.
    if open.exists() { Ok(open.into()) } else { std::env::current_exe() }
}

/// Renders in a child.
pub fn render(helper: &Path, source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
    let budget = Budget::of(conversation);
    let failed =
        |what: &str, error: &dyn std::fmt::Display| TemplateError::Failed { reason: format!("{what}: {error}") };
    if std::env::var_os(RENDERING).is_some() {
        return Err(failed(RENDER_ARGUMENT, &"the program does not call serve_render_request first"));
    }
    let request = Request { source: source.to_owned(), conversation: conversation.clone() };
    let request = serde_json::to_vec(&request).map_err(|error| failed("request", &error))?;
    let mut child = Command::new(helper)
        .arg(RENDER_ARGUMENT)
        .env_clear()
        .env(RENDERING, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| TemplateError::Start { reason: format!("cannot start {}: {error}", helper.display()) })?;

    // The child reads its whole input before it writes, so one after the other cannot block. It may also be dead by
    // now, which its status tells better than a broken pipe.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&request));
    let limit = budget.output_bytes * ANSWER_BYTES_PER_OUTPUT_BYTE + MAX_COMPLAINT_BYTES;
    let answer = read_up_to(child.stdout.take(), limit);
    let complaint = read_up_to(child.stderr.take(), MAX_COMPLAINT_BYTES);
    let status = child.wait().map_err(|error| failed("child", &error))?;
    let complaint = String::from_utf8_lossy(&complaint.unwrap_or_default()).into_owned();
    if !status.success() {
        return Err(death(status, &complaint, budget));
    }
    written.map_err(|error| failed("request", &error))?;
    let answer = answer.map_err(|error| failed("answer", &error))?;
    serde_json::from_slice(&answer).unwrap_or_else(|error| Err(failed("answer", &error)))
}

/// Reads all, or as much as may be; what comes after is dropped and with it the pipe.
fn read_up_to(from: Option<impl Read>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// What a child died of. The words are those of Rust's runtime, which has no other way to say it.
fn death(status: ExitStatus, complaint: &str, budget: Budget) -> TemplateError {
    use std::os::unix::process::ExitStatusExt;
    let limit = |limit, allowed| TemplateError::Limit { limit, allowed };
    if complaint.contains("memory allocation of") || complaint.contains("capacity overflow") {
        return limit(Limit::Memory, budget.memory_bytes);
    }
    if complaint.contains("overflowed its stack") {
        return limit(Limit::Stack, STACK_BYTES as u64);
    }
    match status.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => limit(Limit::Time, CPU_SECONDS),
        _ => {
            let first_line: String = complaint.lines().next().unwrap_or_default().chars().take(200).collect();
            TemplateError::Failed { reason: format!("the renderer ended with {status}: {first_line}") }
        }
    }
}

/// The child's whole program: reads a request from standard input, limits this process for good, renders, and writes the
/// answer. Call it before anything else is set up, when [`RENDER_ARGUMENT`] is the first argument.
pub fn serve_render_request() -> ExitCode {
    let answer = || -> Result<String, TemplateError> {
        let failed = |error: &dyn std::fmt::Display| TemplateError::Failed { reason: format!("request: {error}") };
        close_what_was_inherited();
        let mut request = Vec::new();
        io::stdin().lock().read_to_end(&mut request).map_err(|error| failed(&error))?;
        let Request { source, conversation } = serde_json::from_slice(&request).map_err(|error| failed(&error))?;
        drop(request);
        limit_this_process(Budget::of(&conversation)).map_err(|error| failed(&error))?;
        in_process::render(&source, &conversation)
    };
    let written = serde_json::to_writer(io::stdout().lock(), &answer()).is_ok() && io::stdout().flush().is_ok();
    if written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Closes every descriptor but the three standard ones: what the caller left open is no concern of a template's.
fn close_what_was_inherited() {
    #[cfg(target_os = "linux")]
    // SAFETY: nothing in this process has opened a descriptor of its own yet, so that none is closed that somebody uses. Kernels before 5.9
    // have no such call and refuse it, which does no harm.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
    }
}

/// Sets the limits of this process; they cannot be raised again.
fn limit_this_process(budget: Budget) -> io::Result<()> {
    let data = STACK_BYTES as u64 + budget.memory_bytes;
    let limits = [
        (libc::RLIMIT_CORE, 0, 0),
        // No file is opened, none is written; threads are left, rendering has one of its own.
        (libc::RLIMIT_NOFILE, 0, 0),
        (libc::RLIMIT_FSIZE, 0, 0),
        // Soft: SIGXCPU ends the process. Hard, should it live: SIGKILL.
        (libc::RLIMIT_CPU, CPU_SECONDS, CPU_SECONDS + 1),
        (libc::RLIMIT_DATA, data, data),
        // For systems that count no mappings as data.
        (libc::RLIMIT_AS, data + RESERVED_BYTES, data + RESERVED_BYTES),
    ];
    // Nothing that is executed from here on gains a right by it.
    #[cfg(target_os = "linux")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    for (resource, soft, hard) in limits {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        // SAFETY: `limit` is a valid rlimit for the time of the call, which reads it and keeps no pointer.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
