//! The program at a pseudo-terminal. Tests type as a person would, and read the output on the
//! screen.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Escape sequence that the program prints when it starts to read a line: it turns on bracketed
/// paste.
pub const ASKS: &str = "\x1b[?2004h";
/// Text that a terminal sends before and after pasted text.
pub const PASTE: [&str; 2] = ["\x1b[200~", "\x1b[201~"];
/// Characters that Ctrl-C and Ctrl-D send.
pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";

/// A program at a terminal.
pub struct Terminal {
    master: File,
    child: Child,
    /// All output so far, and the number of its bytes that the test has already read.
    seen: Vec<u8>,
    read: usize,
}

impl Terminal {
    /// Starts a command with standard input and standard error at a new terminal. Standard output
    /// is also at the terminal, unless `stdout` is set.
    pub fn start(command: &mut Command, stdout: Option<Stdio>) -> Terminal {
        Terminal::start_with(command, stdout, 200)
    }

    /// Starts a command at a terminal with the given columns.
    pub fn start_with(command: &mut Command, stdout: Option<Stdio>, columns: u16) -> Terminal {
        let (mut master, mut terminal) = (0, 0);
        let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointers are to two integers and a size, or null for optional parameters. The
        // call keeps none of them.
        let opened =
            unsafe { libc::openpty(&mut master, &mut terminal, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(opened, 0, "{}", io::Error::last_os_error());
        // SAFETY: both descriptors were opened just now, and have no other owner.
        let (master, terminal) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(terminal)) };
        // A program that another test starts at the same time would otherwise inherit this terminal
        // and keep it open.
        for end in [&master, &terminal] {
            // SAFETY: the call sets a flag of an open descriptor.
            assert_eq!(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
        }
        let end = || Stdio::from(terminal.try_clone().unwrap());
        command.stdin(end()).stderr(end()).stdout(stdout.unwrap_or_else(end));
        let number = terminal.as_raw_fd();
        // SAFETY: between fork and exec, only async-signal-safe calls are made.
        unsafe {
            command.pre_exec(move || {
                if libc::setsid() < 0 || libc::ioctl(number, libc::TIOCSCTTY, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The command object also holds the terminal open. Reading ends only when all holders have
        // closed it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { master: File::from(master), child, seen: Vec::new(), read: 0 }
    }

    /// Types a text at the terminal.
    pub fn send(&mut self, text: impl AsRef<[u8]>) {
        self.master.write_all(text.as_ref()).unwrap();
    }

    /// Returns the output since the last call, up to and including `end`. The test fails if the
    /// program ends before it prints `end`.
    #[track_caller]
    pub fn until(&mut self, end: &str) -> String {
        loop {
            let new = &self.seen[self.read..];
            if let Some(at) = new.windows(end.len()).position(|window| window == end.as_bytes()) {
                let text = String::from_utf8_lossy(&new[..at + end.len()]).into_owned();
                self.read += at + end.len();
                return text;
            }
            assert!(self.more(), "no {end:?}, and the program ended: {}", String::from_utf8_lossy(&self.seen));
        }
    }

    /// Returns the output since the last call, up to the next prompt for input.
    #[track_caller]
    pub fn asked(&mut self) -> String {
        self.until(ASKS)
    }

    /// Types a line, and returns the output up to the next prompt for input.
    #[track_caller]
    pub fn say(&mut self, line: &str) -> String {
        self.send(format!("{line}\r"));
        self.asked()
    }

    /// Returns the remaining output, and the program's exit status.
    pub fn end(mut self) -> (String, ExitStatus) {
        while self.more() {}
        let status = self.child.wait().unwrap();
        (String::from_utf8_lossy(&self.seen[self.read..]).into_owned(), status)
    }

    /// Reads the available output, and returns whether there was any. Reading fails once all other
    /// holders have closed the terminal.
    fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let count = self.master.read(&mut buffer).unwrap_or(0);
        self.seen.extend(&buffer[..count]);
        count > 0
    }
}

/// Ends the program when a test fails, because the program would wait for input forever.
impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
