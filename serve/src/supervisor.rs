//! systemd's protocols for services: a listening socket from the service manager, and messages to
//! it about the state of the service (`sd_listen_fds(3)`, `sd_notify(3)`).
//!
//! ```text
//! LISTEN_PID=4711 LISTEN_FDS=1       descriptor 3 is a socket for process 4711
//! NOTIFY_SOCKET=/run/systemd/notify  datagrams "READY=1", "STOPPING=1" go there
//! ```
//!
//! Invariant: variables whose `LISTEN_PID` is another process have no effect, since child processes
//! inherit them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{self, UnixDatagram};

use ixc_failure::Class;

/// Number of the first file descriptor that a service manager passes, `SD_LISTEN_FDS_START`.
const FIRST: i32 = 3;

/// Error of the protocols with a service manager.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// A variable has a malformed value.
    #[error("the environment variable {name} is {value:?}; expected {expected}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// The malformed value.
        value: String,
        /// Expected form of the value.
        expected: &'static str,
    },
    /// The service manager passes several sockets.
    #[error(
        "the service manager passes {count} sockets (LISTEN_FDS); expected one: give its socket unit one ListenStream="
    )]
    SeveralSockets {
        /// Number of sockets.
        count: u32,
    },
    /// The descriptor is not a listening TCP socket.
    #[error(
        "descriptor {FIRST} of the service manager is not a listening TCP socket; give its socket unit ListenStream=ADDRESS:PORT and Accept=no"
    )]
    NotListening {
        /// The system's error.
        source: Option<io::Error>,
    },
    /// The service manager cannot be reached.
    #[error("the service manager cannot be notified at {address:?} (NOTIFY_SOCKET): {source}")]
    Notify {
        /// Address of the service manager's socket.
        address: OsString,
        /// The system's error.
        source: io::Error,
    },
}

impl SupervisorError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SupervisorError::Variable { .. }
            | SupervisorError::SeveralSockets { .. }
            | SupervisorError::NotListening { .. } => Class::Usage,
            SupervisorError::Notify { .. } => Class::Io,
        }
    }
}

/// Returns the listening TCP socket that the service manager passes, or `None` without one. Call it
/// once, before this process opens files.
///
/// # Errors
/// When the variables are malformed, or there is not exactly one listening TCP socket.
pub fn inherited_listener() -> Result<Option<TcpListener>, SupervisorError> {
    let variable = |name| std::env::var_os(name);
    let is_passed =
        is_passed(variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref(), std::process::id())?;
    if !is_passed {
        return Ok(None);
    }
    let not_listening = |error| SupervisorError::NotListening { source: Some(error) };
    // SAFETY: the service manager opened the descriptor for this process, as LISTEN_PID says. No
    // other code of this process knows or closes it. If the descriptor is not open,
    // `try_clone_to_owned` returns an error.
    let passed = unsafe { BorrowedFd::borrow_raw(FIRST) };
    // Child processes do not inherit the copy. The original is closed only if it exists.
    let socket = passed.try_clone_to_owned().map_err(not_listening)?;
    // SAFETY: `try_clone_to_owned` has shown that the descriptor is open. The service manager
    // opened it for this process, and no other code closes it.
    drop(unsafe { OwnedFd::from_raw_fd(FIRST) });
    listener_of(socket).map(Some)
}

/// Returns whether the variables pass one socket to the process `own`.
fn is_passed(pid: Option<&OsStr>, count: Option<&OsStr>, own: u32) -> Result<bool, SupervisorError> {
    let number = |name, text: &OsStr| {
        let parsed = text.to_str().and_then(|text| text.parse::<u32>().ok());
        parsed.ok_or_else(|| SupervisorError::Variable {
            name,
            value: text.to_string_lossy().into_owned(),
            expected: "a number",
        })
    };
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(false) };
    if number("LISTEN_PID", pid)? != own {
        return Ok(false);
    }
    match number("LISTEN_FDS", count)? {
        0 => Ok(false),
        1 => Ok(true),
        count => Err(SupervisorError::SeveralSockets { count }),
    }
}

/// Converts a descriptor, if it is a listening TCP socket.
fn listener_of(socket: OwnedFd) -> Result<TcpListener, SupervisorError> {
    let not_listening = |source| SupervisorError::NotListening { source };
    let is = |option| option_of(&socket, option).map_err(|error| not_listening(Some(error)));
    if is(libc::SO_ACCEPTCONN)? == 0 || is(libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return Err(not_listening(None));
    }
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).map_err(|error| not_listening(Some(error)))?;
    Ok(listener)
}

/// Returns a number among a socket's options.
fn option_of(socket: &OwnedFd, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes, and both live through the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Connection to the service manager, for messages about this service. Without a service manager,
/// messages have no effect.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<(OsString, UnixDatagram, net::SocketAddr)>,
}

impl Notifier {
    /// Connects to the service manager that the environment names.
    ///
    /// # Errors
    /// When the address is malformed, or the system refuses a socket.
    pub fn from_environment() -> Result<Notifier, SupervisorError> {
        std::env::var_os("NOTIFY_SOCKET").map_or_else(|| Ok(Notifier::default()), Notifier::connect)
    }

