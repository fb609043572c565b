//! Table of ggml's tensor types. It has each id that a GGUF file may have, with the size of its
//! blocks, even if `ixc` cannot compute with the type.
//!
//! The sizes suffice to read and inspect a file. [`TensorType::format`] returns the format to
//! compute with, if `ixc` has one. Tensors of checkpoints may have formats that no GGUF file has.
//! Their types have the id [`NO_ID`].

use ixc_ir::format::Format;

/// Tensor type of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Id of the type in files (ggml `enum ggml_type`); [`NO_ID`] if no file has the type.
    pub id: u32,
    /// ggml's name, or the name in `ixc` for types that ggml lacks.
    pub name: &'static str,
    /// Number of elements in a block.
    pub block_len: u32,
    /// Number of bytes in a block.
    pub block_bytes: u32,
    /// Number of bytes at the end of a row, after its blocks.
    tail_bytes: u32,
}

/// Id of types that no GGUF file has.
pub const NO_ID: u32 = u32::MAX;

const fn row(id: u32, name: &'static str, block_len: u32, block_bytes: u32) -> TensorType {
    TensorType { id, name, block_len, block_bytes, tail_bytes: 0 }
}

/// All ggml types that a file can have. Other ids were removed from ggml or never existed.
pub static TENSOR_TYPES: &[TensorType] = &[
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(9, "Q8_1", 32, 36),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(15, "Q8_K", 256, 292),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
    row(40, "NVFP4", 64, 36),
    row(41, "Q1_0", 128, 18),
    row(42, "Q2_0", 64, 18),
];

impl TensorType {
    /// Returns the type with this id.
    pub fn from_id(id: u32) -> Option<TensorType> {
        TENSOR_TYPES.iter().find(|row| row.id == id).copied()
    }

    /// Returns the type for a weight format, even if GGUF files cannot have it. `None` for a format
    /// that stored weights cannot have.
    pub fn from_format(format: Format) -> Option<TensorType> {
        let row = format.row();
        if let Some(id) = row.gguf_id {
            return TensorType::from_id(id);
        }
        let bytes = |bytes: usize| u32::try_from(bytes).ok();
        let (block_len, block_bytes) = (bytes(row.block_len)?, bytes(row.block_bytes)?);
        let tail_bytes = bytes(format.tail_bytes())?;
        let own = TensorType { id: NO_ID, name: row.name, block_len, block_bytes, tail_bytes };
        row.packed.map(|_| own)
    }

    /// Returns whether a GGUF file can have the type.
    pub fn is_in_files(self) -> bool {
        self.id != NO_ID
    }

    /// Returns the format for computing with the type; `None` if `ixc` has none.
    pub fn format(self) -> Option<Format> {
        if self.is_in_files() { Format::from_gguf_id(self.id) } else { Format::from_name(self.name) }
    }

    /// Returns the number of bytes of a tensor with these dimensions, the row length first. `None`
    /// if a row does not have a whole number of blocks, or if the number does not fit.
    pub fn tensor_bytes(self, dims: &[u64]) -> Option<u64> {
        let (row, rest) = dims.split_first()?;
        if row % u64::from(self.block_len) != 0 {
            return None;
        }
        let blocks = (row / u64::from(self.block_len)).checked_mul(u64::from(self.block_bytes))?;
        let row_bytes = blocks.checked_add(self.tail_bytes.into())?;
        rest.iter().try_fold(row_bytes, |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::format::FORMATS;

    #[test]
    fn tensor_types_match_the_format_table() {
        for format in FORMATS.iter().filter(|row| row.gguf_id.is_some()) {
            let ours = TensorType::from_id(format.gguf_id.unwrap()).unwrap();
            assert_eq!((ours.block_len as usize, ours.block_bytes as usize), (format.block_len, format.block_bytes));
            assert_eq!(ours.name.to_lowercase(), format.name);
        }
    }

    #[test]
    fn formats_of_checkpoints_have_a_type_without_an_id() {
        for row in FORMATS {
            let found = TensorType::from_format(row.format);
            assert_eq!(found.is_some(), row.packed.is_some(), "{}", row.name);
            let Some(found) = found else { continue };
            assert_eq!(
                (found.format(), found.is_in_files()),
                (Some(row.format), row.gguf_id.is_some()),
                "{}",
                row.name
            );
            assert_eq!(found.tensor_bytes(&[512, 3]), row.format.row_bytes(512).map(|bytes| 3 * bytes), "{}", row.name);
        }
        assert_eq!(TensorType::from_id(NO_ID), None);
    }

    #[test]
    fn sizes_need_whole_blocks_and_do_not_wrap() {
        let q4_k = TensorType::from_id(12).unwrap();
        assert_eq!(q4_k.tensor_bytes(&[512, 3]), Some(2 * 144 * 3));
        assert_eq!(q4_k.tensor_bytes(&[128, 2]), None);
        assert_eq!(TENSOR_TYPES[0].tensor_bytes(&[1 << 32, 1 << 32]), None);
        assert_eq!(TENSOR_TYPES[0].tensor_bytes(&[(1 << 62) + 1]), None);
    }
}
