//! Reader of matrices of integers with a scale for each group of columns, as GPTQ, AWQ and
//! compressed-tensors pack them.
//!
//! ```text
//! gptq             q_proj.qweight        I32 [in / 8, out]
//!     word w of a row holds columns 8 w .. 8 w + 7 of the matrix, the first in its lowest bits
//!                  q_proj.scales         F16 [groups, out]
//!                  q_proj.qzeros         I32 [groups, out / 8]
//!     zero points of rows 8 w .. 8 w + 7, each minus 1 (unchanged in `gptq_v2`)
//!                  q_proj.g_idx          I32 [in]
//!     the group of each column
//! awq, gemm        q_proj.qweight        I32 [in, out / 8]
//!     word w holds rows 8 w + 0, 2, 4, 6, 1, 3, 5, 7; zeros and scales have the same order
//! pack-quantized   q_proj.weight_packed  I32 [out, in / 8]
//!     columns in order; scales [out, groups], zeros I32 [out / 8, groups]
//! int-quantized    q_proj.weight         I8  [out, in]
//!     scales [out, 1], or one scale
//! bitsandbytes     q_proj.weight         I8  [out, in]
//!     127 stands for the largest number of the row, in q_proj.SCB F32 [out]
//! bitnet           q_proj.weight         U8  [out / 4, in]
//!     byte r of a column holds rows r, r + out / 4, r + out / 2, r + 3 out / 4; one scale
//! ```
//!
//! In this example, an integer has four bits. If it has eight, a word holds four integers. The
//! derived tensor is described by [`Groups`](ixc_ir::derived::Groups). Its format is Q4_0, Q4_1,
//! Q8_0 or TQ2_0.

use ixc_ir::derived::{Element, Integers};

use super::array::{Array, ColumnOrder, GroupScales};
use super::config::Config;
use super::error::CheckpointError;
use super::safetensors::Entry;
use super::shards::{Shards, StoredTensor};

/// Number of bits in a word.
const WORD: u64 = 32;
/// Number of columns in a block of Q4_0, Q4_1 and Q8_0.
const BLOCK: u64 = 32;
/// Number of bytes of each tensor of zero points that are checked.
const CHECKED_BYTES: u64 = 4096;

/// Order in which the integers of a matrix are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// compressed-tensors: each word holds columns of one row.
    Words,
    /// compressed-tensors: bytes in two's complement.
    Bytes,
    /// GPTQ. `more` is added to each stored zero point.
    Gptq { more: u8 },
    /// AWQ.
    Awq,
    /// bitsandbytes: bytes in two's complement. Its scales are the largest numbers of rows.
    Largest,
    /// BitNet: each byte holds four integers, one of each quarter of the rows.
    Ternary,
}

/// Packing of a configuration's integer matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scheme {
    layout: Layout,
    bits: u8,
    /// Whether each group has its own zero point.
    zeros: bool,
    /// Number of columns in a group; `None` if it is not stated, or if a group is a whole row.
    group: Option<u64>,
}

/// Dimensions of a matrix, and the number of equal groups of its columns.
struct GroupGrid<'a> {
    /// All dimensions except the last.
    rows: &'a [u64],
    columns: u64,
    /// Number of groups in a row: at least 1, and a divisor of `columns`.
    groups: u64,
}

impl GroupGrid<'_> {
    fn columns_of_group(&self) -> u64 {
        self.columns / self.groups
    }
}

impl Scheme {
    /// Formats of compressed-tensors whose weights are integers.
    pub(super) const FORMATS: [&str; 2] = ["pack-quantized", "int-quantized"];

    /// Reads `quantization_config`. Returns `None` for other methods, such as compressed-tensors.
    /// The module `quantisation` reads or refuses these methods.
    ///
    /// # Errors
    /// When a property has an unsupported value.
    pub(super) fn read(config: &Config) -> Result<Option<Scheme>, CheckpointError> {
        match config.text(&["quant_method"])? {
            Some("gptq") => Scheme::gptq(config).map(Some),
            Some("awq") => Scheme::awq(config).map(Some),
            Some("bitsandbytes") | None if is_eight_bits(config)? => {
                Ok(Some(Scheme { layout: Layout::Largest, bits: 8, zeros: false, group: None }))
            }
            Some("bitnet") => Scheme::ternary(config).map(Some),
            Some("auto-round") => match config.text(&["packing_format"])?.unwrap_or("auto_round:auto_gptq") {
                "auto_round:auto_gptq" => Scheme::gptq(config).map(Some),
                "auto_round:auto_awq" => Scheme::awq(config).map(Some),
                other => Err(config.wrong("packing_format", other, "auto_round:auto_gptq or auto_round:auto_awq")),
            },
            _ => Ok(None),
        }
    }

