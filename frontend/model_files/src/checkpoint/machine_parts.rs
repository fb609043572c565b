//! Reader of experts that are divided among several machines. Each machine has a file with its
//! parts, under the same tensor names. Grok 2 was published in this form, for eight machines.
//!
//! ```text
//! pytorch_model-00000-TP-common.safetensors     tensors that are not divided
//! pytorch_model-00006-TP-003.safetensors        the fourth machine's parts of tensors:
//!     model.layers.0.block_sparse_moe.experts.7.w1.weight  bf16[2048, 8192]
//! ```
//!
//! A folder in this form has no index. Gate and up matrices are divided by rows, down matrices by
//! columns; the shapes of the parts show this. The division is that of
//! `_prepare_presharded_weights` and `use_presharded_weights` in SGLang's `grok.py`, which Grok 2's
//! authors wrote. All other tensors are not divided.

use std::collections::BTreeMap;

use ixc_ir::derived::{Axis, Change, Derivation, Piece};

use super::error::CheckpointError;
use super::families::Family;
use super::names::{self, SHARED};
use super::packed::StackedExperts;
use super::shards::{Shards, StoredTensor};
use super::sizes::Sizes;

/// Maximum number of machines.
const MAX_MACHINES: u64 = 256;
/// Name ending of the experts' matrix that is divided by columns.
const LAST: &str = "ffn_down_exps.weight";

/// Experts of a matrix, by expert id. Each has its stored name, and the parts of all machines in
/// order.
type Experts = BTreeMap<u64, (Box<str>, Vec<StoredTensor>)>;

/// Removes divided experts from a folder's tensors. Returns, for each layer and matrix, a tensor
/// with all experts.
///
/// # Errors
/// When a part is missing or has an unexpected shape, or when a divided tensor is not an expert's
/// matrix.
pub(super) fn experts(
    shards: &mut Shards,
    family: &Family,
    sizes: &Sizes,
) -> Result<Vec<StackedExperts>, CheckpointError> {
    let parts = std::mem::take(&mut shards.parts);
    let machines = parts.values().flat_map(|of| of.keys()).max().map_or(0, |last| last.saturating_add(1));
    if let Some((name, _)) = parts.first_key_value().filter(|_| machines > MAX_MACHINES) {
        return Err(shards.wrong(name, format!("of machine {}", machines - 1), format!("below {MAX_MACHINES}")));
    }
    let mut found: BTreeMap<String, Experts> = BTreeMap::new();
    for (stored, of_machines) in parts {
        let matched = super::decoder_name(&stored).and_then(|name| {
            let mut rules = family.tensors.iter().copied().flatten().chain(SHARED);
            rules.find_map(|rule| names::matches(rule, sizes, &name))
        });
        let expert = matched.as_ref().and_then(|found| found.part_index).filter(|of| of.is_stacked);
        let (Some(matched), Some(expert)) = (matched, expert) else {
            return Err(shards.wrong(
                &stored,
                "one machine's part of a tensor that is not an expert".to_owned(),
                "a part of an expert's matrix, or the whole tensor",
            ));
        };
        if matched.layer.is_some_and(|layer| layer >= sizes.layers) {
            continue;
        }
        if expert.number >= sizes.experts {
            return Err(shards.wrong(
                &stored,
                format!("of expert {}", expert.number),
                format!("below {}", sizes.experts),
            ));
        }
        if let Some(machine) = (0..machines).find(|machine| !of_machines.contains_key(machine)) {
            let tensor = format!("{stored}, machine {machine}").into();
            return Err(CheckpointError::TensorMissing { path: shards.folder.clone(), tensor });
        }
        let of_machines = of_machines.into_values().collect();
        found.entry(matched.to).or_default().insert(expert.number, (stored, of_machines));
    }
    found.into_iter().map(|(name, experts)| stack_experts(shards, sizes, name, &experts, machines)).collect()
}

/// Returns the tensor with all experts, for the matrix `name` of a layer.
fn stack_experts(
    shards: &Shards,
    sizes: &Sizes,
    name: String,
    experts: &Experts,
    machines: u64,
) -> Result<StackedExperts, CheckpointError> {
    let by_columns = name.ends_with(LAST);
    let (rows, columns) =
        if by_columns { (sizes.width, sizes.expert_width) } else { (sizes.expert_width, sizes.width) };
    let along = if by_columns { columns } else { rows };
    let own = if by_columns { [rows, columns / machines] } else { [rows / machines, columns] };
    if let Some(missing) = (0..sizes.experts).find(|expert| !experts.contains_key(expert)) {
        let tensor = format!("{name}, expert {missing}").into();
        return Err(CheckpointError::TensorMissing { path: shards.folder.clone(), tensor });
    }
    let (mut pieces, mut element) = (Vec::new(), None);
    for (stored, parts) in experts.values() {
        for part in parts {
            let entry = &part.entry;
            let found = entry.dtype.element.filter(|found| element.is_none_or(|element| element == *found));
            let Some(found) = found.filter(|_| entry.shape[..] == own && along.is_multiple_of(machines)) else {
                let found = format!("{:?} of {}", entry.shape, entry.dtype.name);
                let expected = format!(
                    "a part of shape {own:?}, with one number type in all parts, of a matrix of {rows} by {columns} on {machines} machines"
                );
                return Err(shards.wrong(stored, found, expected));
            };
            element = Some(found);
            pieces.push(Piece {
                extent: part.extent(),
                element: found,
                first: 0,
                rows: vec![Axis { len: own[0], stride: own[1] }],
                columns: vec![Axis { len: own[1], stride: 1 }],
                scales: None,
                groups: None,
                change: Change::Keep,
            });
        }
    }
    let nothing = || shards.wrong(&name, "without parts".to_owned(), "a tensor of the model");
    let format = element.ok_or_else(nothing)?.scaled_format();
    let pieces_per_row = if by_columns { machines as u32 } else { 1 };
    let dims = vec![columns, rows, sizes.experts];
    Ok(StackedExperts { name, derived: Derivation { format, columns, pieces_per_row, pieces }, dims })
}
