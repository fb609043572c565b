//! Tests of each rule of the sandbox in a separate process. For each probe, this program starts
//! itself again, so it has no test harness.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;

use ixc_sandbox::calls::{ALLOWED, CONDITIONS, FATAL, Group, REFUSED, Role, Test};
use ixc_sandbox::files::{FileAccess, confine, confine_all, confine_writes};
use ixc_sandbox::support::Support;
use ixc_sandbox::{SandboxError, filter, process};

/// First argument of a process that runs a probe.
const PROBE: &str = "probe";
/// Exit status of a probe whose process could not be limited.
const NO_LIMITS: u8 = 250;

/// The part of the system that enforces a rule.
#[derive(Clone, Copy)]
enum Part {
    /// Filters of system calls.
    Seccomp,
    /// Landlock rules of this interface version.
    Landlock(u32),
    /// Resource limits and capabilities.
    Process,
}

impl Part {
    /// Returns whether this kernel supports the part.
    fn exists(self) -> bool {
        let support = Support::of_kernel();
        match self {
            Part::Seccomp => support.seccomp,
            Part::Landlock(version) => support.landlock >= version,
            Part::Process => true,
        }
    }

    /// Returns whether the part is enabled in this kernel, even if the running system does not
    /// support it.
    fn is_enabled(self) -> bool {
        let modules = fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
        match self {
            Part::Seccomp => Path::new("/proc/sys/kernel/seccomp").exists(),
            Part::Landlock(version) => version == 1 && modules.contains("landlock"),
            Part::Process => true,
        }
    }
}

/// Expected outcome of a probe.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Works,
    Fails(i32),
    Killed,
}

/// Folder with a readable and a writable file, and the address of a server.
struct Scene {
    folder: PathBuf,
    port: u16,
}

impl Scene {
    fn model(&self) -> PathBuf {
        self.folder.join("model")
    }

    fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    fn access(&self) -> FileAccess {
        FileAccess { read: vec![self.model()], write: vec![self.cache()] }
    }
}

type Limits = fn(&Scene) -> Result<(), SandboxError>;
type Attempt = fn(&Scene) -> io::Result<()>;

/// An action that the sandbox forbids or allows.
struct Probe {
    name: &'static str,
    part: Part,
    limits: Limits,
    attempt: Attempt,
    outcome: Outcome,
}

const fn probe(name: &'static str, part: Part, limits: Limits, attempt: Attempt, outcome: Outcome) -> Probe {
    Probe { name, part, limits, attempt, outcome }
}

const SERVER: Limits = |_| filter::install(Role::Server);
const LOADER: Limits = |_| filter::install(Role::Loader);
const LAUNCHER: Limits = |_| filter::install(Role::Launcher);
const HELPER: Limits = |_| filter::install(Role::Helper);
const FILES: Limits = |scene| confine(&scene.access());
const WRITES: Limits = |scene| confine_writes(&[scene.cache()], false);
const CLOSED: Limits = |_| confine_all();
const PROCESS: Limits = |_| process::limit();
const POOR: Limits = |_| process::drop_all_capabilities();
const WHOLE: Limits = |scene| {
    process::limit()?;
    confine_writes(&[scene.cache()], false)?;
    confine(&scene.access())?;
    filter::install(Role::Server)
};

