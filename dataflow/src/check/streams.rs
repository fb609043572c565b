//! Checks of streams: both ends of each stream exist and use its tensor. Also checks programs that
//! share a state.

use std::collections::{HashMap, HashSet};

use crate::descriptor::{Descriptor, End, Port, TensorSource, program_name};

use super::{CheckError, MAX_ROW, MAX_SHARERS, exists, malformed_error, received_slice};
use crate::grid::Routing;
use crate::layout::start;

/// A tensor that a program sends or receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct TensorUse {
    program: u32,
    tensor: u32,
}

/// Tensors at the ends of all streams.
#[derive(Default)]
struct Ends {
    /// Tensors that streams bring to programs.
    brought: HashSet<TensorUse>,
    /// Tensors that streams take from programs.
    taken: HashSet<TensorUse>,
    /// First wave that stores a tensor at the host, by tensor.
    stored: HashMap<u32, u32>,
}

/// Checks all streams.
pub(super) fn streams(d: &Descriptor) -> Result<(), CheckError> {
    let ends = ends(d)?;
    directions(d, &ends)?;
    completeness(d, &ends)?;
    let logits = d.streams.iter().any(|stream| stream.tensor == d.logits && stream.to == End::Host);
    if !logits {
        return Err(malformed_error("logits", "no stream brings the tensor of logits to the host"));
    }
    Ok(())
}

fn tensor_name(d: &Descriptor, tensor: u32) -> String {
    d.tensors[tensor as usize].name.clone()
}

/// Checks that both ends of each stream use its tensor, and that no two streams are the same.
fn ends(d: &Descriptor) -> Result<Ends, CheckError> {
    let mut sends = HashSet::new();
    let mut receives = HashSet::new();
    for (number, program) in d.programs.iter().enumerate() {
        for port in &program.ports {
            if let Port::Send(slice) = port {
                sends.insert(TensorUse { program: number as u32, tensor: slice.tensor });
            }
            if let Some(slice) = received_slice(port) {
                receives.insert(TensorUse { program: number as u32, tensor: slice.tensor });
            }
        }
    }
    let mut known = HashSet::new();
    let mut ends = Ends::default();
    for (number, stream) in d.streams.iter().enumerate() {
        let what = || format!("stream {number}");
        exists(what(), "tensor", stream.tensor, d.tensors.len())?;
        for end in [stream.from, stream.to] {
            if let End::Program(program) = end {
                exists(what(), "program", program, d.programs.len())?;
            }
        }
        if !known.insert((stream.tensor, stream.from, stream.to)) {
            let problem =
                format!("another stream brings tensor {} between the same two ends", tensor_name(d, stream.tensor));
            return Err(malformed_error(what(), problem));
        }
        if let End::Program(from) = stream.from {
            let sent = TensorUse { program: from, tensor: stream.tensor };
            if !sends.contains(&sent) {
                let (tensor, program) = (tensor_name(d, stream.tensor), program_name(d, from as usize));
                return Err(CheckError::NotSent { stream: number, tensor, program });
            }
            ends.taken.insert(sent);
            if stream.to == End::Host {
                let wave = d.programs[from as usize].wave;
                ends.stored.entry(stream.tensor).and_modify(|first| *first = wave.min(*first)).or_insert(wave);
            }
        }
        if let End::Program(to) = stream.to {
            let received = TensorUse { program: to, tensor: stream.tensor };
            if !receives.contains(&received) {
                let (tensor, program) = (tensor_name(d, stream.tensor), program_name(d, to as usize));
                return Err(CheckError::NoReceivingPort { stream: number, tensor, program });
            }
            ends.brought.insert(received);
        }
    }
    Ok(ends)
}

