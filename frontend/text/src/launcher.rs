//! Launcher: a process that starts helpers for a process that may not start programs itself.
//!
//! ```text
//! server ── pipes, channel ──▶ launcher ──fork──▶ watcher ──fork──▶ helper
//!        ◀── exit status ──────────────────────── watcher
//!        ─── end of the channel ────────────────▶ watcher ──kill──▶ helper
//! ```
//!
//! The launcher is a new process, so its memory contains no prompts and no keys. It executes no
//! program file: helpers are forks of it. Each helper then limits itself further
//! ([`crate::helper`]).
//!
//! Invariant: the launcher has only one thread, so a fork of it is a complete program.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use ixc_sandbox::support::Support;
use ixc_sandbox::{Role, SandboxError, files, filter, process};

/// First argument of a program that must call [`serve`].
pub const LAUNCH_ARGUMENT: &str = "__launch-helpers";
/// Environment variable that is set in helpers and launchers. It stops a program that ignores its
/// helper argument from starting further helpers without end.
pub(crate) const HELPER_VARIABLE: &str = "IXC_RENDERING";

/// Maximum length of a job's name in bytes.
const NAME_BYTES: usize = 64;
/// Message that a launcher sends when it has set its limits.
const READY: &[u8] = b"ready";
/// Maximum number of consecutive system failures before the launcher ends.
const MAX_FAILURES: u32 = 100;
/// Time between a system failure and the next attempt.
const RETRY: Duration = Duration::from_millis(20);
/// Number of descriptors that a helper gets: input, output, errors, channel.
const DESCRIPTORS: usize = 4;
/// Descriptor of the launcher's socket to its server.
const SOCKET: RawFd = libc::STDIN_FILENO;

/// Socket to the launcher that this process has started.
static LAUNCHER: OnceLock<OwnedFd> = OnceLock::new();

/// Task that a helper can perform.
#[derive(Clone, Copy, Debug)]
pub struct HelperJob {
    /// Argument that selects the task.
    pub argument: &'static str,
    /// Main function of a helper with this task.
    pub main: fn() -> ExitCode,
}

/// Pipes and channel to a helper that the launcher started.
#[derive(Debug)]
pub(crate) struct LaunchedHelper {
    pub(crate) stdin: PipeWriter,
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
    pub(crate) channel: Channel,
}

/// Channel to the watcher process of a helper.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// Kills the helper, if it has not ended.
    pub(crate) fn kill(&self) {
        // This fails if the watcher has already ended, which is fine.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Waits until the helper has ended.
    ///
    /// # Errors
    /// If the system did not start the helper.
    pub(crate) fn wait(&self) -> io::Result<ExitStatus> {
        let mut status = [0; 4];
        (&self.0).read_exact(&mut status)?;
        Ok(ExitStatus::from_raw(i32::from_le_bytes(status)))
    }
}

