//! Table of system calls. [`filter`](crate::filter) makes filters from it, and a test compares it
//! with `docs/sandbox.md`.
//!
//! The C library decides which of several equivalent calls it makes (such as `open` or `openat`,
//! `poll` or `ppoll`). So each group contains all of them.

/// Kinds of processes, which differ in the system calls that they may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A process that has loaded its only model.
    Server,
    /// A process that may still load models, and so may generate code.
    Loader,
    /// A process that starts helpers.
    Launcher,
    /// A helper, which renders a template or compiles a grammar.
    Helper,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Server, Role::Loader, Role::Launcher, Role::Helper];

    /// Returns the name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Loader => "loader",
            Role::Launcher => "launcher",
            Role::Helper => "helper",
        }
    }

    /// Returns whether processes of this role can no longer make memory executable.
    pub fn refuses_code(self) -> bool {
        self != Role::Loader
    }
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    constant: &'static str,
    /// Number of the call on this architecture.
    pub number: libc::c_long,
}

impl Call {
    /// Returns the name of the call.
    pub fn name(&self) -> &'static str {
        self.constant.trim_start_matches("SYS_")
    }
}

/// Calls that are allowed, refused or fatal for the same reason.
#[derive(Debug)]
pub struct Group {
    /// Name of the group.
    pub name: &'static str,
    /// Reason why the calls of the group are allowed, refused or fatal.
    pub reason: &'static str,
    /// Roles for which the group holds.
    pub roles: &'static [Role],
    general: &'static [Call],
    /// Older calls that exist only on x86-64.
    older: &'static [Call],
}

impl Group {
    /// Returns all calls of the group.
    pub fn calls(&self) -> impl Iterator<Item = &'static Call> {
        self.general.iter().chain(self.older)
    }
}

/// Condition on an argument of a call. The call is allowed only if the condition holds.
#[derive(Debug)]
pub struct Condition {
    /// The allowed call.
    pub call: Call,
    /// Index of the argument.
    pub argument: u8,
    /// Test of the argument.
    pub test: Test,
    /// Reason for the condition.
    pub reason: &'static str,
    /// Roles for which the condition holds.
    pub roles: &'static [Role],
}

impl Condition {
    /// Returns whether this is a condition on the given call of the given role.
    pub fn is_for(&self, call: &Call, role: Role) -> bool {
        self.call == *call && self.roles.contains(&role)
    }
}

/// Test of the lower 32 bits of an argument.
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// Whether all of these bits are set.
    Has(u64),
    /// Whether all of these bits are zero.
    Lacks(u64),
    /// Whether the number is one of these.
    OneOf(&'static [u64]),
    /// Whether the number is the identifier of this process.
    ThisProcess,
}

macro_rules! calls {
    ($($constant:ident)*) => { &[$(call!($constant)),*] };
}