    fn gptq(config: &Config) -> Result<Scheme, CheckpointError> {
        // `format` is another name for `checkpoint_format`.
        match config.text(&["format"])? {
            Some(format) if !["gptq", "gptq_v2"].contains(&format) => {
                return Err(config.wrong("format", format, "gptq or gptq_v2"));
            }
            _ => {}
        }
        let more = match config.text(&["checkpoint_format", "format"])? {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(other) => return Err(config.wrong("checkpoint_format", other, "gptq or gptq_v2")),
        };
        let symmetric = config.flag(&["sym"])?.unwrap_or(true);
        Scheme::common(config, Layout::Gptq { more }, &[4, 8], "bits", "sym", symmetric)
    }

    /// Reads BitNet's scheme: ternary weights that were quantised offline, and are multiplied by
    /// their scale. Refuses the class that divides by the scale, and weights that are rounded at
    /// run time.
    fn ternary(config: &Config) -> Result<Scheme, CheckpointError> {
        for (key, usual, right) in
            [("linear_class", "bitlinear", "autobitlinear"), ("quantization_mode", "offline", "offline")]
        {
            match config.text(&[key])?.unwrap_or(usual) {
                found if found == right => {}
                other => {
                    return Err(config.wrong(
                        key,
                        format!("\"{other}\""),
                        format!("\"{right}\": nothing else is supported"),
                    ));
                }
            }
        }
        Ok(Scheme { layout: Layout::Ternary, bits: 2, zeros: false, group: None })
    }

    fn awq(config: &Config) -> Result<Scheme, CheckpointError> {
        // Quantisers that support several methods write `checkpoint_format` or `format`.
        for key in ["version", "checkpoint_format", "format"] {
            match config.text(&[key])? {
                Some(kernel) if !kernel.eq_ignore_ascii_case("gemm") => return Err(config.wrong(key, kernel, "gemm")),
                _ => {}
            }
        }
        if config.flag(&["zero_point"])? == Some(false) {
            return Err(config.wrong("zero_point", "false", "true"));
        }
        Scheme::common(config, Layout::Awq, &[4], "bits", "zero_point", false)
    }

    /// Reads the scheme of a configuration group of compressed-tensors, whose weights have this
    /// format. Returns `None` if the weights are not integers.
    ///
    /// # Errors
    /// When a property has an unsupported value.
    pub(super) fn compressed_tensors_scheme(weights: &Config, format: &str) -> Result<Option<Scheme>, CheckpointError> {
        let (layout, widths) = match format {
            "pack-quantized" => (Layout::Words, &[4, 8][..]),
            "int-quantized" => (Layout::Bytes, &[8][..]),
            _ => return Ok(None),
        };
        match weights.text(&["type"])? {
            None | Some("int") => {}
            Some(other) => return Err(weights.wrong("type", format!("\"{other}\""), "int")),
        }
        let symmetric = weights.flag(&["symmetric"])?.unwrap_or(true);
        Scheme::common(weights, layout, widths, "num_bits", "symmetric", symmetric).map(Some)
    }

    /// Returns a scheme from the properties that all methods have: bits of an integer, columns of a
    /// group, and presence of zero points. `bits_key` and `symmetry_key` are the names of two of
    /// them.
    fn common(
        config: &Config,
        layout: Layout,
        widths: &[u8],
        bits_key: &str,
        symmetry_key: &str,
        symmetric: bool,
    ) -> Result<Scheme, CheckpointError> {
        let found = config.count(&[bits_key])?.unwrap_or(4);
        let Some(&bits) = widths.iter().find(|width| u32::from(**width) == found) else {
            let right: Vec<String> = widths.iter().map(u8::to_string).collect();
            return Err(config.wrong(bits_key, found.to_string(), right.join(" or ")));
        };
        if bits == 8 && !symmetric {
            return Err(config.wrong(
                symmetry_key,
                "a value that requests zero points for integers of 8 bits",
                "no zero points, because only integers of 4 bits may have them",
            ));
        }
        // A size of -1 means that a group is a whole row.
        let group = config.value("group_size").and_then(serde_json::Value::as_u64).filter(|group| *group > 0);
        Ok(Scheme { layout, bits, zeros: !symmetric, group })
    }

