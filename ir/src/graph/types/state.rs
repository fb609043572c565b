//! Checks of states: the fields, windows and rollbacks that each kind allows.

use super::TypeError;
use crate::graph::{Dim, Field, State};
use crate::plan::ATTENTION_BLOCK;
use crate::state::POSITIONS;

/// Checks that a state fits its kind. It must have the fields of the kind, with valid sizes, and no
/// attribute that the kind does not support.
///
/// # Errors
/// Fails with [`TypeError::State`].
pub fn check_state(state: &State) -> Result<(), TypeError> {
    let row = state.kind.row();
    let error = |problem: String| Err(TypeError::State { name: state.name.clone(), problem });
    if state.fields.len() != row.fields.len() {
        let names: Vec<&str> = row.fields.iter().map(|field| field.name).collect();
        return error(format!(
            "has {} fields; {} has {}: {}",
            state.fields.len(),
            row.name,
            names.len(),
            names.join(", ")
        ));
    }
    for (field, expected) in state.fields.iter().zip(row.fields) {
        let shape = match (expected.positions, &field.dims[..]) {
            (true, [Dim::Fixed(_), Dim::Symbol(symbol), Dim::Fixed(_)]) => symbol == POSITIONS,
            (true, _) => false,
            (false, dims) => (1..=4).contains(&dims.len()) && dims.iter().all(|dim| dim.fixed().is_some()),
        };
        if !expected.formats.contains(&field.format) || !shape {
            let dims = if expected.positions { "[columns, S, width]" } else { "of one to four numbers" };
            return error(format!("has {field} as {}; it must be {} {dims}", expected.name, expected.formats()));
        }
        let block = field.format.block_len() as u64;
        if field.dims.last().and_then(Dim::fixed).is_some_and(|width| !width.is_multiple_of(block)) {
            return error(format!(
                "has {field} as {}; the last dimension must be a multiple of {block}",
                expected.name
            ));
        }
        if field.dims.contains(&Dim::Fixed(0)) {
            return error(format!("has {field} as {}; each dimension must be at least 1", expected.name));
        }
        let numbers = field.dims.iter().filter_map(Dim::fixed);
        // The interpreter and the runtime count elements in `u64` with this product. In a plan,
        // columns and widths are `u32`.
        let elements = numbers.clone().try_fold(4u64, |product, n| product.checked_mul(n));
        if elements.is_none_or(|n| i64::try_from(n).is_err()) || numbers.clone().any(|n| u32::try_from(n).is_err()) {
            return error(format!("has {field} as {}; it has more bytes than fit 63 bits", expected.name));
        }
    }
    let heads = |field: &Field| field.dims.first().cloned();
    if row.fields.iter().all(|field| field.positions)
        && state.fields.iter().any(|field| heads(field) != heads(&state.fields[0]))
    {
        return error("has fields of different numbers of columns; they must be the same".to_string());
    }
    if !row.rollbacks.contains(&state.rollback) {
        let words: Vec<&str> = row.rollbacks.iter().map(|rollback| rollback.word()).collect();
        return error(format!(
            "cannot roll back by {}; {} can by {}",
            state.rollback.word(),
            row.name,
            words.join(" or ")
        ));
    }
    let every = 1..=i32::MAX as u64;
    match state.every {
        1 => {}
        _ if !row.windowed => {
            return error(format!(
                "has a cache slot for every {} positions; {} has no positions",
                state.every, row.name
            ));
        }
        _ if state.window.is_some() => {
            return error(
                "has both a window and places that positions share; expected at most one of them".to_string(),
            );
        }
        found if !every.contains(&found) => {
            return error(format!("has a cache slot for every {found} positions; it must be in 1..={}", i32::MAX));
        }
        _ => {}
    }
    match state.window {
        Some(_) if !row.windowed => error(format!("has a window; {} has no positions", row.name)),
        Some(window) if window == 0 || i32::try_from(window).is_err() => {
            error(format!("has a window of {window}; it must be in 1..={}", i32::MAX))
        }
        // The first position in memory is then the start of a chunk. The low bits of a position,
        // counted from there, are the number of positions before it in its chunk.
        Some(window) if state.chunked && !(window.is_power_of_two() && window >= ATTENTION_BLOCK.into()) => {
            error(format!("has chunks of {window}; they must be a power of two, at least {ATTENTION_BLOCK}"))
        }
        None if state.chunked => error("has chunks without a length (window)".to_string()),
        Some(_) | None => Ok(()),
    }
}
