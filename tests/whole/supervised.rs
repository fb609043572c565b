//! `ixc serve` under a service manager: it uses an inherited socket, and reports when it is ready.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};

use crate::support::{ixc, stderr};

/// Returns a shell command that starts a server with the socket as descriptor 3. The shell sets
/// `LISTEN_PID`, because only the process itself knows its id before it starts the server.
fn supervised(socket: impl Into<OwnedFd>, variables: &str, arguments: &[&str]) -> Command {
    let program = ixc(["serve", "demo", "-q", "-t", "2"]);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("export {variables}; exec \"$0\" \"$@\" 3<&0"));
    shell.arg(program.get_program()).args(program.get_args()).args(arguments);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::from(socket.into()));
    shell
}

/// Sends a signal to a child that has not been waited for.
fn terminate(child: &Child) {
    // SAFETY: the child was not waited for, so its id is still its own.
    assert_eq!(unsafe { libc::kill(libc::pid_t::try_from(child.id()).unwrap(), libc::SIGTERM) }, 0);
}

#[test]
fn requests_before_readiness_are_answered() {
    // The folder's path must be short, because the path of a socket has at most 107 bytes.
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notify");
    let manager = UnixDatagram::bind(&place).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The connection waits in the listening socket before the server is started.
    let mut early = TcpStream::connect(address).unwrap();
    early.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut child =
        supervised(listener, "LISTEN_PID=$$ LISTEN_FDS=1", &[]).env("NOTIFY_SOCKET", &place).spawn().unwrap();
    let mut bytes = [0; 200];
    let length = manager.recv(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes[..length]), format!("READY=1\nSTATUS=Serving on {address}\n"));
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    terminate(&child);
    let length = manager.recv(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes[..length]), "STOPPING=1\nSTATUS=Finishing answers\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn unusable_sockets_are_refused() {
    let open = || TcpListener::bind("0.0.0.0:0").unwrap();
    let refused = |socket: OwnedFd, variables: &str| {
        let output = supervised(socket, variables, &[]).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (status, text) = refused(open().into(), "LISTEN_PID=$$ LISTEN_FDS=1");
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("0.0.0.0 is reachable from the network: give --api-key-file"), "{text}");
    let (status, text) = refused(open().into(), "LISTEN_PID=$$ LISTEN_FDS=2");
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("the service manager passes 2 sockets (LISTEN_FDS)"), "{text}");
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (status, text) = refused(datagrams.into(), "LISTEN_PID=$$ LISTEN_FDS=1");
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("descriptor 3 of the service manager is not a listening TCP socket"), "{text}");
}
