//! Streams: that both ends are there and know the tensor; and programs that share a state.

use ixc_ir::dataflow::descriptor::{Descriptor, End, Port, TensorSource};

use super::{CheckError, MOST_ROW, exists, malformed, program_name, received};
use crate::dataflow::layout::start;

pub(super) fn streams(d: &Descriptor) -> Result<(), CheckError> {
    let tensor_name = |tensor: u32| d.tensors[tensor as usize].name.clone();
    let mut brought = std::collections::BTreeSet::new();
    let mut taken = std::collections::BTreeSet::new();
    for (number, stream) in d.streams.iter().enumerate() {
        let what = format!("stream {number}");
        exists(&what, "tensor", stream.tensor, d.tensors.len())?;
        let tensor = &d.tensors[stream.tensor as usize];
        for end in [stream.from, stream.to] {
            if let End::Program(program) = end {
                exists(&what, "program", program, d.programs.len())?;
            }
        }
        if let End::Program(from) = stream.from {
            let program = &d.programs[from as usize];
            if !program.ports.iter().any(|port| matches!(port, Port::Send(slice) if slice.tensor == stream.tensor)) {
                let (tensor, program) = (tensor_name(stream.tensor), program_name(d, from as usize));
                return Err(CheckError::NotSent { stream: number, tensor, program });
            }
        }
        if let End::Program(to) = stream.to {
            let program = &d.programs[to as usize];
            if !program.ports.iter().any(|port| received(port).is_some_and(|slice| slice.tensor == stream.tensor)) {
                let (tensor, program) = (tensor_name(stream.tensor), program_name(d, to as usize));
                return Err(CheckError::NobodyReceives { stream: number, tensor, program });
            }
        }
        match (stream.from, stream.to) {
            (End::Host, End::Host) => return Err(malformed(what, "it goes from the host to the host")),
            (End::Host, End::Program(to)) => {
                // What programs make and a later wave reads waits at the host.
                let later = |p: u32| d.programs[p as usize].wave < d.programs[to as usize].wave;
                let stored = d.streams.iter().any(|s| {
                    s.tensor == stream.tensor && s.to == End::Host && matches!(s.from, End::Program(p) if later(p))
                });
                if tensor.source == TensorSource::Programs && !stored {
                    return Err(malformed(what, format!("the host has no {}: no wave before gives it", tensor.name)));
                }
            }
            (End::Program(from), End::Program(to)) => {
                let [from, to] = [from, to].map(|p| d.programs[p as usize].wave);
                if from != to {
                    return Err(malformed(what, format!("it goes from wave {from} to wave {to}, not by the host")));
                }
            }
            (End::Program(_), End::Host) => {}
        }
        if let End::Program(from) = stream.from {
            taken.insert((from, stream.tensor));
        }
        if let End::Program(to) = stream.to {
            brought.insert((to, stream.tensor));
        }
    }
    for (number, program) in d.programs.iter().enumerate() {
        for (port, at) in program.ports.iter().enumerate() {
            let program = || program_name(d, number);
            if let Some(slice) = received(at)
                && !brought.contains(&(number as u32, slice.tensor))
            {
                let tensor = tensor_name(slice.tensor);
                return Err(CheckError::NothingSent { program: program(), port, tensor });
            }
            // The ids of a routing say who fires, also where nobody reads them.
            if let Port::Send(slice) = at
                && !taken.contains(&(number as u32, slice.tensor))
                && !d.routings.iter().any(|routing| routing.ids == slice.tensor)
            {
                let tensor = tensor_name(slice.tensor);
                return Err(CheckError::NobodyTakes { program: program(), port, tensor });
            }
        }
    }
    let logits = d.streams.iter().any(|stream| stream.tensor == d.logits && stream.to == End::Host);
    if !logits {
        return Err(malformed("logits", "no stream brings them to the host"));
    }
    Ok(())
}

/// Programs of a state must be where its parts are.
pub(super) fn states(d: &Descriptor) -> Result<(), CheckError> {
    let mut first: Vec<Option<usize>> = vec![None; d.states.len()];
    for (number, program) in d.programs.iter().enumerate() {
        let Some(state) = program.state else { continue };
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
                        "head {column}, part {part} of state {state} is at {found:?}, but for {} at {right:?}",
                        program_name(d, other)
                    );
                    return Err(malformed(program_name(d, number), problem));
                }
            }
        }
    }
    // A slice of a part must begin somewhere in the row.
    debug_assert!(d.programs.iter().flat_map(|p| &p.ports).filter_map(received).all(|s| start(s, 0, 0) <= MOST_ROW));
    Ok(())
}
