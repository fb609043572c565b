//! `ixc doctor --ranks`: the speed of the links between ranks, and a description of their machines
//! for forecasts.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ixc_compile::cluster::machines::{self, Link, Machines};
use ixc_files::read_system;
use ixc_transport::speed::{GroupSpeed, LONG_BYTES, LinkSpeed, SHORT_BYTES, measure};
use serde_json::{Value as Json, json};

use crate::division::MachineChoice;
use crate::force::Force;
use crate::output::{self, Bytes, Printable, count_text};
use crate::ranges::Ranges;
use crate::{BadInput, Usage, ranks};

/// Options of `ixc doctor` for ranks.
#[derive(Debug, clap::Args)]
pub struct LinkArgs {
    /// Measure the links between the processes that `mpirun` started, in place of this machine.
    #[arg(long, conflicts_with_all = ["no_bandwidth", "drive", "topology"])]
    ranks: bool,
    /// With --ranks, write a description of the machines with the measured links (TOML), which
    /// --machines of other commands reads.
    #[arg(short, long, value_name = "FILE", requires = "ranks")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    machines: MachineChoice,
}

impl LinkArgs {
    /// Returns whether links are measured.
    pub fn is_set(&self) -> bool {
        self.ranks
    }

    /// Measures the links of all ranks. Rank 0 prints them, and writes the description.
    pub fn run(&self, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
        let Some(transport) = ranks::transport() else {
            let problem = "--ranks measures links between processes, but this process is the only one: run `mpirun -n 2 ixc doctor --ranks`, with an ixc that was built with MPI";
            return Err(Usage(problem.to_owned()).into());
        };
        // Only rank 0 reads the description of the machines: other machines may not have this file.
        let path = self.output.as_deref().filter(|_| !ranks::is_follower());
        let open = |path| {
            let inputs: Vec<&Path> = self.machines.file().into_iter().collect();
            anyhow::Ok((self.machines.machines()?, self.force.open(path, &machines::KIND, &inputs)?))
        };
        let file = path.map(open).transpose()?;
        let name = read_system(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
        let Some(speed) = measure(&*transport, name.trim())? else { return Ok(()) };
        let summary = LinkSummary::new(&speed);
        if let Some((base, file)) = file {
            let text = summary.description(&speed, base)?.toml();
            file.write(|out| out.write_all(text.as_bytes())).map_err(ixc_error::Error::from)?;
        }
        if json {
            return Ok(output::json(out, "ixc.doctor-ranks.v1", &summary.facts(&speed))?);
        }
        Ok(summary.write(out, &speed)?)
    }
}

/// Consecutive ranks of a machine.
#[derive(Debug, PartialEq, Eq)]
struct MachineRanks {
    name: String,
    ranks: Vec<usize>,
}

/// Typical links inside machines and between them.
#[derive(Debug)]
struct LinkSummary {
    machines: Vec<MachineRanks>,
    /// Link with the median properties of all links inside a machine; `None` if no two ranks share
    /// a machine.
    inside: Option<Link>,
    between: Option<Link>,
}

impl LinkSummary {
    fn new(speed: &GroupSpeed) -> LinkSummary {
        let mut machines: Vec<MachineRanks> = Vec::new();
        for (rank, name) in speed.machines.iter().enumerate() {
            match machines.last_mut().filter(|last| last.name == *name) {
                Some(last) => last.ranks.push(rank),
                None => machines.push(MachineRanks { name: name.clone(), ranks: vec![rank] }),
            }
        }
        let link = |is_inside| {
            let links = speed.links.iter().filter(|link| is_same_machine(speed, link) == is_inside);
            typical(&links.collect::<Vec<_>>(), speed.message_seconds())
        };
        LinkSummary { inside: link(true), between: link(false), machines }
    }