    /// Returns the name of the matrix, without quantisation, whose integers the tensor `name`
    /// holds. `None` if it holds no integers.
    fn matrix(&self, name: &str, entry: &Entry) -> Option<String> {
        match self.layout {
            Layout::Words => name.strip_suffix("_packed").map(str::to_owned),
            Layout::Bytes | Layout::Largest => {
                (entry.dtype.name == "I8" && name.ends_with(".weight")).then(|| name.to_owned())
            }
            Layout::Ternary => (entry.dtype.name == "U8" && name.ends_with(".weight")).then(|| name.to_owned()),
            Layout::Gptq { .. } | Layout::Awq => Some(format!("{}.weight", name.strip_suffix(".qweight")?)),
        }
    }

    /// Returns whether a tensor holds scales, zero points or other data of a matrix.
    pub(super) fn is_companion(&self, shards: &Shards, name: &str) -> bool {
        let has = |name: String| shards.tensors.contains_key(&*name);
        let ends: &[&str] = match self.layout {
            Layout::Words | Layout::Bytes | Layout::Ternary => &["_scale", "_zero_point", "_shape", "_g_idx"],
            Layout::Gptq { .. } | Layout::Awq => &[".scales", ".qzeros", ".g_idx"],
            Layout::Largest => &[".SCB", ".weight_format"],
        };
        let of = ends.iter().find_map(|end| name.strip_suffix(end));
        match self.layout {
            Layout::Words => of.is_some_and(|of| has(format!("{of}_packed"))),
            Layout::Bytes | Layout::Ternary => of.is_some_and(|of| has(of.to_owned())),
            Layout::Largest => of.is_some_and(|of| has(format!("{of}.weight"))),
            Layout::Gptq { .. } | Layout::Awq => {
                // Early quantisers wrote biases of zeros for models without biases.
                of.is_some_and(|of| has(format!("{of}.qweight")))
                    || name.strip_suffix(".bias").is_some_and(|of| has(format!("{of}.qweight")))
                        && shards.bytes(name, u64::MAX).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
            }
        }
    }

