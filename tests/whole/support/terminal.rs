//! The program at a terminal of its own: what a person would type goes in, what they would see comes out.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

/// What the program writes when it begins to edit a line: bracketed paste is on from then on.
pub const ASKS: &str = "\x1b[?2004h";
/// What a terminal sends around pasted text.
pub const PASTE: [&str; 2] = ["\x1b[200~", "\x1b[201~"];
/// Ctrl-C and Ctrl-D.
pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";

/// A program at a terminal.
pub struct Terminal {
    master: File,
    child: Child,
    /// All that it has written so far, and how much of that was looked at.
    seen: Vec<u8>,
    read: usize,
}

impl Terminal {
    /// Starts a command with standard input and standard error at a new terminal, and standard output, too, unless it has its own place.
    pub fn start(command: &mut Command, stdout: Option<Stdio>) -> Terminal {
        Terminal::start_with(command, stdout, 200)
    }

    /// Starts a command at a terminal with the given columns.
    pub fn start_with(command: &mut Command, stdout: Option<Stdio>, columns: u16) -> Terminal {
        let (mut master, mut terminal) = (0, 0);
        let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointers are to two integers and a size, or null for what may be; the call keeps none of them.
        let opened =
            unsafe { libc::openpty(&mut master, &mut terminal, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(opened, 0, "{}", io::Error::last_os_error());
        // SAFETY: both were opened just now, and nobody else has them.
        let (master, terminal) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(terminal)) };
        // A program that another test starts meanwhile would keep this terminal from ending.
        for end in [&master, &terminal] {
            // SAFETY: it sets a flag of a descriptor that is open.
            assert_eq!(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
        }
        let end = || Stdio::from(terminal.try_clone().unwrap());
        command.stdin(end()).stderr(end()).stdout(stdout.unwrap_or_else(end));
        let number = terminal.as_raw_fd();
        // SAFETY: between fork and exec only calls that may be made there.
        unsafe {
            command.pre_exec(move || {
                if libc::setsid() < 0 || libc::ioctl(number, libc::TIOCSCTTY, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The command has the terminal, too, which ends only when nobody has it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { master: File::from(master), child, seen: Vec::new(), read: 0 }
    }

    /// Types something.
    pub fn send(&mut self, text: impl AsRef<[u8]>) {
        self.master.write_all(text.as_ref()).unwrap();
    }

    /// What was written since the last call, up to and with `end`. The program must write it, or end.
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

    /// What was written since the last call up to where the program asks for a line.
    #[track_caller]
    pub fn asked(&mut self) -> String {
        self.until(ASKS)
    }

    /// Types a line, and gives what came of it up to the next question.
    #[track_caller]
    pub fn say(&mut self, line: &str) -> String {
        self.send(format!("{line}\r"));
        self.asked()
    }

    /// All that is still written, and how the program ended.
    pub fn end(mut self) -> (String, ExitStatus) {
        while self.more() {}
        let status = self.child.wait().unwrap();
        (String::from_utf8_lossy(&self.seen[self.read..]).into_owned(), status)
    }

    /// Reads what there is; whether there was something. A terminal that nobody has any more is an error to read.
    fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let count = self.master.read(&mut buffer).unwrap_or(0);
        self.seen.extend(&buffer[..count]);
        count > 0
    }
}

/// A test that fails leaves no program behind that waits for somebody to type.
impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