    /// Returns the description `base` with the measured links in place of its own.
    ///
    /// # Errors
    /// If machines have different numbers of ranks, or ranks of a machine are not consecutive.
    fn description(&self, speed: &GroupSpeed, base: Machines) -> anyhow::Result<Machines> {
        let sockets = self.machines.first().map_or(1, |first| first.ranks.len());
        let (last, others) = self.machines.split_last().map_or((0, &[][..]), |(last, all)| (last.ranks.len(), all));
        let is_regular = others.iter().all(|machine| machine.ranks.len() == sockets) && last <= sockets;
        let is_repeated = |at: usize| self.machines[..at].iter().any(|other| other.name == self.machines[at].name);
        if !is_regular || (0..self.machines.len()).any(is_repeated) {
            let problem = "a description of machines needs the same number of consecutive ranks on each machine; \
                           place them with options of mpirun, or leave --output out";
            return Err(BadInput(problem.to_owned()).into());
        }
        let of = format!(
            "{} on {}",
            count_text(speed.machines.len() as u64, "rank"),
            count_text(self.machines.len() as u64, "machine")
        );
        let source = format!("ixc doctor --ranks: links of {of}");
        let mut assumed = base.assumed.clone();
        for (name, link) in [("inside", &self.inside), ("between", &self.between)] {
            assumed.retain(|field| !field.starts_with(&format!("{name}.")));
            let fields: &[&str] = match link {
                Some(_) if speed.message_seconds().is_some() => &[],
                Some(_) => &["message_seconds"],
                None => &["latency_seconds", "message_seconds", "bytes_per_second"],
            };
            assumed.extend(fields.iter().map(|field| format!("{name}.{field}")));
        }
        // The time of further messages cannot be measured with two ranks, since each sends one
        // message. So it comes from `base`.
        let with_message = |link: &Option<Link>, base: Link| match link {
            Some(link) if speed.message_seconds().is_none() => {
                let latency_seconds = (link.latency_seconds - base.message_seconds).max(0.0);
                Link { latency_seconds, message_seconds: base.message_seconds, ..link.clone() }
            }
            Some(link) => link.clone(),
            None => base,
        };
        Ok(Machines {
            name: format!("{} with measured links", base.name),
            description: format!("{of}, with measured links; {}", base.description),
            sources: [base.sources, vec![source]].concat(),
            assumed,
            machines: u32::try_from(self.machines.len()).ok(),
            sockets: u32::try_from(sockets)?,
            inside: with_message(&self.inside, base.inside),
            between: with_message(&self.between, base.between),
            ..base
        })
    }

    fn facts(&self, speed: &GroupSpeed) -> Json {
        let link = |link: &LinkSpeed| {
            json!({
                "ranks": [link.pair.low, link.pair.high],
                "is_on_one_machine": is_same_machine(speed, link),
                "short_seconds": link.short_seconds,
                "long_seconds": link.long_seconds,
                "bytes_per_second": link.bytes_per_second(),
            })
        };
        json!({
            "machines": speed.machines,
            "short_bytes": SHORT_BYTES,
            "long_bytes": LONG_BYTES,
            "links": speed.links.iter().map(link).collect::<Vec<_>>(),
            "inside": self.inside,
            "between": self.between,
        })
    }

