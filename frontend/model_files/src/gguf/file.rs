//! Opens a model: maps the file and reads its header. Opens the other shards of a split model in
//! the same way.
//!
//! A shard has the name `NAME-00001-of-0000N.gguf`. The path of any shard opens all shards. The
//! keys of the first shard are the metadata of the model.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ixc_files::FaultGuard;
use ixc_ir::derived::{Derivation, Indexed};
use ixc_ir::format::Format;
use memmap2::Mmap;

use super::error::{Fault, GgufError, Place};
use super::foreign;
use super::metadata::Metadata;
use super::parse::{ARCHITECTURE, ParsedHeader, Tensor, parse};
use super::tensor_type::TensorType;

/// Data that identify a file. Comparing them shows whether the file changed after it was read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileIdentity {
    /// Path of the file.
    pub path: PathBuf,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Modification time since 1970, as seconds and nanoseconds, if the file has one.
    pub modified: Option<(u64, u32)>,
    /// CRC-32 of the header, the keys and the tensor table.
    pub header_crc: u32,
    /// Length of the header, the keys and the tensor table in bytes.
    pub header_bytes: u64,
}

/// One mapped file of a model.
#[derive(Debug)]
pub struct ShardFile {
    path: Arc<Path>,
    backing: FileBacking,
    modified: Option<(u64, u32)>,
    version: u32,
    alignment: u32,
    header_bytes: u64,
}

#[derive(Debug)]
enum FileBacking {
    /// File that is mapped, with three fields: the guard of the mapping, which is dropped first;
    /// the mapping; and the file for other readers.
    Mapped(FaultGuard, Mmap, File),
    Memory(Cow<'static, [u8]>),
}

/// Model in the form of GGUF: checked metadata and tensors of all its files. Folders of safetensors
/// have the same form ([`Gguf::from_files`]), with derived tensors where they differ from GGUF.
#[derive(Debug)]
pub struct Gguf {
    files: Vec<ShardFile>,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    /// Number of tensors that the model's files have. The tensors after these were added by
    /// [`Gguf::with`].
    own: usize,
    /// Derived tensors. The field `file` of a tensor is an index into `files`, followed by
    /// `derived`, followed by `constants`.
    derived: Vec<Indexed>,
    /// Bytes of constant tensors.
    constants: Vec<Vec<u8>>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<usize>,
}

/// Tensor that no file has and that is derived from bytes of files. It has 1 to 4 dimensions.
#[derive(Clone, Debug)]
pub struct DerivedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions of the tensor, the row length first.
    pub dims: Vec<u64>,
    /// Bytes of files and operations from which the tensor is derived.
    pub derived: Derivation,
}

