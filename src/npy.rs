//! NumPy's `.npy` files, version 1.0: little-endian f32 matrices in row-major order.
//!
//! A file appears under its name only when it is whole: it is written beside it and renamed. `/dev/stdout` and other paths
//! that are no regular files are written in place.
//!
//! ```
//! let mut bytes = Vec::new();
//! ixc::npy::write(&mut bytes, [1, 2], &[1.0, -1.0]).unwrap();
//! assert_eq!(bytes.len(), 64 + 64 + 8);
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Header and data start at multiples of this (NumPy's `ARRAY_ALIGN`).
const ALIGNMENT: usize = 64;
/// Magic, version 1.0, and the two bytes of the header's length.
const PREFIX_BYTES: usize = 10;

/// Writes a matrix of `shape` rows and columns.
///
/// # Errors
/// When `out` refuses.
pub fn write(out: &mut impl Write, shape: [usize; 2], data: &[f32]) -> io::Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", shape[0], shape[1]);
    // The header ends with a newline, at a multiple of the alignment.
    let length = (PREFIX_BYTES + header.len() + 1).next_multiple_of(ALIGNMENT) - PREFIX_BYTES;
    header.extend(std::iter::repeat_n(' ', length - 1 - header.len()));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&u16::try_from(length).map_err(io::Error::other)?.to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    data.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

/// Writes a matrix to a file, aside and renamed.
///
/// # Errors
/// When the file system refuses; what was written aside is gone then.
pub fn write_file(path: &Path, shape: [usize; 2], data: &[f32]) -> io::Result<()> {
    replace_file(path, |out| write(out, shape, data))
}

/// Writes a file aside and renames it, so that its name never stands for half of it.
///
/// # Errors
/// When `fill` fails or the file system refuses.
pub fn replace_file(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let write = |file| {
        let mut out = BufWriter::new(file);
        fill(&mut out).and_then(|()| out.flush())
    };
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return write(File::options().write(true).open(path)?);
    }
    let aside = aside(path)?;
    let done = File::create_new(&aside).and_then(write).and_then(|()| fs::rename(&aside, path));
    if done.is_err() {
        // Nothing more can be done where this fails too; the first error is the one to tell.
        let _ = fs::remove_file(&aside);
    }
    done
}

fn aside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut aside = std::ffi::OsString::from(".");
    aside.push(name);
    aside.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_aligned_and_says_the_shape() {
        for shape in [[0, 4096], [1, 1], [123_456, 7]] {
            let mut bytes = Vec::new();
            write(&mut bytes, shape, &[]).unwrap();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), bytes.len() - PREFIX_BYTES);
            let header = String::from_utf8(bytes[PREFIX_BYTES..].to_vec()).unwrap();
            assert!(header.contains(&format!("'shape': ({}, {})", shape[0], shape[1])) && header.ends_with('\n'));
        }
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("ixc-npy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.npy");
        assert!(replace_file(&path, |_| Err(io::Error::other("no"))).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        write_file(&path, [1, 2], &[1.0, 2.0]).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
