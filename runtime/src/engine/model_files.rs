//! Functions that find and open a plan's model files. Each is at its path in the plan, in the
//! plan's folder, or at a path from the user.
//!
//! A plan contains the paths of its model files from the time when it was compiled. Plans and
//! models are often moved together. A missing model file is therefore searched in the plan's own
//! folder, under its file name.
//!
//! A plan from another user could name any file that this user can read. So each file must pass
//! these checks, in this order:
//!
//! | check | purpose |
//! | --- | --- |
//! | the file begins like GGUF or safetensors | a plan reads only model files |
//! | its length is that of the plan | a cut or extended file is noticed |
//! | the plan has a checksum of its header | the plan's author knew the model |
//! | this checksum is that of the file | the file has the tensors of the plan |
//!
//! The length of a safetensors header is known before the header is parsed, so the plan's checksum
//! must cover the whole header. For a GGUF file, the plan's checksum must cover at least the
//! numbers of tensors and keys.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ixc_files::changed::Identity;
use ixc_files::open_regular;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, SourceFile};

use crate::error::load::LoadError;
use crate::options::{BuiltIn, EngineOptions};
use crate::storage::memory::Mapped;

/// Bytes of a file that are read at a time to compute its checksum.
const READ_BYTES: usize = 1 << 16;
/// First bytes of a GGUF file.
const GGUF_MAGIC: &[u8] = b"GGUF";
/// Bytes of a GGUF file before its first key: magic, version, numbers of tensors and of keys.
const GGUF_BEGIN: u64 = 24;
/// Bytes of the header's length at the beginning of a safetensors file.
const SAFETENSORS_LENGTH: usize = 8;
/// Maximum bytes of a safetensors header: the limit of the format's own library.
const MAX_SAFETENSORS_HEADER: u64 = 100_000_000;

/// Replaces the paths in the plan by the paths at which the model files are found. If a file is not
/// found, its path stays, so that loading reports it. Relative paths are relative to `folder`, the
/// plan's folder. Returns the files that had to be opened, by number.
pub fn locate(plan: &mut Plan<Kernel>, folder: &Path, built_in: Option<BuiltIn>) -> Vec<Option<File>> {
    plan.files.iter_mut().map(|source| locate_file(source, folder, built_in)).collect()
}

/// Replaces the path of one model file, as [`locate`] does. Returns the file if it had to be
/// opened.
fn locate_file(source: &mut SourceFile, folder: &Path, built_in: Option<BuiltIn>) -> Option<File> {
    if built_in.is_some_and(|built_in| built_in.path == source.path) {
        return None;
    }
    let name = Path::new(&source.path).file_name()?.to_str()?.to_owned();
    let (stored, beside) = (folder.join(&source.path), folder.join(&name));
    if !beside.is_file() || stored == beside {
        return None;
    }
    if !stored.is_file() {
        source.path = name;
        return None;
    }
    // If the plan's path and the plan's folder both have the file, the plan's path is preferred.
    // The other file may be a newer download.
    let open = |path: &Path| {
        let file = open_regular(path).ok()?;
        check(&file, path, source).ok().map(|_| file)
    };
    if let Some(file) = open(&stored) {
        return Some(file);
    }
    let file = open(&beside)?;
    source.path = name;
    Some(file)
}

/// Replaces the paths of the plan's model files by `paths`, in the order of [`Plan::files`].
///
/// # Errors
/// Fails if the number of paths differs from the number of files, or if a path is not UTF-8.
pub fn use_files(plan: &mut Plan<Kernel>, paths: &[PathBuf]) -> Result<(), LoadError> {
    if paths.len() != plan.files.len() {
        return Err(LoadError::FileCount { found: paths.len(), expected: plan.files.len() });
    }
    for (source, path) in plan.files.iter_mut().zip(paths) {
        let failed = |source| LoadError::ModelFile { path: path.clone(), source };
        let absolute = std::path::absolute(path).map_err(failed)?;
        let text = absolute.to_str();
        let text = text.ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidInput, "its path is not UTF-8")))?;
        source.path = text.to_owned();
    }
    Ok(())
}

/// Maps the plan's model files into memory. Opens the files that are not in `opened` (indexed by
/// file number).
pub(crate) fn open_files(
    plan: &Plan<Kernel>,
    opened: &[Option<File>],
    folder: &Path,
    options: &EngineOptions,
) -> Result<Vec<Mapped>, LoadError> {
    let files = plan.files.iter().enumerate().map(|(number, file)| match options.built_in {
        Some(built_in) if built_in.path == file.path => open_built_in(built_in, file),
        _ => map(&folder.join(&file.path), file, opened.get(number).and_then(Option::as_ref)),
    });
    files.collect()
}