/// Starts a launcher, which then starts all helpers of this process. `program` must call [`serve`]
/// if its first argument is [`LAUNCH_ARGUMENT`].
///
/// # Errors
/// If the system does not start the process, or if the launcher cannot limit itself.
pub fn start(program: &Path) -> io::Result<()> {
    let (own, other) = socket_pair()?;
    Command::new(program)
        .arg(LAUNCH_ARGUMENT)
        .env_clear()
        .env(HELPER_VARIABLE, "1")
        .stdin(other)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C must reach only the server, which then finishes its answers.
        .process_group(0)
        .spawn()?;
    let mut answer = [0; READY.len()];
    // SAFETY: the call writes at most the length of `answer`, which outlives it.
    let received = unsafe { libc::recv(own.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if received != READY.len() as isize || answer != READY {
        return Err(io::Error::other("the process that launches helper processes has ended"));
    }
    LAUNCHER.set(own).map_err(|_| io::Error::other("the process that launches helper processes was started twice"))
}

/// Starts a helper for the task `job`; `None` if this process has no launcher.
///
/// # Errors
/// If the launcher has ended, or if the system refuses pipes.
pub(crate) fn launch(job: &str) -> Option<io::Result<LaunchedHelper>> {
    LAUNCHER.get().map(|launcher| {
        let (input, stdin) = io::pipe()?;
        let (stdout, output) = io::pipe()?;
        let (stderr, errors) = io::pipe()?;
        let (channel, watcher) = UnixStream::pair()?;
        let passed = [input.as_raw_fd(), output.as_raw_fd(), errors.as_raw_fd(), watcher.as_raw_fd()];
        send(launcher, job.as_bytes(), passed)?;
        Ok(LaunchedHelper { stdin, stdout, stderr, channel: Channel(channel) })
    })
}

/// Runs the launcher. It starts a helper for each message, until the other end of standard input is
/// closed. In each helper, the function also returns, after the task. Call it before anything else
/// is set up.
pub fn serve(jobs: &[HelperJob]) -> ExitCode {
    // These signals are ignored, because the server decides when this process ends.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
        // SAFETY: ignores a signal. For SIGCHLD, the system then also reaps children.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    if limit_launcher().is_err() {
        return ExitCode::FAILURE;
    }
    // SAFETY: the call reads the message, which outlives it.
    if unsafe { libc::send(SOCKET, READY.as_ptr().cast(), READY.len(), libc::MSG_NOSIGNAL) } < 0 {
        return ExitCode::FAILURE;
    }
    while let Some(request) = next_request(SOCKET) {
        // SAFETY: this process has one thread, so its copy is a whole program.
        match unsafe { libc::fork() } {
            0 => return watch(request, jobs),
            // If the fork fails, dropping the request closes the channel, which the server notices.
            _ => drop(request),
        }
    }
    ExitCode::SUCCESS
}

/// Returns the next valid request; `None` when there are no more. Invalid messages are ignored. If
/// the system lacks memory, the launcher waits and retries. Neither may end the launcher, because
/// the server needs it.
fn next_request(socket: RawFd) -> Option<LaunchRequest> {
    let mut failures = 0;
    loop {
        match receive(socket) {
            Ok(request) => return request,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => failures = 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if failures < MAX_FAILURES => {
                failures += 1;
                std::thread::sleep(RETRY);
            }
            Err(_) => return None,
        }
    }
}

/// Limits this process, so that it can only start helpers.
fn limit_launcher() -> Result<(), SandboxError> {
    process::drop_all_capabilities()?;
    files::confine_all()?;
    if Support::of_kernel().seccomp { filter::install(Role::Launcher) } else { Ok(()) }
}

/// Request to start a helper.
struct LaunchRequest {
    job: Vec<u8>,
    pipes: [OwnedFd; DESCRIPTORS - 1],
    channel: UnixStream,
}

/// Starts a helper, and waits until it has ended. Kills it if the channel is closed. In the helper,
/// the function also returns.
fn watch(request: LaunchRequest, jobs: &[HelperJob]) -> ExitCode {
    let LaunchRequest { job, pipes, mut channel } = request;
    // SAFETY: restores the default action, so that the helper's status is kept.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: this process has one thread, so its copy is a whole program.
    let helper = match unsafe { libc::fork() } {
        -1 => return ExitCode::FAILURE,
        0 => {
            drop(channel);
            return help(&job, pipes, jobs);
        }
        helper => helper,
    };
    drop(pipes);
    wait_or_end(helper, &channel);
    let mut status = 0;
    // SAFETY: the call writes to `status`, which outlives it.
    while unsafe { libc::waitpid(helper, &raw mut status, 0) } == -1 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return ExitCode::FAILURE;
        }
    }
    // This fails if the server has already ended, which is fine.
    let _ = channel.write_all(&status.to_le_bytes());
    ExitCode::SUCCESS
}

/// Performs a helper's task, with the pipes as standard input, output and errors.
fn help(job: &[u8], pipes: [OwnedFd; DESCRIPTORS - 1], jobs: &[HelperJob]) -> ExitCode {
    for (standard, pipe) in (0..).zip(&pipes) {
        // SAFETY: both are descriptors of this process, and no other code uses the standard ones.
        if unsafe { libc::dup2(pipe.as_raw_fd(), standard) } == -1 {
            return ExitCode::FAILURE;
        }
    }
    // The main function of the task closes all other descriptors.
    drop(pipes);
    let job = jobs.iter().find(|known| known.argument.as_bytes() == job);
    job.map_or(ExitCode::FAILURE, |job| (job.main)())
}

/// Waits until a helper has ended. If the channel is closed before, kills the helper.
fn wait_or_end(helper: libc::pid_t, channel: &UnixStream) {
    // SAFETY: takes numbers only.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, helper, 0) };
    // Kernels before 5.3 lack this call. There, only the helper's limits end it.
    let Ok(descriptor @ 0..) = RawFd::try_from(descriptor) else { return };
    // SAFETY: the system opened the descriptor for this function.
    let process = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let entry = |descriptor| libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(process.as_raw_fd()), entry(channel.as_raw_fd())];
    // SAFETY: the call reads and writes two entries, which outlive it.
    while unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) } == -1 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
    if entries[1].revents != 0 {
        // SAFETY: the helper is a child of this process that was not waited for, so its id is still
        // its own.
        unsafe { libc::kill(helper, libc::SIGKILL) };
    }
}