const PROBES: &[Probe] = &[
    probe("server maps executable memory", Part::Seccomp, SERVER, map_executable, Outcome::Fails(libc::EACCES)),
    probe("server makes memory executable", Part::Seccomp, SERVER, make_executable, Outcome::Fails(libc::EACCES)),
    probe(
        "earlier thread makes memory executable",
        Part::Seccomp,
        |_| Ok(()),
        earlier_thread,
        Outcome::Fails(libc::EACCES),
    ),
    probe("loader makes memory executable", Part::Seccomp, LOADER, make_executable, Outcome::Works),
    probe("helper makes memory executable", Part::Seccomp, HELPER, make_executable, Outcome::Fails(libc::EACCES)),
    probe("server maps memory", Part::Seccomp, SERVER, map_memory, Outcome::Works),
    probe("server executes a program", Part::Seccomp, SERVER, execute, Outcome::Killed),
    probe("loader executes a program", Part::Seccomp, LOADER, execute, Outcome::Killed),
    probe("launcher executes a program", Part::Seccomp, LAUNCHER, execute, Outcome::Killed),
    probe("helper executes a program", Part::Seccomp, HELPER, execute, Outcome::Killed),
    probe("landlock: a program is executed", Part::Landlock(1), WRITES, execute, Outcome::Fails(libc::EACCES)),
    probe("server starts a process", Part::Seccomp, SERVER, fork, Outcome::Fails(libc::ENOSYS)),
    probe("launcher starts a process", Part::Seccomp, LAUNCHER, fork, Outcome::Works),
    probe("launcher makes a namespace", Part::Seccomp, LAUNCHER, clone_namespace, Outcome::Fails(libc::ENOSYS)),
    probe("server starts a thread", Part::Seccomp, SERVER, start_thread, Outcome::Works),
    probe("helper starts a thread", Part::Seccomp, HELPER, start_thread, Outcome::Works),
    probe("server traces a process", Part::Seccomp, SERVER, trace, Outcome::Killed),
    probe("server reads memory of a process", Part::Seccomp, SERVER, read_other_memory, Outcome::Killed),
    probe("server makes a namespace", Part::Seccomp, SERVER, unshare, Outcome::Killed),
    probe("server loads a program into the kernel", Part::Seccomp, SERVER, load_bpf, Outcome::Killed),
    probe("server opens a socket", Part::Seccomp, SERVER, open_socket, Outcome::Fails(libc::EPERM)),
    probe("server connects", Part::Seccomp, |_| Ok(()), connect_after_filter, Outcome::Fails(libc::EPERM)),
    probe("server connects by sending", Part::Seccomp, |_| Ok(()), connect_by_sending, Outcome::Fails(libc::ENOSYS)),
    probe("server owns signals of a descriptor", Part::Seccomp, SERVER, own_signals, Outcome::Fails(libc::ENOSYS)),
    probe("server reads the flags of a descriptor", Part::Seccomp, SERVER, read_flags, Outcome::Works),
    probe("server makes a pair of streams", Part::Seccomp, SERVER, pair_of_streams, Outcome::Works),
    probe("server makes a pair of datagrams", Part::Seccomp, SERVER, pair_of_datagrams, Outcome::Fails(libc::ENOSYS)),
    probe("server signals a process", Part::Seccomp, SERVER, signal_parent, Outcome::Fails(libc::EPERM)),
    probe(
        "server signals a thread of a process",
        Part::Seccomp,
        SERVER,
        signal_parent_thread,
        Outcome::Fails(libc::ENOSYS),
    ),
    probe("server changes its user", Part::Seccomp, SERVER, change_user, Outcome::Fails(libc::EPERM)),
    probe("server types into its terminal", Part::Seccomp, SERVER, type_text, Outcome::Fails(libc::ENOSYS)),
    probe("server makes a ring", Part::Seccomp, SERVER, make_ring, Outcome::Fails(libc::ENOSYS)),
    probe("server makes an unknown call", Part::Seccomp, SERVER, unknown_call, Outcome::Fails(libc::ENOSYS)),
    probe("server installs a filter", Part::Seccomp, SERVER, install_filter, Outcome::Fails(libc::ENOSYS)),
    probe("helper opens a file", Part::Seccomp, HELPER, open_password_file, Outcome::Fails(libc::ENOSYS)),
    probe(
        "landlock: a foreign file is read",
        Part::Landlock(1),
        FILES,
        open_password_file,
        Outcome::Fails(libc::EACCES),
    ),
    probe("landlock: a foreign folder is listed", Part::Landlock(1), FILES, list_root, Outcome::Fails(libc::EACCES)),
    probe("landlock: the model is read", Part::Landlock(1), FILES, read_model, Outcome::Works),
    probe("landlock: the model is written", Part::Landlock(1), FILES, write_model, Outcome::Fails(libc::EACCES)),
    probe(
        "landlock: the model is written while it is loaded",
        Part::Landlock(1),
        WRITES,
        write_model,
        Outcome::Fails(libc::EACCES),
    ),
    probe("landlock: the model is truncated", Part::Landlock(3), FILES, truncate_model, Outcome::Fails(libc::EACCES)),
    probe("landlock: the model is removed", Part::Landlock(1), WRITES, remove_model, Outcome::Fails(libc::EACCES)),
    probe("landlock: the cache is written", Part::Landlock(1), FILES, write_cache, Outcome::Works),
    probe(
        "landlock: the cache is written while the model is loaded",
        Part::Landlock(1),
        WRITES,
        write_cache,
        Outcome::Works,
    ),
    probe("landlock: statistics are read", Part::Landlock(1), FILES, read_statistics, Outcome::Works),
    probe("landlock: a helper opens a file", Part::Landlock(1), CLOSED, read_model, Outcome::Fails(libc::EACCES)),
    probe("landlock: a connection is made", Part::Landlock(4), WRITES, connect, Outcome::Fails(libc::EACCES)),
    probe("landlock: a port is bound", Part::Landlock(4), WRITES, bind, Outcome::Fails(libc::EACCES)),
    probe("landlock: a process is signalled", Part::Landlock(6), WRITES, signal_parent, Outcome::Fails(libc::EPERM)),
    probe("the limit of descriptors is raised", Part::Process, PROCESS, raise_descriptors, Outcome::Fails(libc::EPERM)),
    probe("core files are enabled", Part::Process, PROCESS, enable_core, Outcome::Fails(libc::EPERM)),
    probe("capabilities remain", Part::Process, POOR, keep_capabilities, Outcome::Fails(libc::EPERM)),
    probe("everything: the cache is written", Part::Seccomp, WHOLE, write_cache, Outcome::Works),
    probe(
        "everything: a foreign file is read",
        Part::Landlock(1),
        WHOLE,
        open_password_file,
        Outcome::Fails(libc::EACCES),
    ),
    probe("everything: a process aborts", Part::Seccomp, WHOLE, catch_panic, Outcome::Works),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(PROBE) => return attempt(&arguments[1..]),
        Some("--list") => {
            println!("rules: test");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    the_documentation_has_the_table();
    roles_allow_no_fatal_call();
    let folder = tempfile::tempdir().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let scene = Scene { folder: folder.path().to_owned(), port: server.local_addr().unwrap().port() };
    fs::write(scene.model(), "weights").unwrap();
    fs::create_dir(scene.cache()).unwrap();
    let failed: Vec<String> = PROBES.iter().filter_map(|probe| check(probe, &scene)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    println!("rules: {} probes", PROBES.len());
    ExitCode::SUCCESS
}

/// Runs a probe in a separate process. Returns a description of the outcome if it is wrong.
fn check(probe: &Probe, scene: &Scene) -> Option<String> {
    if !probe.part.exists() {
        assert!(
            !(probe.part.is_enabled() && std::env::var("CI").as_deref() == Ok("true")),
            "{}: the kernel should enforce it",
            probe.name
        );
        println!("NOT RUN: {}: this kernel lacks it", probe.name);
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([PROBE, probe.name]).arg(&scene.folder).arg(scene.port.to_string()).stdin(Stdio::null());
    let status = command.status().unwrap();
    let is_right = match probe.outcome {
        Outcome::Works => status.code() == Some(0),
        Outcome::Fails(number) => status.code() == Some(number),
        Outcome::Killed => status.signal() == Some(libc::SIGSYS),
    };
    (!is_right).then(|| format!("{}: expected {:?}, found {status}", probe.name, probe.outcome))
}

/// Limits this process and runs a probe. Exits with the system's error number.
fn attempt(arguments: &[String]) -> ExitCode {
    let [name, folder, port] = arguments else { return NO_LIMITS.into() };
    let probe = PROBES.iter().find(|probe| probe.name == name).expect("a known probe");
    let scene = Scene { folder: folder.into(), port: port.parse().expect("a number") };
    if let Err(error) = (probe.limits)(&scene) {
        eprintln!("{name}: {error}");
        return NO_LIMITS.into();
    }
    match (probe.attempt)(&scene) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.raw_os_error().and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX).into(),
    }
}

/// Converts the return value of a system call to a result.
fn result(returned: i64) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a system call with three numbers as arguments.
fn call(number: libc::c_long, arguments: [i64; 3]) -> io::Result<()> {
    let [a, b, c] = arguments;
    // SAFETY: the probes pass only numbers and null pointers, and the kernel refuses null pointers.
    result(unsafe { libc::syscall(number, a, b, c, 0, 0, 0) })
}

fn map(protection: libc::c_int) -> io::Result<*mut libc::c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the call maps new memory, which no other code uses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start) }
}