impl Gguf {
    /// Opens the model to which the file `path` belongs.
    ///
    /// # Errors
    /// When the file or one of the model's other shards is missing, unreadable or malformed.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        if path.is_dir() {
            return Err(foreign::folder(path));
        }
        Gguf::from_shard(ShardFile::map_file(path)?)
    }

    /// Reads the model to which an open file belongs. `path` is the path of that file.
    ///
    /// # Errors
    /// See [`Gguf::open`].
    pub fn of_file(file: File, path: &Path) -> Result<Gguf, GgufError> {
        Gguf::from_shard(ShardFile::of_file(file, path)?)
    }

    fn from_shard(shard: ShardFile) -> Result<Gguf, GgufError> {
        let (file, parsed) = shard.parse_header(0)?;
        match split_info(&file.path, &parsed.metadata)? {
            None => Gguf::new(vec![file], vec![parsed]),
            Some(split) => open_shards(file, &split),
        }
    }

    /// Reads a model that is one file in memory. Errors state `name` as its path.
    ///
    /// # Errors
    /// When the bytes are malformed.
    pub fn from_bytes(name: &Path, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Gguf, GgufError> {
        let (file, parsed) = ShardFile::new(name.into(), FileBacking::Memory(bytes.into()), None).parse_header(0)?;
        Gguf::new(vec![file], vec![parsed])
    }

    fn new(files: Vec<ShardFile>, parsed: Vec<ParsedHeader>) -> Result<Gguf, GgufError> {
        let mut tensors = Vec::new();
        let mut metadata = None;
        for parsed in parsed {
            tensors.extend(parsed.tensors);
            metadata.get_or_insert(parsed.metadata);
        }
        let metadata = metadata.unwrap_or_else(|| unreachable!("a model has at least one file"));
        let by_name = by_name(&tensors, &files, metadata.path())?;
        let own = tensors.len();
        let gguf = Gguf { files, metadata, tensors, own, derived: Vec::new(), constants: Vec::new(), by_name };
        gguf.check_readable()?;
        Ok(gguf)
    }

    /// Presents files of another format with the keys and tensors of a GGUF file. The field `file`
    /// of a tensor is an index into `files`, followed by `derived`. `constants` are vectors that no
    /// file has; graphs may use them, but kernels may not.
    ///
    /// # Errors
    /// When a tensor name appears twice, or a tensor is not inside its file.
    pub fn from_files(
        files: Vec<ShardFile>,
        metadata: Metadata,
        mut tensors: Vec<Tensor>,
        derived: Vec<Indexed>,
        constants: &[(&str, Vec<f32>)],
    ) -> Result<Gguf, GgufError> {
        let single = TensorType::from_id(0).unwrap_or_else(|| unreachable!("F32 is type 0"));
        for (number, (name, numbers)) in constants.iter().enumerate() {
            let file = files.len() + derived.len() + number;
            tensors.extend(Tensor::new(name, single, &[numbers.len() as u64], file, 0));
        }
        let constants = constants.iter().map(|(_, x)| x.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        let constants: Vec<Vec<u8>> = constants;
        let by_name = by_name(&tensors, &files, metadata.path())?;
        for tensor in &tensors {
            let limit = match tensor.file.checked_sub(files.len()) {
                None => files[tensor.file].data().len() as u64,
                Some(number) => match number.checked_sub(derived.len()) {
                    None => derived[number].bytes().unwrap_or(0),
                    Some(number) => constants.get(number).map_or(0, |bytes| bytes.len() as u64),
                },
            };
            if tensor.offset.checked_add(tensor.bytes).is_none_or(|end| end > limit) {
                let fault = Fault::OutsideFile { offset: tensor.offset, bytes: tensor.bytes, limit };
                return Err(tensor_error(tensor, &files, metadata.path(), fault));
            }
        }
        let own = tensors.len();
        let gguf = Gguf { files, metadata, tensors, own, derived, constants, by_name };
        gguf.check_readable()?;
        Ok(gguf)
    }

    /// Adds tensors that are derived from the model's files.
    ///
    /// # Errors
    /// When a tensor with the same name exists, or when a tensor needs bytes outside of the files.
    pub fn with(mut self, made: Vec<DerivedTensor>) -> Result<Gguf, GgufError> {
        let lengths: Vec<u64> = self.files.iter().map(|file| file.data().len() as u64).collect();
        let first = self.files.len() + self.derived.len();
        let mut added = Vec::with_capacity(made.len());
        for DerivedTensor { name, dims, derived } in made {
            let outside = || {
                let path = self.metadata.path().into();
                let bytes = derived.bytes().unwrap_or(u64::MAX);
                let fault = Fault::OutsideFile { offset: 0, bytes, limit: lengths.iter().sum() };
                GgufError::Malformed { path, offset: 0, place: Place::Tensor((*name).into()), fault }
            };
            derived.check(&lengths).map_err(|_| outside())?;
            let kind = TensorType::from_format(derived.format).ok_or_else(outside)?;
            let tensor = Tensor::new(&name, kind, &dims, first + added.len(), 0).ok_or_else(outside)?;
            if derived.bytes() != Some(tensor.bytes) {
                return Err(outside());
            }
            added.push(tensor);
            self.derived.push(derived.with_index());
        }
        // The file numbers of constants follow those of derived tensors, so they grow with each
        // added tensor.
        self.tensors.iter_mut().filter(|tensor| tensor.file >= first).for_each(|tensor| tensor.file += added.len());
        self.tensors.extend(added);
        self.by_name = by_name(&self.tensors, &self.files, self.metadata.path())?;
        Ok(self)
    }

    /// Adds a tensor `name` with the bytes of the tensor `of`, unless a tensor with that name
    /// exists.
    ///
    /// # Errors
    /// When a tensor name appears twice.
    pub fn with_same(mut self, name: &str, of: &str) -> Result<Gguf, GgufError> {
        let there = self.tensor(name).is_some();
        if let Some(tensor) = self.tensor(of).filter(|_| !there) {
            let same = Tensor { name: name.into(), ..tensor.clone() };
            self.tensors.push(same);
            self.by_name = by_name(&self.tensors, &self.files, self.metadata.path())?;
        }
        Ok(self)
    }

    /// Returns the derived tensors.
    pub fn derived_tensors(&self) -> impl ExactSizeIterator<Item = &Derivation> {
        self.derived.iter().map(|derived| &**derived)
    }

    /// Returns the model's keys, which are those of the first shard.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns all tensors, shard by shard, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// Returns the tensors that the model's files have, without those that [`Gguf::with`] added.
    pub fn own_tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors[..self.own].iter()
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        let at = self.by_name.binary_search_by(|&i| (*self.tensors[i].name).cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[at]])
    }

    /// Returns the tensor with this name, or an error if it is missing.
    ///
    /// # Errors
    /// [`GgufError::TensorMissing`].
    pub fn require_tensor(&self, name: &str) -> Result<&Tensor, GgufError> {
        self.tensor(name)
            .ok_or_else(|| GgufError::TensorMissing { path: self.metadata.path().into(), tensor: name.into() })
    }

    /// Returns the block format of `tensor`.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`].
    pub fn require_format(&self, tensor: &Tensor) -> Result<Format, GgufError> {
        tensor.tensor_type.format().ok_or_else(|| GgufError::UnsupportedType {
            path: self.files.get(tensor.file).map_or(self.metadata.path(), ShardFile::path).into(),
            tensor: tensor.name.clone(),
            found: tensor.tensor_type,
        })
    }

    /// Returns the bytes of `tensor`.
    ///
    /// # Panics
    /// When `tensor` belongs to another model.
    pub fn tensor_data(&self, tensor: &Tensor) -> Cow<'_, [u8]> {
        self.tensor_part(tensor, 0, tensor.bytes)
    }

    /// Returns a range of the bytes of `tensor`, which must be whole blocks. Bytes of a derived
    /// tensor are computed; other bytes are borrowed from the file.
    ///
    /// # Panics
    /// When `tensor` belongs to another model, or when the range is outside of the tensor.
    pub fn tensor_part(&self, tensor: &Tensor, offset: u64, bytes: u64) -> Cow<'_, [u8]> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= tensor.bytes), "bytes outside of {}", tensor.name);
        let Some(derived) = tensor.file.checked_sub(self.files.len()) else {
            // The range was checked against the length of the mapping, so it fits in a usize.
            return Cow::Borrowed(
                &self.files[tensor.file].data()[(tensor.offset + offset) as usize..][..bytes as usize],
            );
        };
        if let Some(number) = derived.checked_sub(self.derived.len()) {
            return Cow::Borrowed(&self.constants[number][offset as usize..][..bytes as usize]);
        }
        let mut made = vec![0; bytes as usize];
        let fetch = |file: u32, offset: u64, out: &mut [u8]| {
            let data = self.files.get(file as usize).map_or(&[][..], ShardFile::data);
            let part = usize::try_from(offset).ok().and_then(|from| data.get(from..)?.get(..out.len()));
            part.map(|part| out.copy_from_slice(part)).is_some()
        };
        assert!(self.derived[derived].read(offset, &mut made, &fetch), "{} is made of what is there", tensor.name);
        Cow::Owned(made)
    }

    /// Returns the model's files. The field `file` of a tensor is an index into them.
    pub fn files(&self) -> &[ShardFile] {
        &self.files
    }

    /// Checks that all bytes that were used so far could be read. Bytes of a mapped file that was
    /// truncated, or whose drive failed, read as zeros. Call this after the bytes were used.
    ///
    /// # Errors
    /// When bytes of a file could not be read.
    pub fn check_readable(&self) -> Result<(), GgufError> {
        let has_faulted = |file: &&ShardFile| match &file.backing {
            FileBacking::Mapped(guard, ..) => guard.has_faulted(),
            FileBacking::Memory(_) => false,
        };
        match self.files.iter().find(has_faulted) {
            Some(file) => {
                let source = io::Error::other("the file was cut short while it was in use, or its drive failed");
                Err(GgufError::Io { path: file.path().into(), action: "read", source })
            }
            None => Ok(()),
        }
    }

    /// Returns a new handle to each open file, by file number. A file in memory has none.
    ///
    /// # Errors
    /// If the system refuses more handles.
    pub fn handles(&self) -> io::Result<Vec<Option<File>>> {
        let handle = |file: &ShardFile| match &file.backing {
            FileBacking::Mapped(_, _, file) => file.try_clone().map(Some),
            FileBacking::Memory(_) => Ok(None),
        };
        self.files.iter().map(handle).collect()
    }
}

