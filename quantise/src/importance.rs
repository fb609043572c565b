//! Importance matrices. For each matrix of a model, they have the mean square of the activations
//! that are multiplied with each column. Files have the formats of llama-imatrix: GGUF
//! (`general.type = "imatrix"`), or an older binary format.
//!
//! ```text
//! blk.0.ffn_down.weight.in_sum2  f32[columns, experts]   sums of squares
//! blk.0.ffn_down.weight.counts   f32[1, experts]         number of rows in the sums
//! blk.0.attn_k_b.weight.in_sum2  f32[heads * columns, 1] a matrix for each head, with one count
//! ```
//!
//! Files from this program have a checksum under a key. It covers the names and bytes of the
//! tensors. If a file has a checksum, the checksum must be right.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use ixc_failure::Class;
use ixc_files::{Kind, Output, OutputError, ReadError, read_bytes};
use ixc_ir::format::Format;
use ixc_model_files::gguf::write::GgufWriter;
use ixc_model_files::gguf::{Gguf, GgufError};
use ixc_passes::observe;

/// Max size of a file. For models with a hundred layers and hundreds of experts, files have some
/// hundred MiB.
const MAX_BYTES: u64 = 4 << 30;
const MAGIC: &[u8] = b"GGUF";
/// Suffixes for the tensors of sums and counts. They follow the name of the matrix.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Kind of an output that is an importance matrix. The first bytes distinguish it from a model.
pub const KIND: Kind = Kind {
    name: "importance matrix",
    is: |head| head.starts_with(MAGIC) && head.windows(TYPE.len()).any(|part| part == TYPE.as_bytes()),
    streams: false,
    private: false,
};
const TYPE: &str = "imatrix";
/// Key of the checksum: CRC-32 of the names and bytes of all tensors, in their order.
const CHECKSUM: &str = "ixc.imatrix.crc32";

fn floats_as_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Sums of squares of the activations that are multiplied with a model's matrices. The sums grow
/// with each piece of a text.
#[derive(Clone, Debug, Default)]
pub struct ActivationSums {
    /// Sums by tensor, with the tensor's number of columns plus one. Each expert has the sums of
    /// its columns, followed by its number of rows.
    sums: BTreeMap<String, (usize, Vec<f64>)>,
    pieces: u32,
}

/// Values of one state of an engine.
#[derive(Clone, Debug)]
pub struct StateSums<'s> {
    /// Name of the state.
    pub name: &'s str,
    /// Number of elements in a row.
    pub width: usize,
    /// Values of the state, row by row.
    pub values: Vec<f32>,
}

impl ActivationSums {
    /// Adds the sums of squares in the states of an engine after a sequence. The engine's plan was
    /// made with [`observe::ObserveOptions::inputs`].
    pub fn add<'s>(&mut self, states: impl IntoIterator<Item = StateSums<'s>>) {
        for StateSums { name, width, values } in states {
            let Some(tensor) = name.strip_prefix(observe::PREFIX) else { continue };
            let (_, sums) = self.sums.entry(tensor.to_owned()).or_insert_with(|| (width, vec![0.0; values.len()]));
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
        }
        self.pieces += 1;
    }

    /// Returns whether no activations were added.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Writes the file. `text` is the name of the text, which had pieces of `context` tokens.
    /// Returns the number of matrices.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn write(&self, output: Output, text: &str, context: u32) -> Result<usize, OutputError> {
        let mut writer = GgufWriter::new()
            .key("general.type", TYPE)
            .key("imatrix.datasets", vec![text])
            .key("imatrix.chunk_count", self.pieces)
            .key("imatrix.chunk_size", context);
        let (mut tensors, mut crc) = (Vec::new(), crc32fast::Hasher::new());
        for (name, (width, sums)) in &self.sums {
            let (mut squares, mut counts) = (Vec::with_capacity(sums.len()), Vec::new());
            for row in sums.chunks_exact(*width) {
                let row = row.iter().map(|&x| x as f32);
                squares.extend(row.clone().take(width - 1));
                counts.extend(row.skip(width - 1));
            }
            let (columns, matrices) = (*width as u64 - 1, counts.len() as u64);
            tensors.push((format!("{name}{SUMS}"), [columns, matrices], squares));
            tensors.push((format!("{name}{COUNTS}"), [1, matrices], counts));
        }
        for (name, _, values) in &tensors {
            crc.update(name.as_bytes());
            crc.update(&floats_as_bytes(values));
        }
        writer = writer.key(CHECKSUM, crc.finalize());
        for (name, dims, values) in &tensors {
            writer = writer.f32_tensor(name, dims, values);
        }
        output.write(|out| out.write_all(&writer.finish()))?;
        Ok(self.sums.len())
    }
}