fn map_memory(_: &Scene) -> io::Result<()> {
    map(libc::PROT_READ | libc::PROT_WRITE).map(drop)
}

fn map_executable(_: &Scene) -> io::Result<()> {
    map(libc::PROT_READ | libc::PROT_EXEC).map(drop)
}

fn make_executable(_: &Scene) -> io::Result<()> {
    let start = map(libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the call changes memory that `map` returned, which no other code uses.
    result(unsafe { libc::mprotect(start, 4096, libc::PROT_READ | libc::PROT_EXEC) }.into())
}

fn earlier_thread(scene: &Scene) -> io::Result<()> {
    let (send, limited) = channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            limited.recv().expect("the filter is installed");
            make_executable(scene)
        });
        filter::install(Role::Server).expect("seccomp");
        send.send(()).expect("the thread waits");
        thread.join().expect("no panic")
    })
}

fn execute(_: &Scene) -> io::Result<()> {
    Err(std::os::unix::process::CommandExt::exec(&mut Command::new("/bin/true")))
}

fn fork(_: &Scene) -> io::Result<()> {
    // SAFETY: this process has only one thread, and the child ends at once.
    match unsafe { libc::fork() } {
        // SAFETY: the call ends the child.
        0 => unsafe { libc::_exit(0) },
        child => result(child.into()),
    }
}

