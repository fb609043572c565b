//! Construction of streams between the senders and receivers of tensors.
//!
//! Result: every receiving port has a stream from each program that sends a part of its slice.
//! Tensors that cross waves go through the host.
//!
//! ```text
//! rms_norm sends h, three products receive it     streams of h: rms_norm -> q, rms_norm -> k,
//!                                                               rms_norm -> v
//! ```

use std::collections::BTreeSet;

use crate::descriptor::{Descriptor, End, Port, Route, Slice, Stream, TensorSource};

/// Returns the slice that a port receives, if any.
pub(super) fn received_slice(port: &Port) -> Option<&Slice> {
    match port {
        Port::Receive(slice) | Port::ReceiveSlots(slice) | Port::ReceiveRope(slice) => Some(slice),
        Port::ReceiveParts { slice, .. } => Some(slice),
        _ => None,
    }
}

/// Returns the range of bytes that a slice covers for all columns and parts together.
fn span(slice: &Slice, columns: u32, parts: u32) -> (u64, u64) {
    let last = |stride: u64, count: u32| stride.saturating_mul(count.saturating_sub(1).into());
    let end = slice.offset.saturating_add(last(slice.column_stride, columns));
    (slice.offset, end.saturating_add(last(slice.part_stride, parts)).saturating_add(slice.bytes))
}

/// Adds the streams, without routes.
pub(super) fn streams(descriptor: &mut Descriptor) {
    let mut senders: Vec<Vec<(u32, (u64, u64))>> = vec![Vec::new(); descriptor.tensors.len()];
    for (number, program) in descriptor.programs.iter().enumerate() {
        for port in &program.ports {
            if let Port::Send(slice) = port {
                let span = span(slice, program.columns, descriptor.parts(program));
                senders[slice.tensor as usize].push((number as u32, span));
            }
        }
    }
    let mut ends: BTreeSet<(u32, StreamEnds)> = BTreeSet::new();
    for (number, program) in descriptor.programs.iter().enumerate() {
        let number = number as u32;
        for port in &program.ports {
            let Some(slice) = received_slice(port) else { continue };
            let parts = match port {
                Port::ReceiveParts { state, .. } => {
                    descriptor.states.get(*state as usize).map_or(1, |state| state.parts.count)
                }
                _ => descriptor.parts(program),
            };
            let (begin, end) = span(slice, program.columns, parts);
            let tensor = slice.tensor;
            if descriptor.tensors[tensor as usize].source != TensorSource::Programs {
                ends.insert((tensor, StreamEnds { from: None, to: Some(number) }));
                continue;
            }
            for &(sender, (from, to)) in &senders[tensor as usize] {
                if from >= end || begin >= to {
                    continue;
                }
                if descriptor.programs[sender as usize].wave == program.wave {
                    ends.insert((tensor, StreamEnds { from: Some(sender), to: Some(number) }));
                } else {
                    ends.insert((tensor, StreamEnds { from: Some(sender), to: None }));
                    ends.insert((tensor, StreamEnds { from: None, to: Some(number) }));
                }
            }
        }
    }
    for &(sender, _) in &senders[descriptor.logits as usize] {
        ends.insert((descriptor.logits, StreamEnds { from: Some(sender), to: None }));
    }
    let end = |program: Option<u32>| program.map_or(End::Host, End::Program);
    descriptor.streams = ends
        .into_iter()
        .map(|(tensor, StreamEnds { from, to })| Stream {
            tensor,
            from: end(from),
            to: end(to),
            route: Route::XThenY,
            colour: 0,
        })
        .collect();
}

/// Sender and receiver of a stream; `None` is the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StreamEnds {
    from: Option<u32>,
    to: Option<u32>,
}