/// Error of reading an importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file is a malformed GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is not a valid importance matrix.
    #[error("{}: is not an importance matrix: {problem}", path.display())]
    Malformed {
        /// Path of the file that was expected to be an importance matrix.
        path: PathBuf,
        /// Reason why the file is not valid.
        problem: String,
    },
    /// The matrix belongs to another model.
    #[error("{}: has {found} columns for {tensor}; expected {matrices} x {columns}, the matrices and their columns", path.display())]
    Shape {
        /// Path of the importance matrix.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Number of columns that the file has for the tensor.
        found: usize,
        /// Number of columns of the tensor.
        columns: u64,
        /// Number of matrices in the tensor, which is its number of experts.
        matrices: u64,
    },
}

impl ImportanceError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            ImportanceError::Read(error) => error.class(),
            ImportanceError::Gguf(error) => error.class(),
            ImportanceError::Malformed { .. } | ImportanceError::Shape { .. } => Class::Data,
        }
    }
}

/// Importance matrix that was read from a file.
#[derive(Clone, Debug)]
pub struct Importance {
    path: PathBuf,
    /// Mean squares by tensor, as `[matrices, columns]`.
    means: HashMap<String, Vec<f32>>,
}

impl Importance {
    /// Reads an importance matrix from a file.
    ///
    /// # Errors
    /// See [`ImportanceError`].
    pub fn read(path: &Path) -> Result<Importance, ImportanceError> {
        let bytes = read_bytes(path, MAX_BYTES)?;
        let malformed = |problem: String| ImportanceError::Malformed { path: path.into(), problem };
        let means = match bytes.starts_with(MAGIC) {
            true => read_gguf(&Gguf::from_bytes(path, bytes)?).map_err(malformed)?,
            false => read_binary(&bytes).map_err(malformed)?,
        };
        Ok(Importance { path: path.into(), means })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of matrices that have an entry.
    pub fn len(&self) -> usize {
        self.means.len()
    }

    /// Returns whether no matrix has an entry.
    pub fn is_empty(&self) -> bool {
        self.means.is_empty()
    }

    /// Returns whether the importance matrix has an entry for a tensor.
    pub fn knows(&self, tensor: &str) -> bool {
        self.means.contains_key(tensor)
    }

    /// Returns the mean squares of a tensor's columns as `[matrices, columns]`, if they are known.
    /// Older files may have one row for all matrices of a tensor.
    ///
    /// # Errors
    /// [`ImportanceError::Shape`] if the file has another number of columns or matrices.
    pub fn column_means(&self, tensor: &str, columns: u64, matrices: u64) -> Result<Option<&[f32]>, ImportanceError> {
        let Some(means) = self.means.get(tensor) else { return Ok(None) };
        let found = means.len() as u64;
        if found == columns || columns.checked_mul(matrices) == Some(found) {
            return Ok(Some(means));
        }
        let (path, tensor, found) = (self.path.clone(), tensor.to_owned(), means.len());
        Err(ImportanceError::Shape { path, tensor, found, columns, matrices })
    }
}

/// Checks that all means are numbers and that none of them is negative.
fn check_means(name: &str, means: Vec<f32>) -> Result<(String, Vec<f32>), String> {
    match means.iter().find(|mean| !(mean.is_finite() && **mean >= 0.0)) {
        Some(mean) => {
            Err(format!("tensor {name} has the value {mean}; expected a mean square, which is finite and not negative"))
        }
        None => Ok((name.to_owned(), means)),
    }
}

fn read_gguf(gguf: &Gguf) -> Result<HashMap<String, Vec<f32>>, String> {
    if let Some(expected) = gguf.metadata().read_optional::<u32>(CHECKSUM).map_err(|error| error.to_string())? {
        let mut crc = crc32fast::Hasher::new();
        for tensor in gguf.tensors() {
            crc.update(tensor.name().as_bytes());
            crc.update(&gguf.tensor_data(tensor));
        }
        let found = crc.finalize();
        if found != expected {
            return Err(format!("it is damaged: the checksum of its tensors is {found:08x}, expected {expected:08x}"));
        }
    }
    let mut means = HashMap::new();
    for sums in gguf.tensors() {
        let Some(name) = sums.name().strip_suffix(SUMS) else { continue };
        let floats = |tensor: &ixc_model_files::gguf::Tensor| match gguf.require_format(tensor) {
            Ok(Format::F32) => {
                let data = gguf.tensor_data(tensor);
                let bytes = data.chunks_exact(4);
                Ok(bytes.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect::<Vec<f32>>())
            }
            _ => Err(format!("{} is not f32", tensor.name())),
        };
        let counts_name = format!("{name}{COUNTS}");
        let counts = gguf.tensor(&counts_name).ok_or_else(|| format!("{counts_name} is missing"))?;
        let (sums, counts) = (floats(sums)?, floats(counts)?);
        if counts.is_empty() || sums.len() % counts.len() != 0 {
            return Err(format!(
                "tensor {name} has {} sums and {} counts; expected the same number of sums for each count",
                sums.len(),
                counts.len()
            ));
        }
        let columns = sums.len() / counts.len();
        let all = sums.chunks(columns.max(1)).zip(&counts).flat_map(|(sums, &count)| {
            // An expert without tokens has no values, so all of its columns get the same
            // importance.
            sums.iter().map(move |sum| if count > 0.0 { sum / count } else { 1.0 })
        });
        let (name, found) = check_means(name, all.collect())?;
        means.insert(name, found);
    }
    gguf.check_readable().map_err(|error| error.to_string())?;
    match means.is_empty() {
        true => Err(format!("no tensor's name ends with {SUMS}")),
        false => Ok(means),
    }
}

/// Reader of the integers and texts in a binary file, in their order.
struct BinaryReader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> BinaryReader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], String> {
        let part = self.bytes.get(self.at..).and_then(|rest| rest.get(..count));
        let part = part.ok_or_else(|| format!("the file ends within the value at byte {:#x}", self.at))?;
        self.at += count;
        Ok(part)
    }

    /// Reads a count, and refuses a negative one.
    fn count(&mut self, what: &str) -> Result<usize, String> {
        let at = self.at;
        let word = self.take(4)?;
        let number = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        usize::try_from(number).map_err(|_| format!("byte {at:#x}: {what} is {number}"))
    }
}

