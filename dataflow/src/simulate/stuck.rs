//! Chain of waits in a deadlock. It starts at an instance with work left, and goes from each
//! instance to the one that it waits for. It ends at an instance that is already in the chain (a
//! circle), or at an input that never comes.

use crate::descriptor::{Axis, End, program_name};

use super::pass::Pass;
use super::routing::{NONE, RowId};
use crate::layout::{InstancePlace, Unit, start};

/// Max number of waits that are followed.
const MAX_LINKS: usize = 4096;
/// Max number of waits that an error lists.
const MAX_CHAIN: usize = 12;

impl Pass<'_, '_> {
    /// Returns the chain of waits from an instance on, and whether it is a circle. If `first` is
    /// `None`, the chain starts at the host.
    pub(super) fn wait_chain(&self, first: Option<u32>) -> (Vec<String>, bool) {
        let mut chain: Vec<(u32, String)> = Vec::new();
        let mut next = match first {
            Some(first) => Some(first),
            None => {
                let layout = &self.machine.layout;
                let host = (layout.first_host_outlet..).zip(&layout.host);
                let blocked = host.map(|(o, _)| self.waiting[o as usize].at).find(|at| *at != NONE);
                if let Some(at) = blocked {
                    chain.push((NONE, format!("the host waits for room at {}", self.name(at))));
                }
                blocked
            }
        };
        while let Some(instance) = next {
            if let Some(place) = chain.iter().position(|(before, _)| *before == instance) {
                let circle: Vec<String> = chain.drain(place..).map(|(_, text)| text).collect();
                return (shorten_chain(circle), true);
            }
            if chain.len() >= MAX_LINKS {
                break;
            }
            let (text, other) = self.waits_for(instance);
            chain.push((instance, format!("{} {text}", self.name(instance))));
            next = other;
        }
        // The end of the chain is the most useful part.
        let skipped = chain.len().saturating_sub(MAX_CHAIN);
        (chain.into_iter().skip(skipped).map(|(_, text)| text).collect(), false)
    }

    fn name(&self, instance: u32) -> String {
        let unit = self.machine.layout.unit(instance);
        let InstancePlace { expert, column, part } = unit.place(instance);
        let number = self.machine.layout.program[instance as usize] as usize;
        let name = program_name(&self.machine.descriptor, number);
        let firing = self.done[instance as usize];
        format!("{name}, column {column}, expert {expert}, part {part}, firing {firing}")
    }

    fn tensor(&self, tensor: u32) -> &str {
        &self.machine.descriptor.tensors[tensor as usize].name
    }

    /// Returns the reason why an instance waits, and the instance that it waits for, if any.
    fn waits_for(&self, instance: u32) -> (String, Option<u32>) {
        let layout = &self.machine.layout;
        let unit = layout.unit(instance);
        let firing = self.done[instance as usize];
        for (number, outlet) in unit.outlets.iter().enumerate() {
            let id = unit.outlet(instance, number) as usize;
            let held = firing - self.departed[id];
            let fires = firing < self.firings(unit, instance);
            if held > 0 && (held >= outlet.slice.rows || !fires) {
                let tensor = self.tensor(outlet.slice.tensor);
                let at = self.waiting[id].at;
                if at != NONE {
                    return (
                        format!("waits to send {tensor}, because the receiver has no room: {}", self.name(at)),
                        Some(at),
                    );
                }
                if let Some(routing) = outlet.routing {
                    return (
                        format!(
                            "waits to send {tensor}, because the expert ids of routing {routing} are not known yet"
                        ),
                        self.router(routing),
                    );
                }
                return (format!("has {tensor} to send"), None);
            }
        }
        if firing >= self.firings(unit, instance) {
            return ("has fired for all its rows".to_owned(), None);
        }
        let row = self.row(unit, instance, firing);
        if !self.state_is_ready(unit, instance, row.token) {
            let InstancePlace { column, part, .. } = unit.place(instance);
            let other = unit.before.iter().map(|other| layout.units[*other as usize].instance(0, column, part));
            let late = other.rev().find(|other| self.done[*other as usize] <= firing);
            return ("waits for an earlier program of the same state".to_owned(), late);
        }
        let number = layout.program[instance as usize];
        for receive in &unit.receives {
            for stream in &self.machine.descriptor.streams {
                if stream.tensor != receive.slice.tensor || stream.to != End::Program(number) {
                    continue;
                }
                if let Some(found) = self.late(stream.from, stream.tensor, unit, instance, row) {
                    return found;
                }
            }
        }
        ("waits for bytes that no program sends".to_owned(), None)
    }

    /// Returns the first instance of the program that computes a routing's ids.
    fn router(&self, routing: u32) -> Option<u32> {
        let makes = |unit: &&Unit| unit.routed_ids.iter().any(|ids| ids.routing == routing);
        self.machine.layout.units.iter().find(makes).map(|unit| unit.first)
    }

    /// Returns a sender of a tensor that has not sent the bytes that an instance needs for a row.
    fn late(&self, from: End, tensor: u32, to: &Unit, at: u32, row: RowId) -> Option<(String, Option<u32>)> {
        let layout = &self.machine.layout;
        let name = self.tensor(tensor);
        let End::Program(from) = from else {
            let mine = |host: &&crate::layout::HostOutlet| host.outlet.slice.tensor == tensor && host.wave == to.wave;
            let place = layout.host.iter().position(|host| mine(&host))?;
            let id = layout.first_host_outlet as usize + place;
            let late = self.departed[id] <= self.number_of(layout.host[place].outlet.axis, row);
            let at = Some(self.waiting[id].at).filter(|at| *at != NONE);
            return late.then(|| (format!("waits for {name} from the host"), at));
        };
        let sender = &layout.units[from as usize];
        let InstancePlace { column, part, .. } = to.place(at);
        for receive in to.receives.iter().filter(|receive| receive.slice.tensor == tensor) {
            let low = start(&receive.slice, column, part);
            let high = low + receive.slice.bytes;
            for (number, outlet) in sender.outlets.iter().enumerate().filter(|(_, o)| o.slice.tensor == tensor) {
                for instance in sender.first..sender.first + sender.instances() {
                    let InstancePlace { expert, column, part } = sender.place(instance);
                    let (first, end) = outlet.range(column, part);
                    if end <= low || high <= first {
                        continue;
                    }
                    let firing = match sender.axis {
                        Axis::Tokens => {
                            u64::from(row.token).checked_sub(self.first_token(sender, part)).map(|firing| firing as u32)
                        }
                        Axis::Outputs => Some(self.output_of[row.token as usize]),
                        Axis::Routed(routing) if row.routed != NONE => {
                            let routing = &self.routed[routing as usize];
                            (routing.expert[row.routed as usize] == expert)
                                .then(|| routing.ordinal[row.routed as usize])
                        }
                        Axis::Routed(_) => None,
                    };
                    let departed = self.departed[sender.outlet(instance, number) as usize];
                    if firing.is_some_and(|firing| departed <= firing) {
                        return Some((format!("waits for {name} from {}", self.name(instance)), Some(instance)));
                    }
                }
            }
        }
        None
    }
}

fn shorten_chain(mut chain: Vec<String>) -> Vec<String> {
    let more = chain.len().saturating_sub(MAX_CHAIN);
    chain.truncate(MAX_CHAIN);
    if more > 0 {
        chain.push(format!("and {more} more instances, the last of which waits for the first"));
    }
    chain
}
