//! A program for tests of the transport. It runs as several ranks: `mpirun -n 4 exchange TASK`.
//!
//! | task | action |
//! | --- | --- |
//! | `check` | exchanges messages of many sizes, and prints the time of an exchange |
//! | `work` | exchanges messages until a rank fails |
//! | `idle` | waits without a message, as a server does |
//! | `fail` | rank 1 ends the group |
//! | `linger` | rank 1 ends the group, and takes 3 s to end itself |
//! | `differ` | rank 1 has another version |

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ixc_transport::handshake::introduce;
use ixc_transport::{Incoming, Outgoing, Receipt, Transport, TransportError};

/// Environment variable with a folder, into which each rank writes its process id.
const FOLDER: &str = "IXC_TEST_RANKS";
/// Number of exchanges whose time is measured.
const MEASURED: u32 = 1000;
/// Time that MPI may take in each rank to end.
const LINGER: Duration = Duration::from_secs(3);
/// Bytes of a message whose time is measured: a row of 7,168 floats.
const ROW: usize = 7168 * 4;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let report = |error: &TransportError| match error {
        TransportError::Ended { by, reason } => eprintln!("error: rank {by}: {reason}"),
        error => eprintln!("error: {error}"),
    };
    let transport = match ixc_mpi::connect(Arc::new(report)) {
        Ok(transport) => transport,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let transport = &*transport;
    let result = match &*task {
        "check" => introduce(transport, "1.0").map_err(text).and_then(|()| check(transport)),
        "work" => write_process_id(transport).and_then(|()| work(transport)),
        "idle" => write_process_id(transport).and_then(|()| idle(transport)),
        "fail" | "linger" if transport.rank() == 1 => Err("the drive is full".to_owned()),
        "fail" | "linger" => work(transport),
        "differ" => introduce(transport, if transport.rank() == 1 { "1.1" } else { "1.0" }).map_err(text),
        _ => Err(format!("there is no task {task:?}")),
    };
    match result.and_then(|()| transport.close().map_err(text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            transport.end(&reason);
            if task == "linger" {
                std::thread::sleep(LINGER);
            }
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

fn write_process_id(transport: &dyn Transport) -> Result<(), String> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    let path = PathBuf::from(folder).join(transport.rank().to_string());
    std::fs::write(path, std::process::id().to_string()).map_err(text)
}

/// Exchanges a message with each other rank. The content depends on the sender, the receiver and
/// `round`.
fn exchange(transport: &dyn Transport, length: usize, round: u32) -> Result<(), String> {
    let rank = transport.rank();
    let byte = |from: u32, to: u32| (from * 31 + to * 7 + round) as u8;
    let others: Vec<u32> = (0..transport.ranks()).filter(|other| *other != rank).collect();
    let sent: Vec<Vec<u8>> = others.iter().map(|to| vec![byte(rank, *to); length]).collect();
    let mut found = vec![vec![0; length]; others.len()];
    let outgoing: Vec<_> = others.iter().zip(&sent).map(|(to, bytes)| Outgoing { to: *to, bytes }).collect();
    let mut incoming: Vec<_> =
        others.iter().zip(&mut found).map(|(from, bytes)| Incoming { from: *from, bytes }).collect();
    transport.exchange(&outgoing, &mut incoming).map_err(text)?;
    for (from, bytes) in others.iter().zip(&found) {
        if !bytes.iter().all(|found| *found == byte(*from, rank)) {
            return Err(format!("a message of {length} bytes from rank {from} has other bytes"));
        }
    }
    Ok(())
}

/// Exchanges two messages with each other rank. The two messages travel at the same time.
fn exchange_in_halves(transport: &dyn Transport, length: usize) -> Result<(), String> {
    let rank = transport.rank();
    let others: Vec<u32> = (0..transport.ranks()).filter(|other| *other != rank).collect();
    for half in 0..2 {
        let own = vec![rank as u8 + half; length];
        let outgoing: Vec<_> = others.iter().map(|to| Outgoing { to: *to, bytes: &own }).collect();
        let incoming = others.iter().map(|from| Receipt { from: *from, bytes: vec![0; length] }).collect();
        transport.begin(&outgoing, incoming).map_err(text)?;
    }
    for half in 0..2 {
        for Receipt { from, bytes } in transport.finish().map_err(text)? {
            if !bytes.iter().all(|found| *found == from as u8 + half) {
                return Err(format!("half {half} of {length} bytes from rank {from} has other bytes"));
            }
        }
    }
    Ok(())
}

fn check(transport: &dyn Transport) -> Result<(), String> {
    let sizes = [0, 1, 7, 1 << 10, 1 << 16, (1 << 16) + 1, 1 << 20, (16 << 20) + 5, 3];
    for (round, length) in (0..).zip(sizes) {
        exchange(transport, length, round)?;
        exchange_in_halves(transport, length)?;
    }
    let begin = Instant::now();
    for round in 0..MEASURED {
        exchange(transport, ROW, round)?;
    }
    if transport.rank() == 0 {
        let time = begin.elapsed() / MEASURED;
        println!("{} ranks, {ROW} bytes to each: {:.0} us an exchange", transport.ranks(), time.as_secs_f64() * 1e6);
    }
    Ok(())
}

fn work(transport: &dyn Transport) -> Result<(), String> {
    for round in 0_u32.. {
        // MPI sends short messages at once. For long messages, the sender and the receiver must
        // both call MPI until the message has arrived.
        exchange(transport, if round % 8 == 7 { 1 << 20 } else { ROW }, round)?;
    }
    Ok(())
}

fn idle(transport: &dyn Transport) -> Result<(), String> {
    match transport.rank() {
        0 => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]).map_err(text),
    }
}