/// Checks that a built-in file is the model file that the plan was made from.
fn open_built_in(built_in: BuiltIn, source: &SourceFile) -> Result<Mapped, LoadError> {
    let path = PathBuf::from(built_in.path);
    let other = |what, found, expected| LoadError::OtherModel { path: path.clone(), what, found, expected };
    let bytes = built_in.bytes.len() as u64;
    if bytes != source.bytes {
        return Err(other("its length", bytes, source.bytes));
    }
    let header = usize::try_from(source.header_bytes).ok().and_then(|end| built_in.bytes.get(..end));
    let Some(header) = header else {
        return Err(other("the length of its header", bytes, source.header_bytes));
    };
    match crc32fast::hash(header) {
        crc if crc == source.header_crc => Ok(Mapped::built_in(built_in.bytes)),
        crc => Err(other("the checksum of its header", crc.into(), source.header_crc.into())),
    }
}

/// Maps a model file, and checks that the plan was made from it. Uses `opened` instead of opening
/// the path if it is given.
fn map(path: &Path, source: &SourceFile, opened: Option<&File>) -> Result<Mapped, LoadError> {
    let error = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => LoadError::NoModelFile { path: path.to_owned() },
        _ => LoadError::ModelFile { path: path.to_owned(), source },
    };
    let own;
    let file = match opened {
        Some(file) => file,
        None => {
            own = open_regular(path).map_err(error)?;
            &own
        }
    };
    let identity = check(file, path, source)?;
    let mapped = Mapped::open(file, path, source.bytes).map_err(error)?;
    if mapped.identity() != Some(identity) {
        return Err(error(io::Error::other("changed while it was opened")));
    }
    Ok(mapped)
}

/// Returns whether the file at `path` is the model file that a plan was made from.
pub fn is_source(path: &Path, source: &SourceFile) -> bool {
    open_regular(path).is_ok_and(|file| check(&file, path, source).is_ok())
}

/// Checks that an open file is the model file that the plan was made from.
fn check(file: &File, path: &Path, source: &SourceFile) -> Result<Identity, LoadError> {
    let error = |source| LoadError::ModelFile { path: path.to_owned(), source };
    let other = |what, found, expected| LoadError::OtherModel { path: path.to_owned(), what, found, expected };
    let metadata = file.metadata().map_err(error)?;
    let Some(header) = known_header(file).map_err(error)? else {
        return Err(LoadError::NotAModel { path: path.to_owned() });
    };
    let bytes = metadata.len();
    if bytes != source.bytes {
        return Err(other("its length", bytes, source.bytes));
    }
    if source.header_bytes < header {
        return Err(LoadError::PartOfHeader { path: path.to_owned(), found: source.header_bytes, expected: header });
    }
    let (mut hasher, mut done) = (crc32fast::Hasher::new(), 0);
    let mut buffer = vec![0; READ_BYTES];
    while done < source.header_bytes {
        let most = usize::try_from(source.header_bytes - done).unwrap_or(READ_BYTES).min(READ_BYTES);
        // The read has an explicit position, because all handles of an open file share its read
        // position.
        let read = read_some(file, &mut buffer[..most], done).map_err(error)?;
        if read == 0 {
            return Err(other("the length of its header", done, source.header_bytes));
        }
        hasher.update(&buffer[..read]);
        done += read as u64;
    }
    let crc = hasher.finalize();
    if crc != source.header_crc {
        return Err(other("the checksum of its header", crc.into(), source.header_crc.into()));
    }
    Ok(Identity::from_metadata(&metadata))
}

/// Reads some bytes at a position. Returns the number of bytes read; 0 at the end of the file. An
/// interrupted read is repeated: reads on network file systems can be interrupted by signals.
fn read_some(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Returns the number of header bytes that are known before the header is parsed. Returns `None` if
/// the file does not begin like GGUF or safetensors. A safetensors file begins with the header's
/// length and a JSON object.
fn known_header(file: &File) -> io::Result<Option<u64>> {
    let mut begin = [0; SAFETENSORS_LENGTH + 1];
    let mut done = 0;
    while done < begin.len() {
        match read_some(file, &mut begin[done..], done as u64)? {
            0 => return Ok(None),
            read => done += read,
        }
    }
    if begin.starts_with(GGUF_MAGIC) {
        return Ok(Some(GGUF_BEGIN));
    }
    let (length, object) = begin.split_at(SAFETENSORS_LENGTH);
    let length = length.try_into().map_or(0, u64::from_le_bytes);
    let is_safetensors = object == b"{" && (2..MAX_SAFETENSORS_HEADER).contains(&length);
    Ok(is_safetensors.then_some(SAFETENSORS_LENGTH as u64 + length))
}