    /// Returns the name and the view of the matrix whose integers the tensor `name` holds.
    ///
    /// # Errors
    /// When the matrix's scales or zero points are missing, or have an unexpected shape or type.
    pub(super) fn weight(&self, shards: &Shards, name: &str) -> Result<Option<(String, Array)>, CheckpointError> {
        let Some(stored) = shards.tensors.get(name) else { return Ok(None) };
        let entry = &stored.entry;
        let Some(matrix) = self.matrix(name, entry) else { return Ok(None) };
        let wrong = |name: &str, entry: &Entry, expected: String| {
            shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), expected)
        };
        let word = match self.layout {
            Layout::Bytes | Layout::Largest => "I8",
            Layout::Ternary => "U8",
            Layout::Words | Layout::Gptq { .. } | Layout::Awq => "I32",
        };
        let array = self
            .integer_matrix(stored)
            .filter(|array| entry.dtype.name == word && array.len(array.rank() - 1).is_multiple_of(BLOCK));
        let array = array.ok_or_else(|| {
            wrong(name, entry, format!("a matrix of {word} whose rows are whole blocks of {BLOCK} columns"))
        })?;
        let shape = array.shape();
        let Some((&columns, rows)) = shape.split_last() else { return Ok(None) };
        let base = match self.layout {
            Layout::Words | Layout::Bytes | Layout::Ternary => matrix.as_str(),
            Layout::Gptq { .. } | Layout::Awq => name.trim_end_matches(".qweight"),
            Layout::Largest => name.trim_end_matches(".weight"),
        };
        let (scales_name, scale_tensor, number) = self.scales(shards, name, base)?;
        let scales = Array::whole(scale_tensor.extent(), number, &scale_tensor.entry.shape);
        let scales = self.scales_by_row(scales, rows);
        let scales = scales.filter(|array| array.shape().split_last().is_some_and(|(_, of)| of == rows));
        let groups = scales.as_ref().map_or(0, |array| array.len(array.rank() - 1));
        let group = if groups > 0 && columns.is_multiple_of(groups) { columns / groups } else { 0 };
        let scales = scales.filter(|_| group > 0).ok_or_else(|| {
            let expected =
                format!("scales for groups of columns of each row of {name}, whose shape is {:?}", entry.shape);
            wrong(&scales_name, &scale_tensor.entry, expected)
        })?;
        // With an incomplete last group, the number of groups could be the same. But its groups
        // would have other columns than groups of equal size.
        if let Some(config) =
            self.group.filter(|config| groups > 1 && columns.div_ceil(*config) == groups && group != *config)
        {
            let found = format!("scales for {groups} groups of {config} columns (group_size)");
            return Err(shards.wrong(
                &scales_name,
                found,
                format!("groups that divide the {columns} columns of {name}"),
            ));
        }
        let grid = GroupGrid { rows, columns, groups };
        let zeros = self.zeros(shards, base, &grid)?;
        let order = self.order(shards, base, &grid)?;
        let grouped = expand_groups(scales, zeros, order, &grid);
        let grouped = grouped.ok_or_else(|| {
            shards.wrong(
                name,
                format!("a matrix of shape {shape:?} whose columns have an unsupported order of groups"),
                "a matrix",
            )
        })?;
        Ok(Some((matrix, array.with_group_scales(grouped))))
    }

    /// Returns the element type of the integers.
    fn integers(&self) -> Integers {
        match (self.bits, self.zeros, self.layout) {
            (_, _, Layout::Bytes) => Integers::EightSigned,
            (_, _, Layout::Largest) => Integers::EightOfLargest,
            (_, _, Layout::Ternary) => Integers::Ternary,
            (4, true, _) => Integers::FourFromZeros,
            (4, false, _) => Integers::Four,
            _ => Integers::Eight,
        }
    }

    /// Returns the view `[.., rows, columns]` of a matrix that is stored as words or bytes.
    fn integer_matrix(&self, stored: &StoredTensor) -> Option<Array> {
        let whole = |shape: &[u64]| Array::whole(stored.extent(), Element::Integer(self.integers()), shape);
        let each = WORD / u64::from(self.bits);
        match (self.layout, &stored.entry.shape[..]) {
            (Layout::Bytes | Layout::Largest, shape @ [.., _, _]) => whole(shape),
            (Layout::Words, shape @ [.., _, _]) => {
                let words: Vec<u64> = shape.iter().copied().chain([each]).collect();
                whole(&words)?.join(shape.len() - 1)
            }
            // A word of GPTQ holds adjacent columns of one row.
            (Layout::Gptq { .. }, &[words, rows]) => whole(&[words, rows, each])?.swap(0, 1)?.join(1),
            (Layout::Awq, &[columns, words]) => awq(whole(&[columns, words, 2, 4])?)?.swap(0, 1),
            (Layout::Ternary, &[rows, columns]) => whole(&[rows, columns, 4])?.swap(1, 2)?.swap(0, 1)?.join(0),
            _ => None,
        }
    }

    /// Returns the stored scales as a view `[.., rows, groups]`.
    fn scales_by_row(&self, stored: Option<Array>, rows: &[u64]) -> Option<Array> {
        let stored = stored?;
        match (self.layout, rows) {
            // All rows have the same scale.
            (Layout::Bytes | Layout::Ternary, &[rows]) if stored.shape() == [1] => {
                stored.repeat_elements(rows)?.split(0, &[rows, 1])
            }
            (Layout::Words | Layout::Bytes | Layout::Ternary, _) => Some(stored),
            // Each row has one scale.
            (Layout::Largest, &[rows]) => stored.split(0, &[rows, 1]),
            (Layout::Largest, _) => None,
            (Layout::Gptq { .. } | Layout::Awq, _) => stored.swap(0, 1),
        }
    }

    /// Returns the name of a matrix's scales, their stored tensor, and their element type.
    fn scales<'s>(
        &self,
        shards: &'s Shards,
        name: &str,
        base: &str,
    ) -> Result<(String, &'s StoredTensor, Element), CheckpointError> {
        let end = match self.layout {
            Layout::Words | Layout::Bytes | Layout::Ternary => "_scale",
            Layout::Gptq { .. } | Layout::Awq => ".scales",
            Layout::Largest => ".SCB",
        };
        let scales_name = format!("{base}{end}");
        let found = shards.tensors.get(&*scales_name);
        let stored = found.ok_or_else(|| {
            shards.wrong(
                name,
                "a matrix of integers without scales".to_owned(),
                format!("a tensor {scales_name} with its scales"),
            )
        })?;
        let entry = &stored.entry;
        let number = entry.dtype.element.filter(|of| matches!(of, Element::F32 | Element::F16 | Element::Bf16));
        let number =
            number.ok_or_else(|| shards.wrong(&scales_name, entry.dtype.name.to_owned(), "F32, F16 or BF16"))?;
        Ok((scales_name, stored, number))
    }

    /// Returns the zero points of a matrix, and the number to add to them. `None` if its groups
    /// have no zero points.
    fn zeros(&self, shards: &Shards, base: &str, grid: &GroupGrid<'_>) -> Result<Option<(Array, u8)>, CheckpointError> {
        let (end, more) = match self.layout {
            Layout::Words | Layout::Bytes => ("_zero_point", 0),
            Layout::Gptq { more } => (".qzeros", more),
            Layout::Awq => (".qzeros", 0),
            Layout::Ternary | Layout::Largest => return Ok(None),
        };
        let name = format!("{base}{end}");
        let found = shards.tensors.get(&*name);
        if !self.zeros {
            let check = |stored: &StoredTensor| self.check_middle(shards, &name, &stored.entry, more);
            return found.map_or(Ok(()), check).map(|()| None);
        }
        let &GroupGrid { rows, groups, .. } = grid;
        let &[rows] = rows else {
            return Err(shards.wrong(
                &name,
                format!("zero points for {rows:?} rows"),
                "zero points of a matrix of two dimensions",
            ));
        };
        let Some(stored) = found else {
            let (path, tensor) = (shards.folder.clone(), name.into());
            return Err(CheckpointError::TensorMissing { path, tensor });
        };
        let entry = &stored.entry;
        let whole = |shape: &[u64]| Array::whole(stored.extent(), Element::Integer(Integers::Four), shape);
        let array = match (self.layout, &entry.shape[..]) {
            _ if entry.dtype.name != "I32" => None,
            (Layout::Words, &[words, groups]) => whole(&[words, groups, 8]).and_then(|array| array.swap(1, 2)?.join(0)),
            (Layout::Gptq { .. }, &[groups, words]) => {
                whole(&[groups, words, 8]).and_then(|array| array.join(1)?.swap(0, 1))
            }
            (Layout::Awq, &[groups, words]) => whole(&[groups, words, 2, 4]).and_then(|array| awq(array)?.swap(0, 1)),
            _ => None,
        };
        // Rows need not fill the last word.
        let array = array.filter(|array| array.len(1) == groups).and_then(|array| array.slice(0, 0, rows));
        let array = array.ok_or_else(|| {
            let found = format!("{:?} of {}", entry.shape, entry.dtype.name);
            shards.wrong(
                &name,
                found,
                format!("zero points of {rows} rows and {groups} groups, packed in words of I32"),
            )
        })?;
        Ok(Some((array, more)))
    }

    /// Checks that the stored zero points of a symmetric matrix are in the middle of the integers'
    /// range. Only the first bytes are checked.
    fn check_middle(&self, shards: &Shards, name: &str, entry: &Entry, more: u8) -> Result<(), CheckpointError> {
        let middle = match self.bits {
            4 => (8 - more) * 0x11,
            _ => 0x80 - more,
        };
        // Zero points of compressed-tensors that are not packed in words are in two's complement,
        // so their middle is 0. Unused bits of a word are 0.
        let (byte, other) = match self.layout {
            Layout::Gptq { .. } | Layout::Awq => (middle, middle),
            Layout::Words | Layout::Bytes if entry.dtype.name == "I32" => (middle, 0),
            Layout::Words | Layout::Bytes | Layout::Ternary | Layout::Largest => (0, 0),
        };
        let bytes = shards.bytes(name, CHECKED_BYTES).unwrap_or_default();
        bytes.iter().find(|found| ![byte, other].contains(found)).map_or(Ok(()), |found| {
            let found = format!("{found:#04x}");
            Err(shards.wrong(
                name,
                found,
                format!("bytes of {byte:#04x}, because the configuration says that quantisation is symmetric"),
            ))
        })
    }

    /// Checks that a matrix of bitsandbytes is stored row by row. In matrices that were saved in
    /// the tile order of a GPU, `weight_format` is not 0.
    fn check_rows(&self, shards: &Shards, base: &str) -> Result<(), CheckpointError> {
        let name = format!("{base}.weight_format");
        match shards.bytes(&name, CHECKED_BYTES).unwrap_or_default() {
            [] | [0] => Ok(()),
            found => Err(shards.wrong(
                &name,
                format!("{found:?}"),
                "0: the integers in the order of rows, not of a GPU's tiles",
            )),
        }
    }

    /// Returns the group of each column. `None` if each group has consecutive columns.
    fn order(&self, shards: &Shards, base: &str, grid: &GroupGrid<'_>) -> Result<Option<Array>, CheckpointError> {
        let name = match self.layout {
            Layout::Gptq { .. } => format!("{base}.g_idx"),
            Layout::Words | Layout::Bytes => format!("{base}_g_idx"),
            Layout::Awq | Layout::Ternary => return Ok(None),
            Layout::Largest => return self.check_rows(shards, base).map(|()| None),
        };
        let Some(stored) = shards.tensors.get(&*name) else { return Ok(None) };
        let (entry, columns, groups, group) = (&stored.entry, grid.columns, grid.groups, grid.columns_of_group());
        let wrong = |found: String| {
            let expected = format!(
                "{columns} numbers of I32: the group of each column, below {groups}; each group must have {group} columns"
            );
            shards.wrong(&name, found, expected)
        };
        let bytes = shards.bytes(&name, u64::MAX).unwrap_or_default();
        if entry.dtype.name != "I32" || entry.shape.iter().product::<u64>() != columns {
            return Err(wrong(format!("{:?} of {}", entry.shape, entry.dtype.name)));
        }
        let numbers = || bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
        // compressed-tensors writes -1 for each column if each group has consecutive columns.
        if (0..).zip(numbers()).all(|(at, of): (u64, _)| u64::try_from(of) == Ok(at / group))
            || !matches!(self.layout, Layout::Gptq { .. }) && numbers().all(|of| of == -1)
        {
            return Ok(None);
        }
        let is_group = |of: &i32| u64::try_from(*of).is_ok_and(|of| of < groups);
        if let Some((column, of)) = numbers().enumerate().find(|(_, of)| !is_group(of)) {
            return Err(wrong(format!("group {of} for column {column}")));
        }
        // All groups must have the same number of columns, as quantisers write them. Some programs
        // treat an index of only zeros as absent; here it is an error.
        let mut counts = vec![0u64; groups as usize];
        numbers().for_each(|of| counts[of as usize] += 1);
        if let Some((of, count)) = counts.iter().enumerate().find(|(_, count)| **count != group) {
            return Err(wrong(format!("a list with {count} columns in group {of}")));
        }
        // The view declares four-byte integers as f32, which has the same size; their bits stay
        // unchanged.
        let order = Array::whole(stored.extent(), Element::F32, &[columns, 1]);
        order.map(Some).ok_or_else(|| wrong("empty".to_owned()))
    }
}