/// Returns the indices of tensors, sorted by name. A name that appears twice is an error.
fn by_name(tensors: &[Tensor], files: &[ShardFile], path: &Path) -> Result<Vec<usize>, GgufError> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    for pair in by_name.windows(2) {
        let (first, second) = (&tensors[pair[0]], &tensors[pair[1]]);
        if first.name == second.name {
            return Err(tensor_error(second, files, path, Fault::Duplicate { first: first.offset }));
        }
    }
    Ok(by_name)
}

/// Returns an error about a tensor, with the path of its file, or with `path` if it has no file.
fn tensor_error(tensor: &Tensor, files: &[ShardFile], path: &Path, fault: Fault) -> GgufError {
    let path = files.get(tensor.file).map_or(path, ShardFile::path).into();
    GgufError::Malformed { path, offset: tensor.offset, place: Place::Tensor(tensor.name.clone()), fault }
}

impl ShardFile {
    /// Maps a file of another format. Call [`ShardFile::with_header`] to set the bytes that
    /// identify it.
    ///
    /// # Errors
    /// When the file is missing, unreadable, or not a regular file.
    pub fn map_file(path: &Path) -> Result<ShardFile, GgufError> {
        let file = ixc_files::open_regular(path).map_err(|error| match error {
            error if ixc_files::is_not_regular(&error) => GgufError::NotAFile { path: path.into() },
            source => GgufError::Io { path: path.into(), action: "open", source },
        })?;
        ShardFile::of_file(file, path)
    }