fn read_binary(bytes: &[u8]) -> Result<HashMap<String, Vec<f32>>, String> {
    let mut reader = BinaryReader { bytes, at: 0 };
    let entries = reader.count("the number of matrices")?;
    let mut means = HashMap::new();
    for _ in 0..entries {
        let length = reader.count("a name's length")?;
        let name = std::str::from_utf8(reader.take(length)?).map_err(|_| "a name is not UTF-8".to_owned())?;
        let calls = reader.count("a number of calls")?;
        let values = reader.count("a number of columns")?;
        // The file stores each mean multiplied by the number of calls.
        let calls = if calls == 0 { 1.0 } else { calls as f32 };
        let bytes = reader.take(values.saturating_mul(4))?.chunks_exact(4);
        let values = bytes.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]) / calls).collect();
        let (name, found) = check_means(name, values)?;
        means.insert(name, found);
    }
    if means.is_empty() { Err("it has no matrices".into()) } else { Ok(means) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_model_files::gguf::write::GgufWriter;

    fn binary(entries: i32, name: &str, calls: i32, values: &[f32]) -> Vec<u8> {
        let mut bytes = entries.to_le_bytes().to_vec();
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(calls.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        bytes
    }

    #[test]
    fn imatrix_files_of_both_kinds_give_mean_squares() {
        let found = read_binary(&binary(1, "a.weight", 4, &[8.0, 2.0])).unwrap();
        assert_eq!(found["a.weight"], [2.0, 0.5]);
        let file = GgufWriter::new()
            .key("general.type", "imatrix")
            .f32_tensor("a.weight.in_sum2", &[2, 2], &[8.0, 2.0, 5.0, 5.0])
            .f32_tensor("a.weight.counts", &[1, 2], &[4.0, 0.0])
            .finish();
        let found = read_gguf(&Gguf::from_bytes(Path::new("i.gguf"), file).unwrap()).unwrap();
        assert_eq!(found["a.weight"], [2.0, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn a_damaged_file_of_this_program_is_refused() {
        let folder = std::env::temp_dir().join(format!("ixc-imatrix-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("i.gguf");
        let sums = BTreeMap::from([("a.weight".to_owned(), (3, vec![8.0, 2.0, 4.0]))]);
        let observed = ActivationSums { sums, pieces: 1 };
        let output = Output::open(&path, &ixc_files::Guard::replacing(&KIND)).unwrap();
        observed.write(output, "text", 64).unwrap();
        assert_eq!(Importance::read(&path).unwrap().column_means("a.weight", 2, 1).unwrap(), Some(&[2.0, 0.5][..]));
        let mut bytes = std::fs::read(&path).unwrap();
        // The checksum must find a changed sum of squares, even if it is still a valid number.
        let at = bytes.windows(4).rposition(|four| four == 8f32.to_le_bytes()).unwrap();
        bytes[at + 2] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = Importance::read(&path).unwrap_err().to_string();
        assert!(error.contains("it is damaged"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn invalid_importance_files_are_refused() {
        let whole = binary(1, "a.weight", 1, &[1.0, 2.0]);
        for end in 0..whole.len() {
            assert!(read_binary(&whole[..end]).is_err(), "{end}");
        }
        assert!(read_binary(&binary(-1, "a", 1, &[1.0])).unwrap_err().contains("-1"));
        assert!(read_binary(&binary(0, "a", 1, &[1.0])).unwrap_err().contains("no matrices"));
        assert!(read_binary(&binary(1, "a", 1, &[f32::NAN])).unwrap_err().contains("NaN"));
        assert!(read_binary(&binary(2, "a", 1, &[1.0])).is_err());
        // A huge length in the file must not cause a huge allocation.
        let mut long = binary(1, "a", 1, &[1.0]);
        long[13..17].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(read_binary(&long).unwrap_err().contains("ends within"));
        let without = GgufWriter::new().f32_tensor("a.in_sum2", &[2], &[1.0, 1.0]).finish();
        let without = Gguf::from_bytes(Path::new("i.gguf"), without).unwrap();
        assert!(read_gguf(&without).unwrap_err().contains("a.counts is missing"));
    }

    #[test]
    fn importance_of_another_model_is_refused() {
        let path = PathBuf::from("i.dat");
        let importance = Importance { path, means: HashMap::from([("a".to_owned(), vec![1.0; 6])]) };
        assert!(
            importance.column_means("a", 6, 1).unwrap().is_some()
                && importance.column_means("a", 3, 2).unwrap().is_some()
        );
        assert!(importance.column_means("b", 3, 1).unwrap().is_none());
        let said = importance.column_means("a", 4, 1).unwrap_err().to_string();
        assert!(said.contains("6 columns for a") && said.contains("expected 1 x 4"), "{said}");
    }
}
