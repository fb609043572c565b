//! NumPy's `.npy` files, version 1.0: little-endian f32 matrices in row-major order.
//!
//! ```
//! use ixc_measure::npy::{Shape, write};
//!
//! let mut bytes = Vec::new();
//! write(&mut bytes, Shape { rows: 1, columns: 2 }, &[1.0, -1.0]).unwrap();
//! assert_eq!(bytes.len(), 64 + 64 + 8);
//! ```

use std::io::{self, Write};
use std::path::Path;

use ixc_files::{Guard, Kind, Output, OutputError};

/// First bytes of a file: magic, and version 1.0.
const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
/// NumPy file.
pub const KIND: Kind = Kind { name: "NumPy file", is: |head| head.starts_with(MAGIC), streams: true, private: false };
/// Header and data start at multiples of this (NumPy's `ARRAY_ALIGN`).
const ALIGNMENT: usize = 64;
/// Magic, version 1.0, and the two bytes of the header's length.
const PREFIX_BYTES: usize = 10;

/// Shape of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

/// Writes a matrix.
///
/// # Errors
/// When `out` cannot be written.
pub fn write(out: &mut (impl Write + ?Sized), shape: Shape, data: &[f32]) -> io::Result<()> {
    let mut header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", shape.rows, shape.columns);
    // The header ends with a newline, at a multiple of the alignment.
    let length = (PREFIX_BYTES + header.len() + 1).next_multiple_of(ALIGNMENT) - PREFIX_BYTES;
    header.extend(std::iter::repeat_n(' ', length - 1 - header.len()));
    header.push('\n');
    out.write_all(MAGIC)?;
    out.write_all(&u16::try_from(length).map_err(io::Error::other)?.to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    data.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

/// Writes a matrix to a file. On an error, the old file is kept.
///
/// # Errors
/// See [`OutputError`].
pub fn write_file(path: &Path, shape: Shape, data: &[f32]) -> Result<(), OutputError> {
    write_to(Output::open(path, &Guard::replacing(&KIND))?, shape, data)
}

/// Writes a matrix to an output that was opened before the matrix was computed.
///
/// # Errors
/// See [`OutputError`].
pub fn write_to(output: Output, shape: Shape, data: &[f32]) -> Result<(), OutputError> {
    output.write(|out| write(out, shape, data)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_header_is_aligned_and_states_the_shape() {
        for [rows, columns] in [[0, 4096], [1, 1], [123_456, 7]] {
            let mut bytes = Vec::new();
            write(&mut bytes, Shape { rows, columns }, &[]).unwrap();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), bytes.len() - PREFIX_BYTES);
            let header = String::from_utf8(bytes[PREFIX_BYTES..].to_vec()).unwrap();
            assert!(header.contains(&format!("'shape': ({rows}, {columns})")) && header.ends_with('\n'));
        }
    }

    #[test]
    fn written_npy_is_recognised_as_npy() {
        let mut bytes = Vec::new();
        write(&mut bytes, Shape { rows: 1, columns: 2 }, &[1.0, 2.0]).unwrap();
        assert!((KIND.is)(&bytes) && !(KIND.is)(b"GGUF"));
    }
}