    /// Connects to a service manager. `@` begins the name of an abstract socket.
    fn connect(address: OsString) -> Result<Notifier, SupervisorError> {
        let bytes = address.as_bytes();
        let place = match bytes.split_first() {
            Some((b'@', name)) => net::SocketAddr::from_abstract_name(name),
            Some((b'/', _)) => net::SocketAddr::from_pathname(&address),
            _ => {
                return Err(SupervisorError::Variable {
                    name: "NOTIFY_SOCKET",
                    value: address.to_string_lossy().into_owned(),
                    expected: "an absolute path, or a name after @",
                });
            }
        };
        match place.and_then(|place| Ok((UnixDatagram::unbound()?, place))) {
            Ok((socket, place)) => Ok(Notifier { manager: Some((address, socket, place)) }),
            Err(source) => Err(SupervisorError::Notify { address, source }),
        }
    }

    /// Reports that the service answers requests at `address`.
    ///
    /// # Errors
    /// When the service manager cannot be reached.
    pub fn ready(&self, address: SocketAddr) -> Result<(), SupervisorError> {
        self.send(&format!("READY=1\nSTATUS=Serving on {address}\n"))
    }

    /// Reports that the service ends after the running answers.
    ///
    /// # Errors
    /// When the service manager cannot be reached.
    pub fn stopping(&self) -> Result<(), SupervisorError> {
        self.send("STOPPING=1\nSTATUS=Finishing answers\n")
    }

    fn send(&self, message: &str) -> Result<(), SupervisorError> {
        let Some((address, socket, place)) = &self.manager else { return Ok(()) };
        let sent = socket.send_to_addr(message.as_bytes(), place);
        sent.map(drop).map_err(|source| SupervisorError::Notify { address: address.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn has_passed_sockets(pid: &str, count: &str) -> Result<bool, String> {
        is_passed(Some(pid.as_ref()), Some(count.as_ref()), 7).map_err(|error| error.to_string())
    }

    #[test]
    fn sockets_are_taken_by_their_process_only() {
        assert_eq!(has_passed_sockets("7", "1"), Ok(true));
        assert_eq!(has_passed_sockets("7", "0"), Ok(false));
        assert_eq!(has_passed_sockets("8", "1"), Ok(false));
        // If `LISTEN_PID` is another process, `LISTEN_FDS` is not parsed.
        assert_eq!(has_passed_sockets("8", "two"), Ok(false));
        assert!(!is_passed(None, Some("1".as_ref()), 7).unwrap());
        assert!(!is_passed(Some("7".as_ref()), None, 7).unwrap());
    }

    #[test]
    fn malformed_variables_are_named() {
        let many =
            "the service manager passes 2 sockets (LISTEN_FDS); expected one: give its socket unit one ListenStream=";
        assert_eq!(has_passed_sockets("7", "2"), Err(many.to_owned()));
        let text = "the environment variable LISTEN_FDS is \"two\"; expected a number";
        assert_eq!(has_passed_sockets("7", "two"), Err(text.to_owned()));
        let negative = "the environment variable LISTEN_PID is \"-7\"; expected a number";
        assert_eq!(has_passed_sockets("-7", "1"), Err(negative.to_owned()));
        let relative = Notifier::connect("run/notify".into()).unwrap_err();
        assert_eq!(
            relative.to_string(),
            "the environment variable NOTIFY_SOCKET is \"run/notify\"; expected an absolute path, or a name after @"
        );
        assert_eq!(relative.class(), Class::Usage);
    }

    #[test]
    fn only_listening_tcp_sockets_are_accepted() {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = own.local_addr().unwrap();
        let passed = listener_of(own.into()).unwrap();
        assert_eq!(passed.local_addr().unwrap(), address);
        // The socket is non-blocking.
        assert_eq!(passed.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);

        let folder = tempfile::tempdir().unwrap();
        let local = UnixListener::bind(folder.path().join("socket")).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let connected = std::net::TcpStream::connect(address).unwrap();
        let file = tempfile::tempfile().unwrap();
        for other in [OwnedFd::from(local), datagrams.into(), connected.into(), file.into()] {
            let error = listener_of(other).unwrap_err();
            assert!(matches!(error, SupervisorError::NotListening { .. }), "{error}");
        }
    }

    #[test]
    fn messages_reach_the_service_manager() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let name = format!("ixc-test-{}", std::process::id());
        let hidden = UnixDatagram::bind_addr(&net::SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (address, manager) in [(path.clone().into_os_string(), manager), (format!("@{name}").into(), hidden)] {
            let notifier = Notifier::connect(address).unwrap();
            notifier.ready("127.0.0.1:8080".parse().unwrap()).unwrap();
            notifier.stopping().unwrap();
            let mut bytes = [0; 100];
            for message in ["READY=1\nSTATUS=Serving on 127.0.0.1:8080\n", "STOPPING=1\nSTATUS=Finishing answers\n"] {
                let length = manager.recv(&mut bytes).unwrap();
                assert_eq!(std::str::from_utf8(&bytes[..length]).unwrap(), message);
            }
        }
    }

    #[test]
    fn absent_service_managers_are_errors_only_if_named() {
        Notifier::default().ready("127.0.0.1:8080".parse().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let notifier = Notifier::connect(folder.path().join("absent").into_os_string()).unwrap();
        let error = notifier.stopping().unwrap_err();
        assert!(matches!(error, SupervisorError::Notify { .. }), "{error}");
        assert_eq!(error.class(), Class::Io);
    }
}