fn clone_namespace(_: &Scene) -> io::Result<()> {
    call(libc::SYS_clone, [(libc::CLONE_NEWUSER | libc::SIGCHLD).into(), 0, 0])
}

fn start_thread(_: &Scene) -> io::Result<()> {
    std::thread::Builder::new().name("probe".into()).spawn(|| {})?.join().expect("no panic");
    Ok(())
}

fn trace(_: &Scene) -> io::Result<()> {
    call(libc::SYS_ptrace, [libc::PTRACE_TRACEME.into(), 0, 0])
}

fn read_other_memory(_: &Scene) -> io::Result<()> {
    call(libc::SYS_process_vm_readv, [parent().into(), 0, 0])
}

fn unshare(_: &Scene) -> io::Result<()> {
    call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0])
}

fn load_bpf(_: &Scene) -> io::Result<()> {
    call(libc::SYS_bpf, [0, 0, 0])
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the call takes only numbers.
    let descriptor = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    result(descriptor.into())?;
    // SAFETY: the system has just opened the descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn open_socket(_: &Scene) -> io::Result<()> {
    socket().map(drop)
}

fn connect(scene: &Scene) -> io::Result<()> {
    TcpStream::connect(("127.0.0.1", scene.port)).map(drop)
}

fn connect_after_filter(_: &Scene) -> io::Result<()> {
    let socket = socket()?;
    filter::install(Role::Server).expect("seccomp");
    call(libc::SYS_connect, [socket.as_raw_fd().into(), 0, 0])
}

