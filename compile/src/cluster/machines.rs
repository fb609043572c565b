//! Descriptions of several equal machines: their sockets, memory, drive and links. Each socket runs
//! one rank.
//!
//! ```
//! use ixc_compile::cluster::machines;
//!
//! let found = machines::find("xeon-6980p")?;
//! assert_eq!((found.sockets, found.socket.cores), (2, 128));
//! # Ok::<(), ixc_compile::cluster_error::ClusterError>(())
//! ```
//!
//! Invariant: descriptions are untrusted. All returned descriptions have numbers in range.

use std::path::Path;

use ixc_files::Kind;
use serde::{Deserialize, Serialize};

use crate::cluster_error::ClusterError;

/// Built-in descriptions, with their names.
pub const MACHINES: &[(&str, &str)] = &[
    ("xeon-6980p", include_str!("machines/xeon-6980p.toml")),
    ("xeon-6980p-rdma", include_str!("machines/xeon-6980p-rdma.toml")),
    ("xeon-8575c", include_str!("machines/xeon-8575c.toml")),
    ("round", include_str!("machines/round.toml")),
];

/// First line of a written description.
const HEAD: &str = "# Machines of ranks, written by ixc.";
/// The file kind of descriptions that `ixc` writes.
pub const KIND: Kind = Kind {
    name: "description of machines",
    is: |head| head.starts_with(HEAD.as_bytes()),
    // Standard output is for the report of the measured links.
    streams: false,
    private: false,
};

/// Max bytes of a file; built-in files have about two thousand.
const MAX_BYTES: u64 = 64 << 10;
/// Max number of machines, sockets or cores.
const MAX_COUNT: u32 = 1 << 16;

/// Equal machines and the links between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machines {
    /// Name of the machines in reports.
    pub name: String,
    /// One line of description.
    pub description: String,
    /// Sources of the numbers of this description.
    pub sources: Vec<String>,
    /// Fields whose values have no source.
    pub assumed: Vec<String>,
    /// Number of machines. `None` means as many as the ranks need.
    pub machines: Option<u32>,
    /// Number of sockets of one machine.
    pub sockets: u32,
    /// Properties of one socket.
    pub socket: Socket,
    /// Drive of a machine, which its sockets share.
    pub drive: Option<Drive>,
    /// Link between the sockets of a machine.
    pub inside: Link,
    /// Link between machines.
    pub between: Link,
}

/// A socket: its cores and its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Number of cores, one thread each.
    pub cores: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes per second of memory: channels times transfers.
    pub memory_bytes_per_second: f64,
    /// Share of this rate that kernels reach, from 0 to 1.
    pub memory_share: f64,
    /// Operations per second of products with quantised weights, two for each multiply-add.
    pub int8_operations_per_second: f64,
    /// Operations per second of products of floats.
    pub float_operations_per_second: f64,
    /// Seconds that the threads need to meet at a barrier after a step of a plan.
    pub barrier_seconds: f64,
}

/// Speed of a machine's drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Bytes that the drive reads per second.
    pub bytes_per_second: f64,
}

/// Properties of a link in one direction. Both directions work at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Seconds from the send of a short message to its receipt.
    pub latency_seconds: f64,
    /// Seconds for each message that a rank sends in an exchange, in addition to the latency.
    pub message_seconds: f64,
    /// Bytes per second that the link transfers.
    pub bytes_per_second: f64,
}

/// Kinds of valid numbers in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    Count,
    Positive,
    NotNegative,
    Share,
}

impl Range {
    fn expected_value(self) -> &'static str {
        match self {
            Range::Count => "1 to 65536",
            Range::Positive => "more than 0, and at most 1e18",
            Range::NotNegative => "0 to 1000",
            Range::Share => "more than 0, and at most 1",
        }
    }

    fn contains(self, x: f64) -> bool {
        match self {
            Range::Count => (1.0..=f64::from(MAX_COUNT)).contains(&x),
            Range::Positive => x > 0.0 && x <= 1e18,
            Range::NotNegative => (0.0..=1000.0).contains(&x),
            Range::Share => x > 0.0 && x <= 1.0,
        }
    }
}

/// A field with a number.
struct NumberField {
    name: &'static str,
    value: f64,
    range: Range,
}