/// Returns scales and zero points with an element for each column. Their views have the shape `[..,
/// rows, groups]`. A group has consecutive columns, unless `order`, `[columns, 1]`, states the
/// group of each column.
fn expand_groups(
    scales: Array,
    zeros: Option<(Array, u8)>,
    order: Option<Array>,
    grid: &GroupGrid<'_>,
) -> Option<GroupScales> {
    let &GroupGrid { rows, columns, groups } = grid;
    let last = rows.len();
    let Some(order) = order else {
        let group = grid.columns_of_group();
        let zeros = match zeros {
            Some((zeros, more)) => Some((zeros.repeat_elements(group)?, more)),
            None => None,
        };
        return Some(GroupScales { scales: scales.repeat_elements(group)?, zeros, order: None });
    };
    let &[rows] = rows else { return None };
    let order = order.repeat_elements(rows)?.swap(0, 1)?;
    let mut steps = [scales.stride(last)?, 0];
    let first = |array: Array| array.slice(last, 0, 1)?.repeat_elements(columns);
    let zeros = match zeros {
        Some((zeros, more)) => {
            steps[1] = zeros.stride(last)?;
            Some((first(zeros)?, more))
        }
        None => None,
    };
    Some(GroupScales { scales: first(scales)?, zeros, order: Some(ColumnOrder { order, groups, steps }) })
}

/// Returns whether the matrices of bitsandbytes have eight bits for each number, rather than four.
fn is_eight_bits(config: &Config) -> Result<bool, CheckpointError> {
    Ok(config.flag(&["load_in_8bit", "_load_in_8bit"])?.unwrap_or(false))
}

/// Returns a view of AWQ's words, `[.., words, 2, 4]`, with rows in their original order.
fn awq(words: Array) -> Option<Array> {
    let last = words.rank() - 1;
    words.swap(last - 1, last)?.join(last - 1)?.join(last - 2)
}
