//! Reader of experts that KTransformers' converter packed (kt-kernel, `convert_cpu_weights.py`,
//! methods `int8` and `int4`).
//!
//! All other tensors are copied unchanged. Their names are those of transformers, but with `blk.`
//! for `model.layers.` and without `model.`. Each expert's matrix is stored as two vectors for each
//! NUMA node:
//!
//! ```text
//! blk.3.ffn_up_exps.7.numa.0.weight   I8    integers of 4 or 8 bits, in AMX tiles ([`Tiles`])
//! blk.3.ffn_up_exps.7.numa.0.scale    F32   a scale for each row:
//!     8 bits: x = scale * integer; 4 bits: x = 16 * scale * integer
//! ```
//!
//! Gate and up matrices are divided among nodes by rows, down matrices by columns. The converter
//! quantised each node's part separately. A row of gate or up therefore has one scale, and a row of
//! down has one for each node. Gate and up get a format with a scale for each row; down gets a
//! format with a scale for a few columns. Neither conversion rounds numbers.
//!
//! Files do not state the kernels that they were packed for: AMX kernels, or other kernels
//! (`moe_int8`, `moe_int4`). The names and lengths are the same, but other kernels need the bytes
//! in another order. Both ways of packing quantise the largest number of a row to the largest
//! integer. If the bytes, read in AMX order, give a row without this integer, they were packed for
//! other kernels ([`check`]).

use std::collections::BTreeMap;

use ixc_ir::derived::{Axis, Change, Derivation, Element, Piece, ScaleKind, Scales, Tiles};
use ixc_ir::format::{FORMATS, Format};

use super::error::{CheckpointError, PackedFault};
use super::shards::{Shards, StoredTensor};
use super::sizes::Sizes;

/// Maximum number of NUMA nodes.
const MAX_NODES: u64 = 256;
/// Number of rows that are checked to detect the kernels that a folder was packed for.
const CHECKED_ROWS: u64 = 16;

/// Packing method: the layout of its integers, and their scale.
struct IntegerPacking {
    method: &'static str,
    bits: u8,
    /// Rows and columns of a block of tiles: `N_BLOCK` and `K_BLOCK` of kt-kernel's
    /// `GemmKernel224Int8` and `GemmKernel224Int4`.
    block: [u64; 2],
    /// Factor on the stored scales. It is 16 for four-bit integers, which kt-kernel holds in the
    /// upper half of a byte.
    scale: f32,
    /// Integer to which the largest number of a row is quantised.
    largest: u8,
}

impl IntegerPacking {
    /// Returns the format for these integers, with a scale for each row (`by_row`) or for a few
    /// columns.
    fn format(&self, by_row: bool) -> Format {
        let mut formats = FORMATS.iter().map(|row| row.format);
        let found = formats.find(|format| format.takes_integers(self.bits.into()) && format.has_row_scale() == by_row);
        found.unwrap_or_else(|| unreachable!("integers of {} bits have formats", self.bits))
    }
}

static PACKINGS: [IntegerPacking; 2] = [
    IntegerPacking { method: "AMXINT8", bits: 8, block: [64, 3584], scale: 1.0, largest: 127 },
    IntegerPacking { method: "AMXINT4", bits: 4, block: [128, 3584], scale: 16.0, largest: 7 },
];

/// Dimension in which an expert's matrix is divided among nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SplitDim {
    Rows,
    Columns,
}

/// Names of an expert's matrices, each with the dimension in which it is divided.
static MATRICES: [(&str, SplitDim); 3] =
    [("ffn_gate_exps", SplitDim::Rows), ("ffn_up_exps", SplitDim::Rows), ("ffn_down_exps", SplitDim::Columns)];
/// Name part of transposed copies of matrices. They serve training and are ignored.
const FOR_TRAINING: &str = "_bwd_exps";

/// Tensor with all experts, for one matrix of a layer.
pub(super) struct StackedExperts {
    /// Name of the tensor in GGUF files.
    pub name: String,
    pub derived: Derivation,
    /// Dimensions, the row length first.
    pub dims: Vec<u64>,
}

/// Stored tensors of one node's part of a matrix: integers and scales.
#[derive(Default)]
struct NodePart {
    weight: Option<StoredTensor>,
    scale: Option<StoredTensor>,
}

/// Identifier of a matrix: its layer, and its index in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LayerMatrix {
    layer: u64,
    /// Index in [`MATRICES`].
    matrix: usize,
}
/// Parts of a matrix, by expert and node.
type NodeParts = BTreeMap<(u64, u64), NodePart>;

