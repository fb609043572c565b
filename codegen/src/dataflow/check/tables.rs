//! All that programs refer to, but streams: tensors, routings, states, kernels, the embedding.

use ixc_ir::dataflow::descriptor::{Axis, Descriptor, TensorSource, VERSION};
use ixc_ir::kernel::Kernel;

use super::{CheckError, MOST_ITEMS, MOST_ROW, exists, malformed};

/// Checks all that programs refer to; gives the kernels.
pub(super) fn tables(d: &Descriptor) -> Result<Vec<Kernel>, CheckError> {
    if d.version != VERSION {
        return Err(CheckError::Version { found: d.version });
    }
    d.grid.check()?;
    for (what, count) in [
        ("weights", d.weights.len()),
        ("kernels", d.kernels.len()),
        ("tensors", d.tensors.len()),
        ("routings", d.routings.len()),
        ("states", d.states.len()),
        ("programs", d.programs.len()),
        ("streams", d.streams.len()),
        ("waves", d.waves.len()),
    ] {
        if count > MOST_ITEMS {
            return Err(malformed(what, format!("{count}; {MOST_ITEMS} are the most")));
        }
    }
    if d.waves.is_empty() {
        return Err(malformed("waves", "there is none; there must be one at least"));
    }
    if d.vocabulary == 0 || d.context == 0 {
        return Err(malformed("vocabulary and context", "they must be at least 1"));
    }
    for (i, tensor) in d.tensors.iter().enumerate() {
        let what = || format!("tensor {i} ({})", tensor.name);
        if tensor.row_bytes == 0 || tensor.row_bytes > MOST_ROW {
            return Err(malformed(what(), format!("a row of {} bytes; it must be 1 to {MOST_ROW}", tensor.row_bytes)));
        }
        if let Axis::Routed(routing) = tensor.axis {
            exists(what(), "routing", routing, d.routings.len())?;
        }
        if let TensorSource::Rope(rope) = tensor.source {
            exists(what(), "rotary table", rope, d.ropes.len())?;
            let table = &d.ropes[rope as usize];
            let pairs = u32::try_from(table.frequencies.len()).unwrap_or(u32::MAX);
            let right = table.style.row_bytes(pairs.saturating_mul(2));
            if right != tensor.row_bytes {
                let problem = format!("a row of {} bytes; those of the table have {right}", tensor.row_bytes);
                return Err(malformed(what(), problem));
            }
        }
        if tensor.source != TensorSource::Programs && tensor.axis != Axis::Tokens {
            return Err(malformed(what(), "what the host makes has a row for each token"));
        }
    }
    for (i, routing) in d.routings.iter().enumerate() {
        let what = || format!("routing {i}");
        exists(what(), "tensor", routing.ids, d.tensors.len())?;
        let ids = &d.tensors[routing.ids as usize];
        if !(1..=routing.experts).contains(&routing.top_k) || ids.row_bytes != u64::from(routing.top_k) * 4 {
            let problem =
                format!("{} of {} experts and ids of {} bytes", routing.top_k, routing.experts, ids.row_bytes);
            return Err(malformed(what(), problem));
        }
        if ids.axis != Axis::Tokens {
            return Err(malformed(what(), "its ids must have a row for each token"));
        }
    }
    for (i, state) in d.states.iter().enumerate() {
        let parts = state.parts;
        let room = u64::from(parts.positions).saturating_mul(parts.count.into());
        let whole = parts.positions > 0 && parts.positions.is_multiple_of(32) && parts.count > 0;
        if !whole || room < u64::from(d.context) || room > 1 << 31 {
            let problem = format!(
                "{} parts of {} positions; they must hold {} and be multiples of 32",
                parts.count, parts.positions, d.context
            );
            return Err(malformed(format!("state {i}"), problem));
        }
        if state.heads == 0 || state.key_len > 1 << 16 || state.value_len > 1 << 16 {
            return Err(malformed(format!("state {i}"), "no heads, or heads of more than 65536 elements"));
        }
    }
    let kernels: Result<Vec<Kernel>, CheckError> = crate::parallel::map(&d.kernels, |kernel| {
        ixc_ir::kernel::parse::parse(&kernel.text)
            .map_err(|source| CheckError::Kernel { name: kernel.name.clone(), source: Box::new(source) })
    })
    .into_iter()
    .collect();
    let what = "embedding";
    exists(what, "kernel", d.embedding.kernel, d.kernels.len())?;
    exists(what, "weight", d.embedding.weight, d.weights.len())?;
    exists(what, "tensor", d.embedding.tensor, d.tensors.len())?;
    if d.tensors[d.embedding.tensor as usize].source != TensorSource::Embedding {
        return Err(malformed(what, "its tensor has another source"));
    }
    exists("logits", "tensor", d.logits, d.tensors.len())?;
    let logits = &d.tensors[d.logits as usize];
    if logits.axis != Axis::Outputs || logits.row_bytes != u64::from(d.vocabulary) * 4 {
        return Err(malformed("logits", "they must be f32 of the vocabulary, a row for each wanted output"));
    }
    kernels
}
