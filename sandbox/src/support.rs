//! Features of the running kernel that a sandbox uses.

/// Flag with which `landlock_create_ruleset` returns its version.
const CREATE_RULESET_VERSION: libc::c_uint = 1;
/// First Landlock version whose rules can hold for all threads of a process.
const ALL_THREADS: u32 = 8;
/// First Landlock version with all other rules of this crate, including those for signals and
/// abstract sockets.
const ALL_RULES: u32 = 6;

/// Features of a kernel that a sandbox uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Version of the Landlock interface. It is 0 without Landlock.
    pub landlock: u32,
    /// Whether a filter of system calls can end the process.
    pub seccomp: bool,
}

impl Support {
    /// Returns the features of the running kernel.
    pub fn of_kernel() -> Support {
        Support { landlock: landlock_version(), seccomp: has_seccomp() }
    }

    /// Returns whether Landlock rules can hold for all threads of a process, including earlier
    /// ones.
    pub fn covers_threads(self) -> bool {
        self.landlock >= ALL_THREADS
    }

    /// Returns descriptions of the features that are missing.
    pub fn missing(self) -> Vec<&'static str> {
        let landlock = match self.landlock {
            0 => Some("Landlock: files and network are not limited"),
            1..4 => Some("Landlock 4 (Linux 6.7): the network is limited only by system calls"),
            4..ALL_RULES => Some("Landlock 6 (Linux 6.12): signals are limited only by system calls"),
            ALL_RULES.. => None,
        };
        let seccomp = (!self.seccomp).then_some("seccomp: system calls are not limited");
        landlock.into_iter().chain(seccomp).collect()
    }
}

fn landlock_version() -> u32 {
    // SAFETY: with this flag, the call takes no attributes and returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, CREATE_RULESET_VERSION)
    };
    u32::try_from(version).unwrap_or(0)
}

fn has_seccomp() -> bool {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the call reads the action, which outlives it.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}
