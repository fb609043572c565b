//! Checks of all items that programs refer to, except streams: tensors, routings, states, kernels,
//! the embedding.

use crate::account::code_bytes;
use crate::descriptor::{Axis, Descriptor, TensorSource, VERSION};
use ixc_ir::kernel::{BufferKind, Kernel};

use super::{CheckError, MAX_ITEMS, MAX_LISTS, MAX_ROW, MAX_STEPS, MAX_TOP_K, MAX_WAVES, exists, malformed_error};
use crate::cost::{cost, evaluate};

/// Max elements of a head.
const MAX_HEAD: u32 = 1 << 16;

/// Checks all items that programs refer to. Returns the kernels.
pub(super) fn tables(d: &Descriptor) -> Result<Vec<Kernel>, CheckError> {
    if d.version != VERSION {
        return Err(CheckError::Version { found: d.version });
    }
    d.grid.check()?;
    counts(d)?;
    weights(d)?;
    tensors(d)?;
    routings(d)?;
    states(d)?;
    let kernels = kernels(d)?;
    embedding(d, &kernels)?;
    logits(d)?;
    Ok(kernels)
}

/// Checks the numbers of items of each table.
fn counts(d: &Descriptor) -> Result<(), CheckError> {
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
        if count > MAX_ITEMS {
            return Err(malformed_error(what, format!("their number is {count}; the limit is {MAX_ITEMS}")));
        }
    }
    if !(1..=MAX_WAVES).contains(&d.waves.len()) {
        return Err(malformed_error(
            "waves",
            format!("their number is {}; it must be 1 to {MAX_WAVES}", d.waves.len()),
        ));
    }
    for (what, found) in [("vocabulary", d.vocabulary), ("context", d.context)] {
        if found == 0 {
            return Err(malformed_error(what, "it is 0; it must be at least 1"));
        }
    }
    Ok(())
}

/// Checks that weights lie inside their files.
fn weights(d: &Descriptor) -> Result<(), CheckError> {
    for (i, weight) in d.weights.iter().enumerate() {
        exists(format!("weight {i} ({})", weight.name), "file", weight.file, d.files.len())?;
        let bytes = d.files[weight.file as usize].bytes;
        if weight.offset >= bytes {
            let problem =
                format!("it begins at byte {} of a file of {bytes} bytes; it must lie inside the file", weight.offset);
            return Err(malformed_error(format!("weight {i} ({})", weight.name), problem));
        }
    }
    Ok(())
}

/// Checks the rows of tensors.
fn tensors(d: &Descriptor) -> Result<(), CheckError> {
    for (i, tensor) in d.tensors.iter().enumerate() {
        let what = || format!("tensor {i} ({})", tensor.name);
        if tensor.row_bytes == 0 || tensor.row_bytes > MAX_ROW {
            return Err(malformed_error(
                what(),
                format!("a row has {} bytes; the number must be 1 to {MAX_ROW}", tensor.row_bytes),
            ));
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
                let problem = format!(
                    "a row has {} bytes; expected {right}, the bytes of a row of its rotary table",
                    tensor.row_bytes
                );
                return Err(malformed_error(what(), problem));
            }
        }
        if tensor.source != TensorSource::Programs && tensor.axis != Axis::Tokens {
            return Err(malformed_error(what(), "a tensor that the host sends must have one row for each token"));
        }
    }
    Ok(())
}

/// Checks routings and their ids.
fn routings(d: &Descriptor) -> Result<(), CheckError> {
    let mut experts = 0u64;
    for (i, routing) in d.routings.iter().enumerate() {
        let what = || format!("routing {i}");
        exists(what(), "tensor", routing.ids, d.tensors.len())?;
        let ids = &d.tensors[routing.ids as usize];
        if !(1..=routing.experts.min(MAX_TOP_K)).contains(&routing.top_k) {
            let (found, experts) = (routing.top_k, routing.experts);
            let most = experts.min(MAX_TOP_K);
            return Err(malformed_error(
                what(),
                format!("a token uses {found} of {experts} experts; the number used must be 1 to {most}"),
            ));
        }
        let right = u64::from(routing.top_k) * 4;
        if ids.row_bytes != right {
            let problem = format!(
                "a row of its ids has {} bytes; the ids of {} experts take {right} bytes",
                ids.row_bytes, routing.top_k
            );
            return Err(malformed_error(what(), problem));
        }
        experts = experts.saturating_add(routing.experts.into());
        if experts > MAX_LISTS {
            let problem =
                format!("the routings up to this one have {experts} experts together; the limit is {MAX_LISTS}");
            return Err(malformed_error(what(), problem));
        }
        if ids.axis != Axis::Tokens {
            return Err(malformed_error(what(), "the tensor of its ids must have one row for each token"));
        }
    }
    Ok(())
}