/// Checks that the host has the tensors that it sends, and that a stream between programs stays in
/// one wave.
fn directions(d: &Descriptor, ends: &Ends) -> Result<(), CheckError> {
    for (number, stream) in d.streams.iter().enumerate() {
        let what = || format!("stream {number}");
        let tensor = &d.tensors[stream.tensor as usize];
        match (stream.from, stream.to) {
            (End::Host, End::Host) => return Err(malformed_error(what(), "it goes from the host to the host")),
            (End::Host, End::Program(to)) => {
                // A tensor of programs that a later wave reads must first be stored at the host.
                let first = ends.stored.get(&stream.tensor);
                let there = first.is_some_and(|first| *first < d.programs[to as usize].wave);
                if tensor.source == TensorSource::Programs && !there {
                    return Err(malformed_error(
                        what(),
                        format!(
                            "the host does not have tensor {}: no earlier wave sends that tensor to the host",
                            tensor.name
                        ),
                    ));
                }
            }
            (End::Program(from), End::Program(to)) => {
                let [from, to] = [from, to].map(|p| d.programs[p as usize].wave);
                if from != to {
                    return Err(malformed_error(
                        what(),
                        format!(
                            "it goes from a program of wave {from} to a program of wave {to}; between waves, tensors must go through the host"
                        ),
                    ));
                }
            }
            (End::Program(_), End::Host) => {}
        }
    }
    Ok(())
}

/// Checks that each port of a program has a stream.
fn completeness(d: &Descriptor, ends: &Ends) -> Result<(), CheckError> {
    let ids: HashSet<u32> = d.routings.iter().map(|routing| routing.ids).collect();
    for (number, program) in d.programs.iter().enumerate() {
        for (port, at) in program.ports.iter().enumerate() {
            let program = || program_name(d, number);
            if let Some(slice) = received_slice(at)
                && !ends.brought.contains(&TensorUse { program: number as u32, tensor: slice.tensor })
            {
                let tensor = tensor_name(d, slice.tensor);
                return Err(CheckError::NoSendingStream { program: program(), port, tensor });
            }
            // The ids of a routing decide which instances fire, so they need no stream to a
            // program.
            if let Port::Send(slice) = at
                && !ends.taken.contains(&TensorUse { program: number as u32, tensor: slice.tensor })
                && !ids.contains(&slice.tensor)
            {
                let tensor = tensor_name(d, slice.tensor);
                return Err(CheckError::NoTakingStream { program: program(), port, tensor });
            }
        }
    }
    Ok(())
}

/// Checks that the programs that use a state are on the PEs of its parts.
pub(super) fn states(d: &Descriptor) -> Result<(), CheckError> {
    let mut first: Vec<Option<usize>> = vec![None; d.states.len()];
    let mut sharers = vec![0; d.states.len()];
    for (number, program) in d.programs.iter().enumerate() {
        let Some(state) = program.state else { continue };
        sharers[state as usize] += 1;
        if sharers[state as usize] > MAX_SHARERS {
            let problem = format!("more than {MAX_SHARERS} programs work on this state, the limit");
            return Err(malformed_error(format!("state {state}"), problem));
        }
        let Some(other) = first[state as usize] else {
            first[state as usize] = Some(number);
            continue;
        };
        for column in 0..program.columns {
            for part in 0..d.parts(program) {
                let right = d.programs[other].sites.pe(column, 0, part);
                let found = program.sites.pe(column, 0, part);
                if found != right {
                    let problem = format!(
                        "head {column}, part {part} of state {state} is at PE {found:?}; for {} it is at PE {right:?}, and both must be equal",
                        program_name(d, other)
                    );
                    return Err(malformed_error(program_name(d, number), problem));
                }
            }
        }
    }
    // A slice for a part of a state must begin inside the row.
    debug_assert!(
        d.programs.iter().flat_map(|p| &p.ports).filter_map(received_slice).all(|s| start(s, 0, 0) <= MAX_ROW)
    );
    Ok(())
}

/// Checks that each stream's colour is one that a link has.
pub(super) fn colours(d: &Descriptor) -> Result<(), CheckError> {
    let colours = match d.grid.link.routing {
        Routing::Colours(colours) => colours,
        Routing::Packets => 1,
    };
    for (number, stream) in d.streams.iter().enumerate() {
        if stream.colour >= colours {
            let (found, most) = (stream.colour, colours - 1);
            let problem = match d.grid.link.routing {
                Routing::Colours(_) => {
                    format!("it has colour {found}; links of the grid have {colours} colours, numbered 0 to {most}")
                }
                Routing::Packets => {
                    format!("it has colour {found}; messages of this grid are packets, whose colour must be 0")
                }
            };
            return Err(malformed_error(format!("stream {number}"), problem));
        }
    }
    Ok(())
}
