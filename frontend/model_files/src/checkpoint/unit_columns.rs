//! Conversion of output matrices whose columns the model divides by their length (`norm_head` of
//! Ling 1). The division is moved into the weight of the norm before the matrix.
//!
//! ```text
//! logits = sum_j head[i, j] / (|head[.., j]| + 1e-7) * norm[j] * x[j]
//! so norm[j] becomes norm[j] / (|head[.., j]| + 1e-7)
//! ```
//!
//! The length of a column is a sum over all rows. The matrix is therefore read once when a folder
//! is opened, a few rows at a time. The stored matrix stays unchanged.

use std::collections::BTreeMap;

use ixc_ir::derived::Derivation;
use ixc_ir::format::Format;

use super::TensorGroup;
use super::array;
use super::error::CheckpointError;
use super::packed::StackedExperts;
use super::shards::Shards;

const HEAD: &str = "output.weight";
const NORM: &str = "output_norm.weight";
/// Number that the model adds to lengths (`modeling_bailing_moe`, `compute_logit`).
const LENGTH_EPSILON: f64 = 1e-7;
/// Number of rows that are read at a time.
const ROWS: u64 = 64;

/// Returns the new weight of the norm before the output matrix, and removes the stored weight.
///
/// # Errors
/// When the matrix is missing, or no norm has as many numbers as the matrix has columns.
pub(super) fn norm(
    shards: &Shards,
    made: &mut BTreeMap<String, TensorGroup>,
) -> Result<StackedExperts, CheckpointError> {
    let missing = |name: &str| CheckpointError::TensorMissing { path: shards.folder.clone(), tensor: name.into() };
    let head = made.get(HEAD).ok_or_else(|| missing(HEAD))?;
    let mut squares = Vec::new();
    rows(shards, HEAD, head, |row| {
        squares.resize(row.len(), 0f64);
        squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
    })?;
    let stored = made.remove(NORM).ok_or_else(|| missing(NORM))?;
    let mut numbers: Vec<f32> = Vec::new();
    rows(shards, NORM, &stored, |row| numbers.extend(row))?;
    if numbers.len() != squares.len() {
        let expected = format!("{}, the number of columns of {HEAD}", squares.len());
        return Err(shards.wrong(NORM, format!("{} numbers", numbers.len()), expected));
    }
    let divided =
        numbers.iter().zip(squares).map(|(x, square)| (f64::from(*x) / (square.sqrt() + LENGTH_EPSILON)) as f32);
    let derived = Derivation::of_numbers(&divided.collect::<Vec<f32>>());
    let dims = vec![derived.columns];
    Ok(StackedExperts { name: NORM.to_owned(), derived, dims })
}

/// Calls `take` with each row of a tensor, in single precision.
fn rows(shards: &Shards, name: &str, group: &TensorGroup, mut take: impl FnMut(&[f32])) -> Result<(), CheckpointError> {
    let wrong =
        || shards.wrong(name, "a tensor whose type or shape is not supported here".to_owned(), "a tensor of numbers");
    let (derived, _) = array::concatenate(&group.arrays, group.is_stacked, Format::F32).ok_or_else(wrong)?;
    let source = |source| CheckpointError::Derived { path: shards.folder.clone(), tensor: name.into(), source };
    derived.check(&shards.lengths()).map_err(source)?;
    let row_bytes = 4 * derived.columns;
    let end = derived.bytes().unwrap_or(0);
    let derived = derived.with_index();
    let mut bytes = vec![0u8; (ROWS * row_bytes).min(end) as usize];
    let mut row = vec![0f32; derived.columns as usize];
    let fetch = |file: u32, offset: u64, out: &mut [u8]| shards.fetch(file, offset, out);
    for begin in (0..end).step_by(bytes.len().max(1)) {
        let part = &mut bytes[..(end - begin).min(ROWS * row_bytes) as usize];
        if !derived.read(begin, part, &fetch) {
            return Err(wrong());
        }
        for stored in part.chunks_exact(row_bytes as usize) {
            row.iter_mut().zip(stored.as_chunks().0).for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
            take(&row);
        }
    }
    Ok(())
}