/// Checks the parts and heads of states.
fn states(d: &Descriptor) -> Result<(), CheckError> {
    let mut parts_of_all = 0u64;
    for (i, state) in d.states.iter().enumerate() {
        let parts = state.parts;
        let room = u64::from(parts.positions).saturating_mul(parts.count.into());
        let whole = parts.positions > 0 && parts.positions.is_multiple_of(32) && parts.count > 0;
        if !whole || room < u64::from(d.context) || room > 1 << 31 {
            let problem = format!(
                "it has {} parts of {} positions; the parts must hold {} positions together, and each a multiple of 32",
                parts.count, parts.positions, d.context
            );
            return Err(malformed_error(format!("state {i}"), problem));
        }
        for (field, length) in [("key", state.key_len), ("value", state.value_len)] {
            if length > MAX_HEAD {
                let problem = format!("the {field} of a head has {length} elements; the limit is {MAX_HEAD}");
                return Err(malformed_error(format!("state {i}"), problem));
            }
        }
        if state.heads == 0 {
            return Err(malformed_error(format!("state {i}"), "it has 0 heads; expected at least 1"));
        }
        parts_of_all = parts_of_all.saturating_add(u64::from(state.heads).saturating_mul(parts.count.into()));
        if parts_of_all > MAX_LISTS {
            let problem = format!(
                "the heads of the states up to this one have {parts_of_all} parts together; the limit is {MAX_LISTS}"
            );
            return Err(malformed_error(format!("state {i}"), problem));
        }
    }
    Ok(())
}

/// Parses kernels, and checks their sizes.
fn kernels(d: &Descriptor) -> Result<Vec<Kernel>, CheckError> {
    let kernels: Result<Vec<Kernel>, CheckError> = ixc_codegen::parallel::map(&d.kernels, |kernel| {
        ixc_ir::kernel::parse::parse(&kernel.text)
            .map_err(|source| CheckError::Kernel { name: kernel.name.clone(), source: Box::new(source) })
    })
    .into_iter()
    .collect();
    let kernels = kernels?;
    for (kernel, text) in kernels.iter().zip(&d.kernels) {
        let right = code_bytes(kernel);
        if text.code_bytes != right {
            let problem =
                format!("it has {} bytes of code; expected {right}, the estimate for its text", text.code_bytes);
            return Err(malformed_error(format!("kernel {}", text.name), problem));
        }
    }
    Ok(kernels)
}

/// Checks the tensor of logits.
fn logits(d: &Descriptor) -> Result<(), CheckError> {
    exists("logits", "tensor", d.logits, d.tensors.len())?;
    let logits = &d.tensors[d.logits as usize];
    let right = u64::from(d.vocabulary) * 4;
    if logits.axis != Axis::Outputs || logits.row_bytes != right {
        let problem = format!(
            "the tensor has a row of {} bytes for each of {:?}; expected {right} bytes for each of Outputs, an f32 for each token of the vocabulary",
            logits.row_bytes, logits.axis
        );
        return Err(malformed_error("logits", problem));
    }
    Ok(())
}

/// Checks the embedding, whose kernel the host runs.
fn embedding(d: &Descriptor, kernels: &[Kernel]) -> Result<(), CheckError> {
    let what = "embedding";
    exists(what, "kernel", d.embedding.kernel, d.kernels.len())?;
    exists(what, "weight", d.embedding.weight, d.weights.len())?;
    exists(what, "tensor", d.embedding.tensor, d.tensors.len())?;
    for (i, tensor) in d.tensors.iter().enumerate() {
        if (tensor.source == TensorSource::Embedding) != (i == d.embedding.tensor as usize) {
            let problem = format!(
                "the embedding's tensor is {}; this tensor, and no other, must have the embedding as its source",
                d.embedding.tensor
            );
            return Err(malformed_error(what, format!("tensor {i} ({}): {problem}", tensor.name)));
        }
    }
    let kernel = &kernels[d.embedding.kernel as usize];
    let sizes = [4, d.weights[d.embedding.weight as usize].bytes, d.tensors[d.embedding.tensor as usize].row_bytes];
    let kinds = kernel.buffers.iter().enumerate().map(|(i, buffer)| match (i, &buffer.kind) {
        (0, BufferKind::Index { .. }) | (1, BufferKind::Read) | (2, BufferKind::Write) => {
            evaluate(&buffer.size, &[]) == sizes[i]
        }
        _ => false,
    });
    if !kernel.dims.is_empty() || kernel.buffers.len() != sizes.len() || !kinds.into_iter().all(|right| right) {
        let problem = format!(
            "kernel {} does not fit; it must have no dims, read an index of 4 bytes and a table of {} bytes, and write {} bytes",
            kernel.name, sizes[1], sizes[2]
        );
        return Err(malformed_error(what, problem));
    }
    let steps = cost(kernel, &[]).steps;
    if steps > MAX_STEPS {
        return Err(malformed_error(
            what,
            format!("kernel {} executes {steps} statements for a row; the limit is {MAX_STEPS}", kernel.name),
        ));
    }
    Ok(())
}