    /// Maps an open file.
    fn of_file(file: File, path: &Path) -> Result<ShardFile, GgufError> {
        let failed = |action| move |source| GgufError::Io { path: path.into(), action, source };
        let modified = file.metadata().map_err(failed("inspect"))?.modified().ok();
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        // SAFETY: the mapping is read-only and lives as long as every slice lent from it. Its
        // contents are only read as bytes: values of the header are copied before they are checked
        // and used. Rust also requires that the file does not change meanwhile. The user must
        // ensure this, as with every mapped model (this is documented).
        let map = unsafe { Mmap::map(&file) }.map_err(failed("map"))?;
        // SAFETY: the mapping is one of a file, read-only, and dropped after the guard.
        let guard = unsafe { FaultGuard::new(map.as_ptr(), map.len()) };
        let modified = modified.map(|time| (time.as_secs(), time.subsec_nanos()));
        Ok(ShardFile::new(path.into(), FileBacking::Mapped(guard, map, file), modified))
    }

    fn new(path: Arc<Path>, backing: FileBacking, modified: Option<(u64, u32)>) -> ShardFile {
        ShardFile { path, backing, modified, version: 0, alignment: 0, header_bytes: 0 }
    }

    fn parse_header(mut self, index: usize) -> Result<(ShardFile, ParsedHeader), GgufError> {
        let parsed = parse(&self.path, self.data(), index)?;
        (self.version, self.alignment, self.header_bytes) = (parsed.version, parsed.alignment, parsed.header_bytes);
        Ok((self, parsed))
    }