/// Removes packed experts from a folder's tensors. Returns a tensor with all experts for each layer
/// and matrix.
///
/// # Errors
/// When a part is missing, has another number of bytes than its matrix needs, or was packed for
/// other kernels.
pub(super) fn experts(shards: &mut Shards, sizes: &Sizes) -> Result<Vec<StackedExperts>, CheckpointError> {
    let is_packed = |name: &str| name.starts_with("blk.") && name.contains("_exps.");
    let names: Vec<Box<str>> = shards.tensors.keys().filter(|name| is_packed(name)).cloned().collect();
    let mut found: BTreeMap<LayerMatrix, NodeParts> = BTreeMap::new();
    for name in names {
        let Some(stored) = shards.tensors.remove(&name) else { continue };
        if name.contains(FOR_TRAINING) {
            continue;
        }
        let Some((place, expert, node, is_scale)) = parse_name(&name) else {
            let fault = PackedFault::Name;
            return Err(CheckpointError::StackedExperts { path: shards.folder.clone(), tensor: name, fault });
        };
        if place.layer >= sizes.layers {
            continue;
        }
        if expert >= sizes.experts || node >= MAX_NODES {
            let expected = format!("an expert below {} and a NUMA node below {MAX_NODES}", sizes.experts);
            return Err(shards.wrong(&name, format!("packed for expert {expert} and NUMA node {node}"), expected));
        }
        let part = found.entry(place).or_default().entry((expert, node)).or_default();
        *(if is_scale { &mut part.scale } else { &mut part.weight }) = Some(stored);
    }
    let mut packed = Vec::with_capacity(found.len());
    for (number, (LayerMatrix { layer, matrix }, parts)) in found.into_iter().enumerate() {
        let (name, split_dim) = MATRICES[matrix];
        let name = format!("blk.{layer}.{name}");
        packed.push(stack_experts(shards, sizes, &name, split_dim, &parts)?);
        // All tensors of a folder are packed for the same kernels, so only the first tensor is
        // checked.
        if number == 0 {
            check(shards, &name, &packed[0])?;
        }
    }
    Ok(packed)
}

/// Parses a tensor name. Returns its layer and matrix, expert and node, and whether the tensor
/// holds scales.
fn parse_name(name: &str) -> Option<(LayerMatrix, u64, u64, bool)> {
    let mut words = name.strip_prefix("blk.")?.split('.');
    let mut word = || words.next();
    let layer = word()?.parse().ok()?;
    let matrix = word()?;
    let matrix = MATRICES.iter().position(|(known, _)| *known == matrix)?;
    let expert = word()?.parse().ok()?;
    (word()? == "numa").then_some(())?;
    let node = word()?.parse().ok()?;
    let is_scale = match word()? {
        "weight" => false,
        "scale" => true,
        _ => return None,
    };
    words.next().is_none().then_some((LayerMatrix { layer, matrix }, expert, node, is_scale))
}

/// Returns the tensor with all experts, for one matrix of a layer.
fn stack_experts(
    shards: &Shards,
    sizes: &Sizes,
    name: &str,
    split_dim: SplitDim,
    parts: &NodeParts,
) -> Result<StackedExperts, CheckpointError> {
    let nodes = parts.keys().map(|(_, node)| node + 1).max().unwrap_or(1);
    let [rows, columns] = match split_dim {
        SplitDim::Rows => [sizes.expert_width, sizes.width],
        SplitDim::Columns => [sizes.width, sizes.expert_width],
    };
    let own = |len: u64, along: SplitDim| if split_dim == along { len / nodes } else { len };
    let [own_rows, own_columns] = [own(rows, SplitDim::Rows), own(columns, SplitDim::Columns)];
    let first = parts.values().find_map(|part| part.weight.as_ref());
    let missing = |expert: u64, node: u64, end: &str| CheckpointError::TensorMissing {
        path: shards.folder.clone(),
        tensor: format!("{name}.{expert}.numa.{node}.{end}").into(),
    };
    let first = &first.ok_or_else(|| missing(0, 0, "weight"))?.entry;
    let bytes = |bits: u8| u128::from(own_rows) * u128::from(own_columns) * u128::from(bits) / 8;
    let packing = PACKINGS.iter().find(|packing| bytes(packing.bits) == u128::from(first.bytes)).ok_or_else(|| {
        let each = PACKINGS.iter().map(|packing| format!("{} ({})", bytes(packing.bits), packing.method));
        let expected = format!(
            "{} bytes for {own_rows} rows and {own_columns} columns, the part of one node: {rows} by {columns} for {nodes} nodes",
            each.collect::<Vec<_>>().join(" or ")
        );
        shards.wrong(&first.name, format!("{} bytes", first.bytes), expected)
    })?;
    let [block_rows, block_columns] = packing.block;
    let tiles = Tiles { bits: packing.bits, rows: own_rows, columns: own_columns, block_rows, block_columns };
    let whole = match split_dim {
        SplitDim::Rows => own_rows.checked_mul(nodes) == Some(rows),
        SplitDim::Columns => own_columns.checked_mul(nodes) == Some(columns),
    };
    if tiles.bytes() != Some(first.bytes) || !whole {
        let found = format!("one node's part of a matrix of {rows} by {columns} for {nodes} nodes");
        let expected = format!("parts of whole tiles of 32 rows by {} columns", 512 / u64::from(packing.bits));
        return Err(shards.wrong(&first.name, found, expected));
    }
    let mut pieces = Vec::new();
    for expert in 0..sizes.experts {
        for node in 0..nodes {
            let part = parts.get(&(expert, node));
            let weight = part.and_then(|part| part.weight.as_ref()).ok_or_else(|| missing(expert, node, "weight"))?;
            let scale = part.and_then(|part| part.scale.as_ref()).ok_or_else(|| missing(expert, node, "scale"))?;
            let types = [(weight, first.bytes, &["I8", "U8"][..]), (scale, 4 * own_rows, &["F32"])];
            for (StoredTensor { entry, .. }, bytes, names) in types {
                if entry.bytes != bytes || !names.contains(&entry.dtype.name) {
                    let found = format!("{} bytes of {}", entry.bytes, entry.dtype.name);
                    return Err(shards.wrong(&entry.name, found, format!("{bytes} bytes of {}", names[0])));
                }
            }
            pieces.push(node_piece(tiles, packing, weight, scale));
        }
    }
    let pieces_per_row = if split_dim == SplitDim::Columns { nodes as u32 } else { 1 };
    let format = packing.format(pieces_per_row == 1);
    let dims = vec![columns, rows, sizes.experts];
    Ok(StackedExperts {
        name: format!("{name}.weight"),
        derived: Derivation { format, columns, pieces_per_row, pieces },
        dims,
    })
}

