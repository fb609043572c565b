//! Checks of weights: their storage, and the decisions of passes about them.

use super::TypeError;
use crate::format::Format;
use crate::graph::{Part, Weight, WeightChoices};

/// Checks that a weight can be stored. Its format must be a weight format. It must have 1 to 4
/// dimensions and whole blocks, and its size must fit in 63 bits.
///
/// # Errors
/// Fails with [`TypeError::Weight`].
pub fn check_weight(weight: &Weight) -> Result<(), TypeError> {
    let error = |problem: String| TypeError::Weight {
        name: weight.name.clone(),
        format: weight.format,
        shape: weight.shape.clone(),
        problem,
    };
    if weight.format.packed_format().is_none() {
        return Err(error("has a format that is only for activations or packed layouts".to_string()));
    }
    // GGUF has at most four dimensions (GGML_MAX_DIMS).
    let Some((&last, lead)) = weight.shape.split_last().filter(|(_, lead)| lead.len() < 4) else {
        return Err(error("must have one to four dimensions".to_string()));
    };
    if weight.shape.contains(&0) {
        return Err(error("has a dimension of 0; each must be at least 1".to_string()));
    }
    let Some(row) = weight.format.row_bytes(last) else {
        let block = weight.format.block_len();
        return Err(error(format!("has a last dimension that is not a multiple of the block of {block} elements")));
    };
    match lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)) {
        // The size must fit in 63 bits, because files and pointers have signed offsets.
        Some(bytes) if i64::try_from(bytes).is_ok() => {}
        Some(_) | None => return Err(error("has more bytes than fit 63 bits".to_string())),
    }
    if let Some(shard) = &weight.choice.shard {
        shard.check(&weight.shape, weight.format, weight.stored_format()).map_err(error)?;
    }
    if let Some(part) = &weight.part {
        let whole = weight.whole_shape();
        let [.., n, _] = whole[..] else {
            return Err(error("has no rows that could be a part of a tensor".to_string()));
        };
        if part.from.checked_add(n).is_none_or(|end| end > part.rows) {
            let Part { tensor, rows, from } = part;
            return Err(error(format!("ends after the {rows} rows of {tensor:?}; it begins at row {from}")));
        }
    }
    // The bytes of a slice or part are read from those of the whole tensor, so its size must fit
    // too.
    let tensor = weight.tensor_shape();
    let bytes = tensor.split_last().and_then(|(&last, lead)| {
        let row = weight.format.row_bytes(last)?.max(weight.stored_format().row_bytes(last).unwrap_or(0));
        lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n))
    });
    if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        return Err(error("is part of a tensor with more bytes than fit 63 bits".to_string()));
    }
    check_choice(weight).map_err(error)
}

/// Maximum characters of a tiling, or of its reason.
const CHOICE_CHARS: usize = 1 << 10;

/// Checks the decisions of passes about a weight. Formats must fit the weight's format and shape.
/// `tile` and `why` must each be one line.
fn check_choice(weight: &Weight) -> Result<(), String> {
    let WeightChoices { stored, layout, activations, tile, why, shard: _ } = &weight.choice;
    if let &Some(stored) = stored {
        let columns = weight.shape.last().copied().unwrap_or(0);
        if !weight.format.has_row_scale() || !stored.is_in_files() || stored.row_bytes(columns).is_none() {
            let formats: Vec<String> = Format::requantisation_formats().map(|format| format.to_string()).collect();
            let to = formats.join(" or ");
            return Err(format!(
                "is stored as {stored}; only weights of file formats, in whole blocks, can be requantised, and only to {to}"
            ));
        }
    }
    if let &Some(layout) = layout {
        if weight.format.packed_format() != Some(layout) {
            let packed = weight.format.packed_format().map_or("none".to_string(), |format| format.to_string());
            return Err(format!("has the layout {layout}; its packed format is {packed}"));
        }
        let strips = match weight.shape[..] {
            [.., n, k] => n.is_multiple_of(layout.rows() as u64) && k.is_multiple_of(layout.block_len() as u64),
            _ => false,
        };
        if !strips {
            return Err(format!(
                "has the layout {layout}, but not whole strips of {} rows in whole blocks",
                layout.rows()
            ));
        }
    }
    if let &Some(found) = activations {
        let own = layout.unwrap_or(weight.format).activation();
        let pairs = layout.and_then(Format::pair_activation);
        if ![Some(own), own.row().tiles, pairs].contains(&Some(found)) {
            return Err(format!("has activations in {found}; its products take {own}, or {own} with bf16 copies"));
        }
        let whole = weight.shape.last().is_some_and(|k| k.is_multiple_of(found.block_len() as u64));
        if !whole {
            return Err(format!(
                "has activations in {found}, but its columns are not a multiple of the blocks of {found}"
            ));
        }
    }
    match [tile, why].into_iter().flatten().all(|text| text.len() <= CHOICE_CHARS) {
        true => Ok(()),
        false => Err(format!("has a tile or why of more than {CHOICE_CHARS} bytes")),
    }
}