    /// Sets the number of bytes at the start of the file that identify it. It is reduced to the
    /// file's length.
    pub fn with_header(self, bytes: u64) -> ShardFile {
        let header_bytes = bytes.min(self.data().len() as u64);
        ShardFile { header_bytes, ..self }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all bytes of the file.
    pub fn data(&self) -> &[u8] {
        match &self.backing {
            FileBacking::Mapped(_, map, _) => map,
            FileBacking::Memory(bytes) => bytes,
        }
    }

    /// Returns the GGUF version, 2 or 3; 0 for a file of another format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the alignment of the tensors' data in bytes.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Returns whether the file is mapped, so that its bytes can be read again. Otherwise it is in
    /// memory.
    pub fn is_mapped(&self) -> bool {
        matches!(self.backing, FileBacking::Mapped(..))
    }

    /// Returns the identity of the file as it was read.
    pub fn identity(&self) -> FileIdentity {
        let header = &self.data()[..self.header_bytes as usize];
        FileIdentity {
            path: self.path.to_path_buf(),
            bytes: self.data().len() as u64,
            modified: self.modified,
            header_crc: crc32fast::hash(header),
            header_bytes: self.header_bytes,
        }
    }
}

/// Split model, as the keys of one of its shards describe it.
struct Split {
    /// Directory of the shards. The next field is the part of their names before
    /// `-00001-of-0000N.gguf`.
    directory: PathBuf,
    prefix: String,
    count: u64,
}

impl Split {
    /// Returns the path of the shard with this index; the first shard has index 0.
    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}-{:05}-of-{:05}.gguf", self.prefix, number + 1, self.count))
    }
}

fn split_info(path: &Path, metadata: &Metadata) -> Result<Option<Split>, GgufError> {
    let count: u64 = metadata.read_or("split.count", 0)?;
    if count <= 1 {
        return Ok(None);
    }
    let number: u64 = metadata.read("split.no")?;
    if number >= count {
        return Err(metadata.bad_value("split.no", number, format!("less than split.count, {count}")));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let suffix = format!("-{:05}-of-{count:05}.gguf", number + 1);
    let Some(prefix) = name.strip_suffix(&suffix) else {
        let expected = format!("a name that ends in {suffix}, so that the other shards can be found");
        return Err(split_fault(path, "file name", &format!("\"{}\"", super::quote(&name)), expected));
    };
    let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
    Ok(Some(Split { directory, prefix: prefix.to_owned(), count }))
}

/// Opens the shards of a split model, except the one that is already open.
fn open_shards(opened: ShardFile, split: &Split) -> Result<Gguf, GgufError> {
    let named = Arc::clone(&opened.path);
    let mut opened = Some(opened);
    let (mut files, mut parsed) = (Vec::new(), Vec::new());
    let mut tensors = 0u64;
    let mut claims: Vec<(PathBuf, u64)> = Vec::new();
    for number in 0..split.count {
        let path = split.path(number);
        let file = opened.take_if(|file| *file.path == *path).map_or_else(|| ShardFile::map_file(&path), Ok);
        let (file, shard) = file.and_then(|file| file.parse_header(files.len())).map_err(|error| match error {
            GgufError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => GgufError::MissingShard {
                path: (&*named).into(),
                missing: path.as_path().into(),
                number,
                count: split.count,
            },
            other => other,
        })?;
        for (key, expected) in [("split.no", number), ("split.count", split.count)] {
            let found: u64 = shard.metadata.read(key)?;
            if found != expected {
                return Err(split_fault(&path, key, &found, expected));
            }
        }
        // Many splitters write the key of the architecture into the first shard only.
        let found = shard.metadata.read_optional::<&str>(ARCHITECTURE)?;
        let first = parsed.first().unwrap_or(&shard).metadata.read_optional::<&str>(ARCHITECTURE)?;
        if let (Some(expected), Some(found)) = (first, found)
            && found != expected
        {
            return Err(split_fault(&path, ARCHITECTURE, &super::quote(found), super::quote(expected)));
        }
        if let Some(claim) = shard.metadata.read_optional::<u64>("split.tensors.count")? {
            claims.push((path, claim));
        }
        tensors += shard.tensors.len() as u64;
        files.push(file);
        parsed.push(shard);
    }
    if let Some((path, claim)) = claims.iter().find(|(_, claim)| *claim != tensors) {
        return Err(split_fault(path, "number of tensors in all shards", &tensors, claim));
    }
    Gguf::new(files, parsed)
}

fn split_fault(path: &Path, what: &'static str, found: &dyn ToString, expected: impl ToString) -> GgufError {
    let fault = Fault::Split { what, found: found.to_string().into(), expected: expected.to_string().into() };
    GgufError::Malformed { path: path.into(), offset: 0, place: Place::Header, fault }
}