/// Connects to the server's address by sending a message, without calling `connect`.
fn connect_by_sending(scene: &Scene) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    filter::install(Role::Server).map_err(io::Error::other)?;
    let descriptor = i64::from(listener.as_raw_fd());
    call(libc::SYS_shutdown, [descriptor, libc::SHUT_RD.into(), 0])?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: scene.port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: the message and the address are valid during the call.
    let sent = unsafe {
        libc::sendto(
            listener.as_raw_fd(),
            [0u8].as_ptr().cast(),
            1,
            libc::MSG_FASTOPEN,
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn own_signals(_: &Scene) -> io::Result<()> {
    call(libc::SYS_fcntl, [0, libc::F_SETOWN.into(), parent().into()])
}

fn read_flags(_: &Scene) -> io::Result<()> {
    call(libc::SYS_fcntl, [2, libc::F_GETFD.into(), 0])
}

fn pair_of_streams(_: &Scene) -> io::Result<()> {
    UnixStream::pair().map(drop)
}

fn pair_of_datagrams(_: &Scene) -> io::Result<()> {
    UnixDatagram::pair().map(drop)
}

fn bind(_: &Scene) -> io::Result<()> {
    TcpListener::bind("127.0.0.1:0").map(drop)
}

fn parent() -> libc::pid_t {
    // SAFETY: the call takes no arguments.
    unsafe { libc::getppid() }
}

fn signal_parent(_: &Scene) -> io::Result<()> {
    // SAFETY: signal 0 only checks whether this process may send signals.
    result(unsafe { libc::kill(parent(), 0) }.into())
}

fn signal_parent_thread(_: &Scene) -> io::Result<()> {
    call(libc::SYS_tgkill, [parent().into(), parent().into(), 0])
}

fn change_user(_: &Scene) -> io::Result<()> {
    // SAFETY: the call takes only a number.
    call(libc::SYS_setuid, [unsafe { libc::getuid() }.into(), 0, 0])
}

fn type_text(_: &Scene) -> io::Result<()> {
    call(libc::SYS_ioctl, [0, 0x5412, 0])
}

fn make_ring(_: &Scene) -> io::Result<()> {
    call(libc::SYS_io_uring_setup, [1, 0, 0])
}

fn unknown_call(_: &Scene) -> io::Result<()> {
    call(libc::SYS_vmsplice, [0, 0, 0])
}

fn install_filter(_: &Scene) -> io::Result<()> {
    call(libc::SYS_seccomp, [libc::SECCOMP_SET_MODE_FILTER.into(), 0, 0])
}

fn open_password_file(_: &Scene) -> io::Result<()> {
    File::open("/etc/passwd").map(drop)
}

fn list_root(_: &Scene) -> io::Result<()> {
    fs::read_dir("/").map(drop)
}

fn read_model(scene: &Scene) -> io::Result<()> {
    fs::read(scene.model()).map(drop)
}

fn write_model(scene: &Scene) -> io::Result<()> {
    OpenOptions::new().append(true).open(scene.model()).map(drop)
}

fn truncate_model(scene: &Scene) -> io::Result<()> {
    let path = std::ffi::CString::new(scene.model().into_os_string().into_encoded_bytes()).expect("no zero");
    // SAFETY: the path ends with a zero byte and outlives the call.
    result(unsafe { libc::truncate(path.as_ptr(), 0) }.into())
}

fn remove_model(scene: &Scene) -> io::Result<()> {
    fs::remove_file(scene.model())
}

fn write_cache(scene: &Scene) -> io::Result<()> {
    let (old, new) = (scene.cache().join("part"), scene.cache().join("whole"));
    fs::write(&old, "prompt")?;
    fs::rename(&old, &new)?;
    fs::create_dir(scene.cache().join("folder"))?;
    fs::remove_dir(scene.cache().join("folder"))?;
    fs::remove_file(new)
}

fn read_statistics(_: &Scene) -> io::Result<()> {
    let thread = fs::read_link("/proc/thread-self")?;
    for file in ["/proc/meminfo", "/proc/self/status", "/proc/self/maps", "/proc/stat", "/proc/self/cgroup"] {
        fs::read(file)?;
    }
    fs::read(Path::new("/proc").join(thread).join("status")).map(drop)
}

fn set_limit(resource: i64, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the call reads `limit`, which outlives it.
    result(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, 0) })
}