/// Returns two connected sockets that keep the boundaries of messages.
fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the call writes two numbers, which outlive it.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system opened both descriptors for this function.
    Ok(pair.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) }).into())
}

/// Control data of a message that transfers descriptors.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptors: [RawFd; DESCRIPTORS],
}

const _: () = assert!(
    // SAFETY: computes a length from a length.
    size_of::<Control>() == unsafe { libc::CMSG_SPACE(size_of::<[RawFd; DESCRIPTORS]>() as u32) } as usize,
    "descriptors follow their header without a gap"
);

impl Control {
    fn new(descriptors: [RawFd; DESCRIPTORS]) -> Control {
        // SAFETY: all bytes of a header may be zero.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = size_of::<Control>() as _;
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        Control { header, descriptors }
    }

    /// Calls `transfer` with a message that has these bytes and this control data. Returns the
    /// number of bytes transferred.
    fn transfer(&mut self, bytes: &mut [u8], transfer: impl FnOnce(&mut libc::msghdr) -> isize) -> io::Result<usize> {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all bytes of a message's description may be zero: no address, no data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut *self).cast();
        message.msg_controllen = size_of::<Control>() as _;
        let length = transfer(&mut message);
        usize::try_from(length).map_err(|_| io::Error::last_os_error())
    }
}

/// Sends the name of a task, with descriptors.
fn send(socket: &OwnedFd, name: &[u8], descriptors: [RawFd; DESCRIPTORS]) -> io::Result<()> {
    let mut name = name.to_vec();
    let sent = Control::new(descriptors).transfer(&mut name, |message| {
        // SAFETY: the message describes memory that outlives the call.
        unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
    });
    sent.map(drop)
}

/// Receives the next request; `None` if the other end of the socket is closed.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a message that does not have all descriptors of a request.
/// This also happens if this process has too many open files. The message is then lost.
fn receive(socket: RawFd) -> io::Result<Option<LaunchRequest>> {
    let mut control = Control::new([-1; DESCRIPTORS]);
    control.header.cmsg_len = 0;
    let mut name = [0; NAME_BYTES];
    let length = control.transfer(&mut name, |message| {
        // SAFETY: the message describes memory that outlives the call.
        unsafe { libc::recvmsg(socket, message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    if length == 0 && control.header.cmsg_len == 0 {
        return Ok(None);
    }
    let is_open = |number: &RawFd| *number >= 0;
    // SAFETY: the system opened these descriptors for this process with the message. It writes no
    // number of a descriptor that it did not open.
    let own = |number: RawFd| unsafe { OwnedFd::from_raw_fd(number) };
    if !control.descriptors.iter().all(is_open) {
        control.descriptors.into_iter().filter(is_open).map(own).for_each(drop);
        return Err(io::ErrorKind::InvalidData.into());
    }
    let [input, output, errors, channel] = control.descriptors.map(own);
    Ok(Some(LaunchRequest { job: name[..length].to_vec(), pipes: [input, output, errors], channel: channel.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a message with `count` copies of a descriptor.
    fn send_some(socket: &OwnedFd, name: &[u8], descriptor: RawFd, count: usize) {
        let mut control = Control::new([descriptor; DESCRIPTORS]);
        let bytes = size_of::<RawFd>() * (DESCRIPTORS - count);
        control.header.cmsg_len -= bytes;
        let sent = control.transfer(&mut name.to_vec(), |message| {
            // The length of control data is in whole words of 8 bytes.
            message.msg_controllen -= if count == 0 { message.msg_controllen } else { bytes / 8 * 8 };
            // SAFETY: the message describes memory that outlives the call.
            unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
        });
        assert_eq!(sent.unwrap(), name.len());
    }

    #[test]
    fn messages_that_are_no_request_are_left_out() {
        let (server, launcher) = socket_pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        for count in 0..DESCRIPTORS {
            send_some(&server, b"bad", writer.as_raw_fd(), count);
        }
        send_some(&server, b"good", writer.as_raw_fd(), DESCRIPTORS);
        drop(writer);
        let request = next_request(launcher.as_raw_fd()).unwrap();
        assert_eq!(request.job, b"good");
        drop(request);
        // Reading reaches the end of the pipe, because the receiver closed the descriptors of the
        // invalid messages, too.
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
        drop(server);
        assert!(next_request(launcher.as_raw_fd()).is_none());
    }

    #[test]
    fn a_lasting_failure_ends_the_launcher() {
        let (reader, _writer) = io::pipe().unwrap();
        assert!(next_request(reader.as_raw_fd()).is_none());
    }
}