/// Returns one node's part of a matrix as a piece of a derived tensor.
fn node_piece(tiles: Tiles, packing: &IntegerPacking, weight: &StoredTensor, scale: &StoredTensor) -> Piece {
    let Tiles { rows, columns, .. } = tiles;
    Piece {
        extent: weight.extent(),
        element: Element::Tiled(tiles),
        first: 0,
        rows: vec![Axis { len: rows, stride: columns }],
        columns: vec![Axis { len: columns, stride: 1 }],
        scales: Some(Scales {
            extent: scale.extent(),
            kind: ScaleKind::Number(Element::F32),
            block_rows: 1,
            block_columns: columns,
            columns,
        }),
        groups: None,
        change: if packing.scale == 1.0 { Change::Keep } else { Change::Times([packing.scale, 1.0]) },
    }
}

/// Checks that a matrix was packed for AMX kernels. Each of its first rows must have the largest
/// integer, except rows of zeros.
fn check(shards: &Shards, name: &str, packed: &StackedExperts) -> Result<(), CheckpointError> {
    let lengths = shards.lengths();
    let StackedExperts { derived, .. } = packed;
    let wrong = |source| CheckpointError::Derived { path: shards.folder.clone(), tensor: name.into(), source };
    derived.check(&lengths).map_err(wrong)?;
    let Some(packing) = PACKINGS.iter().find(|packing| derived.format.takes_integers(packing.bits.into())) else {
        return Ok(());
    };
    let fetch = |file: u32, offset: u64, out: &mut [u8]| shards.fetch(file, offset, out);
    let row_bytes = derived.format.row_bytes(derived.columns).unwrap_or(0);
    let mut rows = vec![0; (CHECKED_ROWS * row_bytes) as usize];
    if !derived.clone().with_index().read(0, &mut rows, &fetch) {
        return Ok(());
    }
    for (row, bytes) in rows.chunks_exact(row_bytes as usize).enumerate() {
        let numbers = derived.format.dequantise_rows(bytes, derived.columns as usize);
        let max = numbers.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = derived.pieces.first().and_then(|piece| piece.scales.as_ref()).map(|scales| {
            let mut bytes = [0u8; 4];
            fetch(scales.extent.file, scales.extent.offset + 4 * row as u64, &mut bytes);
            (f32::from_le_bytes(bytes) * packing.scale).abs()
        });
        let Some(scale) = scale.filter(|scale| scale.is_normal()) else { continue };
        let largest = (max / scale).round();
        if largest != f32::from(packing.largest) {
            let fault = PackedFault::Order { row, found: largest, method: packing.method, expected: packing.largest };
            return Err(CheckpointError::StackedExperts { path: shards.folder.clone(), tensor: name.into(), fault });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_tensor_names_encode_layer_matrix_expert_node() {
        assert_eq!(
            parse_name("blk.12.ffn_down_exps.7.numa.1.scale"),
            Some((LayerMatrix { layer: 12, matrix: 2 }, 7, 1, true))
        );
        assert_eq!(
            parse_name("blk.0.ffn_gate_exps.0.numa.0.weight"),
            Some((LayerMatrix { layer: 0, matrix: 0 }, 0, 0, false))
        );
        for other in [
            "blk.0.ffn_gate_exps.0.weight",
            "blk.0.ffn_gate_exps.0.numa.0.qzeros",
            "blk.0.ffn_gate_exps.0.numa.0.weight.1",
            "blk.0.ffn_gate_exps.-1.numa.0.weight",
            "blk.x.ffn_gate_exps.0.numa.0.weight",
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