fn raise_descriptors(_: &Scene) -> io::Result<()> {
    set_limit(libc::RLIMIT_NOFILE.into(), 1 << 20, 1 << 20)
}

fn enable_core(_: &Scene) -> io::Result<()> {
    set_limit(libc::RLIMIT_CORE.into(), 1, 1)
}

/// Fails if this process has no capabilities left.
fn keep_capabilities(_: &Scene) -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let none = |set: &str| status.lines().any(|line| line == format!("{set}:\t{:016x}", 0));
    let has_none = none("CapEff") && none("CapPrm") && status.lines().any(|line| line == "NoNewPrivs:\t1");
    if has_none { Err(io::Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }
}

fn catch_panic(_: &Scene) -> io::Result<()> {
    let caught = std::panic::catch_unwind(|| panic!("a panic that is caught"));
    if caught.is_err() { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
}

/// Checks that no call belongs to two kinds of groups for the same role.
fn roles_allow_no_fatal_call() {
    for role in Role::ALL {
        let of = |groups: &'static [Group]| {
            let groups = groups.iter().filter(move |group| group.roles.contains(&role));
            groups.flat_map(Group::calls).map(|call| call.name()).collect::<Vec<_>>()
        };
        let all = [of(ALLOWED), of(REFUSED), of(FATAL)].concat();
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{}: {name} is in two groups", role.name());
        }
    }
}

/// Title of the generated part of the documentation.
const TITLE: &str = "## Table of system calls\n";

fn the_documentation_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sandbox.md");
    let text = fs::read_to_string(&path).unwrap();
    let before = text.split(TITLE).next().unwrap();
    let expected = format!("{before}{TITLE}\n{}", tables());
    let is_asked_for = std::env::var_os("IXC_BLESS").is_some_and(|value| !value.is_empty());
    if is_asked_for {
        fs::write(&path, &expected).unwrap();
    }
    assert!(text == expected || is_asked_for, "docs/sandbox.md: IXC_BLESS=1 renews the table");
}

/// Returns the tables of the documentation, made from the lists of calls.
fn tables() -> String {
    let mut text = String::from("A test compares these tables with `sandbox/src/calls.rs`.\n");
    let roles = |roles: &[Role]| {
        let names = roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ");
        if roles.len() == Role::ALL.len() { "all".to_owned() } else { names }
    };
    for (title, groups) in [("Allowed", ALLOWED), ("Refused (`EPERM`)", REFUSED), ("Fatal", FATAL)] {
        let _ = writeln!(text, "\n### {title}\n\n| group | roles | reason | calls |\n| --- | --- | --- | --- |");
        for group in groups {
            let calls: Vec<String> = group.calls().map(|call| format!("`{}`", call.name())).collect();
            let (name, roles, reason) = (group.name, roles(group.roles), group.reason);
            let _ = writeln!(text, "| {name} | {roles} | {reason} | {} |", calls.join(" "));
        }
    }
    let _ = writeln!(
        text,
        "\n### Conditions\n\n| call | argument | roles | condition | reason |\n| --- | --- | --- | --- | --- |"
    );
    for condition in CONDITIONS {
        let test = match condition.test {
            Test::Has(bits) => format!("has {bits:#x}"),
            Test::Lacks(bits) => format!("lacks {bits:#x}"),
            Test::OneOf(values) => values.iter().map(|value| format!("{value:#x}")).collect::<Vec<_>>().join(", "),
            Test::ThisProcess => "this process".to_owned(),
        };
        let (name, argument, roles) = (condition.call.name(), condition.argument, roles(condition.roles));
        let _ = writeln!(text, "| `{name}` | {argument} | {roles} | {test} | {} |", condition.reason);
    }
    text
}