impl Machines {
    /// Checks that each rank has a socket.
    ///
    /// # Errors
    /// Fails if there are fewer sockets than ranks, or no ranks.
    pub fn check_ranks(&self, ranks: u32) -> Result<(), ClusterError> {
        if ranks == 0 {
            return Err(ClusterError::NoRanks);
        }
        match self.machines {
            Some(machines) if u64::from(machines) * u64::from(self.sockets) < u64::from(ranks) => {
                Err(ClusterError::TooManyRanks { ranks, name: self.name.clone(), machines, sockets: self.sockets })
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of the machine on which a rank runs.
    pub fn machine_of(&self, rank: u32) -> u32 {
        rank / self.sockets
    }

    /// Returns the number of machines on which ranks run.
    pub fn used_by(&self, ranks: u32) -> u32 {
        ranks.div_ceil(self.sockets)
    }

    /// Returns the link between two ranks.
    pub fn link(&self, a: u32, b: u32) -> &Link {
        if self.machine_of(a) == self.machine_of(b) { &self.inside } else { &self.between }
    }

    fn numbers(&self) -> Vec<NumberField> {
        let field = |name, value, range| NumberField { name, value, range };
        let socket = &self.socket;
        let mut all = vec![
            field("machines", self.machines.map_or(1.0, f64::from), Range::Count),
            field("sockets", self.sockets.into(), Range::Count),
            field("socket.cores", socket.cores.into(), Range::Count),
            field("socket.memory_bytes", socket.memory_bytes as f64, Range::Positive),
            field("socket.memory_bytes_per_second", socket.memory_bytes_per_second, Range::Positive),
            field("socket.memory_share", socket.memory_share, Range::Share),
            field("socket.int8_operations_per_second", socket.int8_operations_per_second, Range::Positive),
            field("socket.float_operations_per_second", socket.float_operations_per_second, Range::Positive),
            field("socket.barrier_seconds", socket.barrier_seconds, Range::NotNegative),
            field("inside.latency_seconds", self.inside.latency_seconds, Range::NotNegative),
            field("inside.message_seconds", self.inside.message_seconds, Range::NotNegative),
            field("inside.bytes_per_second", self.inside.bytes_per_second, Range::Positive),
            field("between.latency_seconds", self.between.latency_seconds, Range::NotNegative),
            field("between.message_seconds", self.between.message_seconds, Range::NotNegative),
            field("between.bytes_per_second", self.between.bytes_per_second, Range::Positive),
        ];
        all.extend(
            self.drive.iter().map(|drive| field("drive.bytes_per_second", drive.bytes_per_second, Range::Positive)),
        );
        all
    }

    /// Returns the description as TOML, which [`parse`] reads.
    pub fn toml(&self) -> String {
        let list = |texts: &[String]| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "{HEAD}\nname = {}\ndescription = {}\nsources = [{}]\nassumed = [{}]\n",
            quoted(&self.name),
            quoted(&self.description),
            list(&self.sources),
            list(&self.assumed)
        );
        self.machines.iter().for_each(|machines| text += &format!("machines = {machines}\n"));
        text += &format!("sockets = {}\n", self.sockets);
        let Socket { cores, memory_bytes, memory_bytes_per_second, memory_share, .. } = self.socket;
        let Socket { int8_operations_per_second, float_operations_per_second, barrier_seconds, .. } = self.socket;
        text += &format!(
            "\n[socket]\ncores = {cores}\nmemory_bytes = {memory_bytes}\nmemory_bytes_per_second = {memory_bytes_per_second:?}\n\
             memory_share = {memory_share:?}\nint8_operations_per_second = {int8_operations_per_second:?}\n\
             float_operations_per_second = {float_operations_per_second:?}\nbarrier_seconds = {barrier_seconds:?}\n"
        );
        if let Some(Drive { bytes_per_second }) = self.drive {
            text += &format!("\n[drive]\nbytes_per_second = {bytes_per_second:?}\n");
        }
        for (name, link) in [("inside", &self.inside), ("between", &self.between)] {
            let Link { latency_seconds, message_seconds, bytes_per_second } = link;
            text += &format!(
                "\n[{name}]\nlatency_seconds = {latency_seconds:?}\nmessage_seconds = {message_seconds:?}\n\
                 bytes_per_second = {bytes_per_second:?}\n"
            );
        }
        text
    }

    fn check(self) -> Result<Machines, ClusterError> {
        let numbers = self.numbers();
        if let Some(&NumberField { name: field, value: found, range }) =
            numbers.iter().find(|field| !field.range.contains(field.value))
        {
            return Err(ClusterError::Value { name: self.name, field, found, expected: range.expected_value() });
        }
        if let Some(field) = self.assumed.iter().find(|own| numbers.iter().all(|field| field.name != own.as_str())) {
            let field = field.clone();
            return Err(ClusterError::AssumedField { name: self.name, field });
        }
        Ok(self)
    }
}

/// Returns a text as a quoted TOML string.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// Returns the path of the description's file, unless `name` is built in.
pub fn file(name: &str) -> Option<&Path> {
    name.ends_with(".toml").then_some(Path::new(name))
}

/// Returns machines by name, or from a file whose path ends in `.toml`.
///
/// # Errors
/// If the name is unknown, or the file cannot be read or is not a valid description.
pub fn find(name: &str) -> Result<Machines, ClusterError> {
    if let Some((name, text)) = MACHINES.iter().find(|(known, _)| *known == name) {
        return parse(name, text);
    }
    let Some(path) = file(name) else {
        let names: Vec<&str> = MACHINES.iter().map(|(name, _)| *name).collect();
        return Err(ClusterError::UnknownMachines { name: name.to_owned(), names: names.join(", ") });
    };
    parse(name, &ixc_files::read_text(path, MAX_BYTES)?)
}

/// Parses a description. Errors contain `name`, the name or path of the description.
///
/// # Errors
/// If the text is not TOML, has unknown fields, or numbers out of range.
pub fn parse(name: &str, text: &str) -> Result<Machines, ClusterError> {
    let machines: Machines = toml::from_str(text)
        .map_err(|error| ClusterError::Toml { name: name.to_owned(), message: error.to_string() })?;
    machines.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_machines_have_their_names_and_sources() {
        for (name, _) in MACHINES {
            let machines = find(name).unwrap();
            assert_eq!(machines.name, *name);
            assert!(!machines.sources.is_empty(), "{name}");
        }
    }

    #[test]
    fn invalid_machines_are_refused_with_valid_values() {
        let text = MACHINES[3].1;
        for (from, to, says) in [
            ("sockets = 2", "sockets = 0", "sockets is 0; it must be 1 to 65536"),
            ("sockets = 2", "sockets = -1", "invalid value"),
            ("sockets = 2", "sockets = 5000000000", "invalid value"),
            ("sockets = 2", "sockets = 2\nhue = 3", "unknown field `hue`"),
            ("sockets = 2", "", "missing field `sockets`"),
            ("sockets = 2", "sockets = ", "machines here: "),
            ("memory_share = 1.0", "memory_share = 1.5", "socket.memory_share is 1.5; it must be more than 0"),
            ("memory_share = 1.0", "memory_share = nan", "socket.memory_share is NaN"),
            ("bytes_per_second = 2e9", "bytes_per_second = 0.0", "inside.bytes_per_second is 0"),
            ("bytes_per_second = 2e9", "bytes_per_second = inf", "inside.bytes_per_second is inf"),
            ("latency_seconds = 1e-5", "latency_seconds = -1e-5", "inside.latency_seconds is -0.00001"),
            ("assumed = []", "assumed = [\"socket.hue\"]", "lists `socket.hue`, which is not a numeric field"),
            ("name = \"round\"", "name = 3", "invalid type"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = parse("here", &text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
        for text in ["", "[socket", "\u{0}", &"[[a]]\n".repeat(1000), &"a = ".repeat(10_000), &"[".repeat(10_000)] {
            assert!(matches!(parse("here", text), Err(ClusterError::Toml { .. })));
        }
        assert!(find("xeon").unwrap_err().to_string().contains("xeon-6980p, xeon-6980p-rdma, xeon-8575c, round"));
        assert!(find("no/such/file.toml").unwrap_err().to_string().contains("no/such/file.toml"));
    }

    #[test]
    fn written_descriptions_are_read_again() {
        for (name, _) in MACHINES {
            let machines = Machines { machines: Some(3), ..find(name).unwrap() };
            assert_eq!(parse("here", &machines.toml()).unwrap(), machines);
            let odd = Machines {
                name: "a \"b\" \\ \u{1b}\n\u{9f} é".to_owned(),
                machines: None,
                drive: None,
                sources: Vec::new(),
                assumed: machines.assumed.iter().filter(|field| !field.starts_with("drive.")).cloned().collect(),
                ..machines
            };
            assert_eq!(parse("here", &odd.toml()).unwrap(), odd);
            assert!((KIND.is)(odd.toml().as_bytes()));
        }
    }

    #[test]
    fn ranks_need_a_socket_each() {
        let machines = Machines { machines: Some(2), ..find("round").unwrap() };
        assert!(machines.check_ranks(4).is_ok());
        let error = machines.check_ranks(5).unwrap_err().to_string();
        assert_eq!(error, "5 ranks need 5 sockets; round has 2 machines, each with this number of sockets: 2");
        assert!(matches!(machines.check_ranks(0), Err(ClusterError::NoRanks)));
    }
}