    fn write(&self, out: &mut dyn Write, speed: &GroupSpeed) -> io::Result<()> {
        for MachineRanks { name, ranks } in &self.machines {
            writeln!(out, "machine    {}: ranks {}", Printable(name), Ranges(ranks))?;
        }
        let long = Bytes(LONG_BYTES as u64).to_string();
        writeln!(out, "links      {:<11} {:>9} {long:>9} {:>11}", "ranks", format!("{SHORT_BYTES} B"), "bandwidth")?;
        for link in &speed.links {
            writeln!(
                out,
                "           {:<11} {:>6.1} us {:>6.2} ms {:>6.2} GB/s{}",
                format!("{}, {}", link.pair.low, link.pair.high),
                link.short_seconds * 1e6,
                link.long_seconds * 1e3,
                link.bytes_per_second() / 1e9,
                if is_same_machine(speed, link) { "" } else { "  between machines" }
            )?;
        }
        for (label, link) in [("inside", &self.inside), ("between", &self.between)] {
            let Some(Link { latency_seconds, message_seconds, bytes_per_second }) = link else { continue };
            let further = match speed.message_seconds() {
                Some(_) => format!(" and {:.1} us a message", message_seconds * 1e6),
                None => String::new(),
            };
            let (latency, rate) = (latency_seconds * 1e6, bytes_per_second / 1e9);
            writeln!(out, "{label:<10} {latency:.1} us{further}, {rate:.2} GB/s")?;
        }
        Ok(())
    }
}

/// Returns whether the ranks of a link are on one machine.
fn is_same_machine(speed: &GroupSpeed, link: &LinkSpeed) -> bool {
    speed.machines.get(link.pair.low as usize) == speed.machines.get(link.pair.high as usize)
}

/// Returns a link with the median properties of several links; `None` without links.
fn typical(links: &[&LinkSpeed], message_seconds: Option<f64>) -> Option<Link> {
    let median = |value: fn(&LinkSpeed) -> f64| {
        let mut all: Vec<f64> = links.iter().map(|link| value(link)).collect();
        all.sort_unstable_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    // A round of two ranks takes the latency plus the time of one message. The measured time of a
    // message is too long if ranks share processors, so it is limited to half of the round.
    let round = median(|link| link.short_seconds)?;
    let message_seconds = message_seconds.unwrap_or(0.0).min(round / 2.0);
    Some(Link {
        latency_seconds: round - message_seconds,
        message_seconds,
        bytes_per_second: median(LinkSpeed::bytes_per_second)?,
    })
}

#[cfg(test)]
mod tests {
    use ixc_transport::speed::Pair;

    use super::*;

    /// Returns the speed of a group whose links take 10 us on one machine and 100 us between two.
    fn group(machines: &[&str]) -> GroupSpeed {
        let ranks = machines.len() as u32;
        let pairs = (0..ranks).flat_map(|low| (low + 1..ranks).map(move |high| Pair { low, high }));
        let link = |pair: Pair| {
            let is_same = machines[pair.low as usize] == machines[pair.high as usize];
            let short_seconds = if is_same { 10e-6 } else { 100e-6 };
            LinkSpeed { pair, short_seconds, long_seconds: short_seconds + LONG_BYTES as f64 / 1e9 }
        };
        let machines = machines.iter().map(|name| (*name).to_owned()).collect();
        GroupSpeed { machines, links: pairs.map(link).collect(), all_seconds: 104e-6 }
    }

    fn description(machines: &[&str]) -> anyhow::Result<Machines> {
        let speed = group(machines);
        LinkSummary::new(&speed).description(&speed, machines::find("round")?)
    }

    #[test]
    fn descriptions_have_the_measured_links() {
        let found = description(&["a", "a", "b", "b"]).unwrap();
        assert_eq!((found.machines, found.sockets, found.assumed.len()), (Some(2), 2, 0));
        let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        close(found.inside.latency_seconds, 8e-6);
        close(found.between.latency_seconds, 98e-6);
        close(found.between.message_seconds, 2e-6);
        close(found.inside.bytes_per_second, 1e9);
        assert_eq!(machines::parse("here", &found.toml()).unwrap(), found);
    }

    #[test]
    fn links_that_do_not_exist_are_assumed() {
        let (found, base) = (description(&["a", "a"]).unwrap(), machines::find("round").unwrap());
        assert_eq!((found.machines, found.sockets, &found.between), (Some(1), 2, &base.between));
        assert_eq!(found.inside.message_seconds, base.inside.message_seconds);
        let expected = ["inside.message_seconds", "between.latency_seconds"];
        assert!(expected.iter().all(|field| found.assumed.iter().any(|own| own == field)), "{:?}", found.assumed);
        assert_eq!(description(&["a", "b", "c"]).unwrap().sockets, 1);
    }

    #[test]
    fn irregular_places_have_no_description() {
        for places in [&["a", "b", "b"][..], &["a", "b", "a"], &["a", "a", "b", "c", "c"]] {
            let error = description(places).unwrap_err().to_string();
            assert!(error.contains("the same number of consecutive ranks"), "{error}");
        }
        assert_eq!(description(&["a", "a", "b"]).unwrap().sockets, 2);
    }
}