macro_rules! call {
    ($constant:ident) => {
        Call { constant: stringify!($constant), number: libc::$constant }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! older {
    ($($constant:ident)*) => { calls!($($constant)*) };
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! older {
    ($($constant:ident)*) => {
        &[]
    };
}

const ALL: &[Role] = &Role::ALL;
const SERVING: &[Role] = &[Role::Server, Role::Loader];
const LOADING: &[Role] = &[Role::Loader];
const LAUNCHING: &[Role] = &[Role::Launcher];
/// Roles that start threads but no processes.
const WORKING: &[Role] = &[Role::Server, Role::Loader, Role::Helper];

/// Allowed calls.
pub const ALLOWED: &[Group] = &[
    Group {
        name: "memory",
        reason: "the allocator, stacks of threads, the KV cache",
        roles: ALL,
        general: calls![SYS_brk SYS_mmap SYS_mprotect SYS_mremap SYS_munmap SYS_madvise SYS_mincore SYS_membarrier],
        older: &[],
    },
    Group {
        name: "threads",
        reason: "threads of the engine and of the server, their locks and signals",
        roles: ALL,
        general: calls![
            SYS_clone SYS_exit SYS_exit_group SYS_futex SYS_set_robust_list SYS_get_robust_list SYS_rseq
            SYS_set_tid_address SYS_gettid SYS_getpid SYS_getppid SYS_tgkill SYS_prctl SYS_sched_yield
            SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_getcpu SYS_getpriority
            SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
        ],
        older: older![SYS_pause],
    },
    Group {
        name: "time",
        reason: "clocks, time limits, measurements",
        roles: ALL,
        general: calls![
            SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep SYS_getrusage SYS_times
        ],
        older: older![SYS_time],
    },
    Group {
        name: "identity",
        reason: "limits and properties of this process, random numbers",
        roles: ALL,
        general: calls![
            SYS_getrandom SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_uname SYS_sysinfo SYS_prlimit64 SYS_capget
        ],
        older: older![SYS_getrlimit],
    },
    Group {
        name: "descriptors",
        reason: "files, pipes and sockets that are open",
        roles: ALL,
        general: calls![
            SYS_read SYS_readv SYS_write SYS_writev SYS_lseek SYS_close SYS_fstat SYS_fcntl SYS_ioctl
        ],
        older: &[],
    },
    Group {
        name: "files",
        reason: "prompt cache, saved slots, records; Landlock limits the paths",
        roles: SERVING,
        general: calls![
            SYS_openat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat SYS_faccessat2 SYS_readlinkat
            SYS_getdents64 SYS_getcwd SYS_pread64 SYS_preadv SYS_preadv2 SYS_pwrite64 SYS_pwritev SYS_pwritev2
            SYS_copy_file_range SYS_sendfile SYS_fadvise64 SYS_readahead SYS_dup SYS_dup3 SYS_ftruncate SYS_fallocate
            SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_flock SYS_fchmod SYS_fchmodat SYS_utimensat SYS_mkdirat
            SYS_linkat SYS_renameat SYS_renameat2 SYS_unlinkat
        ],
        older: older![
            SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_readlink SYS_getdents SYS_dup2 SYS_chmod SYS_mkdir
            SYS_rmdir SYS_link SYS_rename SYS_unlink
        ],
    },
    Group {
        name: "connections",
        reason: "requests through the socket that already listens, messages to the service manager",
        roles: SERVING,
        general: calls![
            SYS_accept SYS_accept4 SYS_recvfrom SYS_recvmsg SYS_sendto SYS_sendmsg SYS_shutdown SYS_getsockname
            SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_socketpair
        ],
        older: &[],
    },
    Group {
        name: "events",
        reason: "waiting for connections, signals and helpers",
        roles: SERVING,
        general: calls![
            SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_pipe2 SYS_ppoll
            SYS_pselect6
        ],
        older: older![SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_pipe SYS_poll SYS_select],
    },
    Group {
        name: "engine",
        reason: "processors of threads, memory of states and its nodes, reads of streamed experts",
        roles: SERVING,
        general: calls![
            SYS_sched_setaffinity SYS_mbind SYS_move_pages SYS_memfd_create SYS_mlock SYS_mlock2 SYS_munlock SYS_io_uring_enter
        ],
        older: &[],
    },
    Group {
        name: "loading",
        reason: "models that are loaded on request: queues of drives, priorities, tile registers",
        roles: LOADING,
        general: calls![SYS_io_uring_setup SYS_io_uring_register SYS_sched_setattr SYS_sched_getattr],
        older: older![SYS_arch_prctl],
    },
    Group {
        name: "helpers",
        reason: "starting and ending helpers, which then limit themselves further",
        roles: LAUNCHING,
        general: calls![
            SYS_recvmsg SYS_recvfrom SYS_sendto SYS_sendmsg SYS_ppoll SYS_dup3 SYS_close_range SYS_kill SYS_pidfd_open SYS_wait4 SYS_waitid SYS_setpriority
            SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self SYS_capset
        ],
        older: older![SYS_poll SYS_dup2 SYS_fork SYS_vfork],
    },
];

/// Calls that are refused: they fail with `EPERM`.
pub const REFUSED: &[Group] = &[
    Group {
        name: "network",
        reason: "the server listens already, and connects to no other machine",
        roles: ALL,
        general: calls![SYS_socket SYS_connect SYS_bind SYS_listen],
        older: &[],
    },
    Group {
        name: "signals",
        reason: "the server sends signals to no process",
        roles: WORKING,
        general: calls![SYS_kill SYS_tkill SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_pidfd_send_signal],
        older: &[],
    },
    Group {
        name: "users",
        reason: "the server keeps its user and the owners of files",
        roles: ALL,
        general: calls![
            SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setgroups SYS_setfsuid
            SYS_setfsgid SYS_fchown SYS_fchownat SYS_mknodat SYS_setxattr SYS_lsetxattr SYS_fsetxattr
        ],
        older: older![SYS_chown SYS_lchown SYS_mknod],
    },
];

/// Calls that are fatal: they end the process.
pub const FATAL: &[Group] = &[
    Group {
        name: "programs",
        reason: "helpers are started by the launcher, which executes no file either",
        roles: ALL,
        general: calls![SYS_execve SYS_execveat],
        older: &[],
    },
    Group {
        name: "processes",
        reason: "only the launcher starts processes; some C libraries use these calls",
        roles: WORKING,
        general: &[],
        older: older![SYS_fork SYS_vfork],
    },
    Group {
        name: "other processes",
        reason: "memory and descriptors of other processes are never read",
        roles: ALL,
        general: calls![SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_pidfd_getfd SYS_kcmp],
        older: &[],
    },
    Group {
        name: "kernel",
        reason: "parts of the kernel with many past vulnerabilities, or for administrators",
        roles: ALL,
        general: calls![
            SYS_bpf SYS_userfaultfd SYS_perf_event_open SYS_fanotify_init SYS_open_by_handle_at SYS_add_key
            SYS_request_key SYS_keyctl SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_acct
            SYS_quotactl SYS_syslog SYS_reboot SYS_swapon SYS_swapoff SYS_clock_settime SYS_clock_adjtime
            SYS_settimeofday SYS_adjtimex SYS_sethostname SYS_setdomainname
        ],
        older: older![SYS_kexec_file_load SYS_iopl SYS_ioperm SYS_modify_ldt],
    },
    Group {
        name: "mounts and namespaces",
        reason: "they change the meaning of paths",
        roles: ALL,
        general: calls![
            SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount
            SYS_fspick SYS_open_tree SYS_mount_setattr SYS_setns SYS_unshare
        ],
        older: &[],
    },
];

/// Conditions on arguments of allowed calls.
pub const CONDITIONS: &[Condition] = &[
    Condition {
        call: call!(SYS_clone),
        argument: 0,
        test: Test::Has(libc::CLONE_THREAD as u64),
        reason: "threads, not processes",
        roles: WORKING,
    },
    Condition {
        call: call!(SYS_clone),
        argument: 0,
        test: Test::Lacks(NAMESPACES),
        reason: "processes in the same namespaces",
        roles: LAUNCHING,
    },
    Condition {
        call: call!(SYS_prctl),
        argument: 0,
        test: Test::OneOf(&[libc::PR_SET_NAME as u64, libc::PR_GET_NAME as u64, PR_SET_VMA]),
        reason: "names of threads and of memory",
        roles: WORKING,
    },
    Condition {
        call: call!(SYS_prlimit64),
        argument: 0,
        test: Test::OneOf(&[0]),
        reason: "limits of this process",
        roles: ALL,
    },
    Condition {
        call: call!(SYS_move_pages),
        argument: 0,
        test: Test::OneOf(&[0]),
        reason: "nodes of pages of this process",
        roles: SERVING,
    },
    Condition {
        call: call!(SYS_tgkill),
        argument: 0,
        test: Test::ThisProcess,
        reason: "threads of this process, which `abort` signals",
        roles: WORKING,
    },
    Condition {
        call: call!(SYS_ioctl),
        argument: 1,
        test: Test::OneOf(&MODES),
        reason: "modes of sockets and of the terminal; no characters are put into its input",
        roles: ALL,
    },
    Condition {
        call: call!(SYS_fcntl),
        argument: 1,
        test: Test::OneOf(&COMMANDS),
        reason: "copies, flags, locks and sizes; no signals to the owner of a descriptor",
        roles: ALL,
    },
    Condition {
        call: call!(SYS_sendto),
        argument: 3,
        test: Test::Lacks(FAST_OPEN),
        reason: "no connection by sending",
        roles: ALL,
    },
    Condition {
        call: call!(SYS_sendmsg),
        argument: 2,
        test: Test::Lacks(FAST_OPEN),
        reason: "no connection by sending",
        roles: ALL,
    },
    Condition {
        call: call!(SYS_socketpair),
        argument: 1,
        test: Test::OneOf(&STREAMS),
        reason: "streams, which send to no other address",
        roles: SERVING,
    },
];

/// Allowed commands of `fcntl`: F_DUPFD, flags (1 to 4), locks (5 to 7, 36 to 38), F_DUPFD_CLOEXEC,
/// sizes of pipes, and seals of memory. F_SETOWN and F_SETSIG are not allowed.
const COMMANDS: [u64; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 0x406, 0x407, 0x408, 0x409, 0x40a];

/// Flag with which sending a message also opens a connection (`MSG_FASTOPEN`).
const FAST_OPEN: u64 = 0x2000_0000;

/// Allowed kinds of `socketpair`: SOCK_STREAM, with or without SOCK_CLOEXEC and SOCK_NONBLOCK.
const STREAMS: [u64; 4] = [0x1, 0x8_0001, 0x801, 0x8_0801];

/// Option of `prctl` that gives a name to memory.
const PR_SET_VMA: u64 = 0x5356_4d41;

/// Allowed requests of `ioctl`: TCGETS, TCSETS, TCSETSW, TCSETSF, TIOCGWINSZ, FIONREAD, FIONBIO,
/// FIOCLEX.
const MODES: [u64; 8] = [0x5401, 0x5402, 0x5403, 0x5404, 0x5413, 0x541b, 0x5421, 0x5451];

/// Flags with which `clone` makes new namespaces.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;
