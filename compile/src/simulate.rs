//! Weights of a simulated descriptor, from the model's file.
//!
//! ```
//! use ixc_dataflow::check::Machine;
//! use ixc_dataflow::data::Runner;
//! use ixc_dataflow::grids;
//! use ixc_dataflow::simulate::Simulator;
//! use ixc_compile::place::{PlaceOptions, place};
//! use ixc_compile::model::Model;
//! use ixc_compile::simulate::ModelWeights;
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let options = PlaceOptions { context: Some(64) };
//! let placed = place(&model, &grids::find("small")?, &options)?;
//! let machine = Machine::new(placed.descriptor)?;
//! let weights = ModelWeights::new(&machine.descriptor, &model.gguf)?;
//! let mut simulator = Simulator::with_weights(&machine, &weights, Runner::Compiled)?;
//! let step = simulator.step(&[1], &[0])?;
//! assert_eq!(step.logits[0].len(), 4096);
//! assert!(step.report.cycles > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;
use std::cell::OnceCell;

use ixc_dataflow::data::WeightBytes;
use ixc_dataflow::descriptor::{Descriptor, WeightInfo};
use ixc_failure::Class;
use ixc_ir::format::packed::{STRIP, pack};
use ixc_ir::format::{FORMATS, Format};
use ixc_model_files::gguf::Gguf;

/// Error of a model that does not match the descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// The model has another number of files than the descriptor.
    #[error("the number of model files is {found}; the descriptor expects {expected}")]
    Files {
        /// Number of files of the model.
        found: usize,
        /// Number of files that the descriptor names.
        expected: usize,
    },
    /// A file is not the expected one.
    #[error("{path}: {what} is {found:#x}; the descriptor expects {expected:#x}")]
    OtherModel {
        /// Model file that was opened.
        path: String,
        /// Property that differs.
        what: &'static str,
        /// Value of the property for this file.
        found: u64,
        /// Value of the property in the descriptor.
        expected: u64,
    },
    /// A weight does not match the descriptor.
    #[error("weight {name} of the descriptor: {problem}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Description of the problem.
        problem: String,
    },
}

impl WeightError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            WeightError::Files { .. } | WeightError::OtherModel { .. } | WeightError::Weight { .. } => Class::Data,
        }
    }
}

struct Weight<'g> {
    format: Format,
    columns: u64,
    stored: Cow<'g, [u8]>,
    /// Packed form of the weight, if kernels need it. The weight is packed on first use.
    packed: Option<OnceCell<Vec<u8>>>,
}

/// Weights of a descriptor, from its model's file.
pub struct ModelWeights<'g> {
    weights: Vec<Weight<'g>>,
}

impl<'g> ModelWeights<'g> {
    /// Finds all weights of the descriptor in the model's file.
    ///
    /// # Errors
    /// Fails if the model's files differ from the descriptor's, or a weight is missing or
    /// different.
    pub fn new(descriptor: &Descriptor, gguf: &'g Gguf) -> Result<ModelWeights<'g>, WeightError> {
        // The loader of plans makes the same check. Without it, another model of the same shape
        // would give wrong text without an error.
        let (found, expected) = (gguf.files().len(), descriptor.files.len());
        if found != expected {
            return Err(WeightError::Files { found, expected });
        }
        for (file, expected) in gguf.files().iter().zip(&descriptor.files) {
            let found = file.identity();
            for (what, found, expected) in [
                ("its length", found.bytes, expected.bytes),
                ("the length of its header", found.header_bytes, expected.header_bytes),
                ("the checksum of its header", found.header_crc.into(), expected.header_crc.into()),
            ] {
                if found != expected {
                    let path = file.identity().path.display().to_string();
                    return Err(WeightError::OtherModel { path, what, found, expected });
                }
            }
        }
        let weights = descriptor
            .weights
            .iter()
            .map(|info| weight(info, gguf).map_err(|problem| WeightError::Weight { name: info.name.clone(), problem }));
        Ok(ModelWeights { weights: weights.collect::<Result<_, _>>()? })
    }
}

fn weight<'g>(info: &WeightInfo, gguf: &'g Gguf) -> Result<Weight<'g>, String> {
    let named = |name: &str| {
        Format::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = FORMATS.iter().map(|row| row.name).collect();
            format!("{name} is not a format; expected one of {}", names.join(", "))
        })
    };
    let (format, stored_format) = (named(&info.format)?, named(&info.stored)?);
    let tensor =
        gguf.tensor(&info.name).ok_or("the model has no weight of this name; expected the model that was placed")?;
    let (file, offset) = (tensor.file() as u64, tensor.offset());
    if (file, offset) != (info.file.into(), info.offset) {
        return Err(format!(
            "the descriptor has it at byte {} of file {}; the model has it at byte {offset} of file {file}",
            info.offset, info.file
        ));
    }
    let found = gguf.require_format(tensor).map_err(|error| error.to_string())?;
    // A GGUF tensor's dimensions have the row length first.
    let shape: Vec<u64> = tensor.dims().iter().rev().copied().collect();
    let same_shape = shape.iter().skip_while(|n| **n == 1).eq(info.shape.iter().skip_while(|n| **n == 1));
    if found != stored_format || !same_shape {
        return Err(format!(
            "the descriptor has it as {stored_format} {:?}; the model has it as {found} {shape:?}",
            info.shape
        ));
    }
    let columns = *info
        .shape
        .last()
        .ok_or("it has no dimensions in the descriptor; expected the dimensions of the model's weight")?;
    let stored = gguf.tensor_data(tensor);
    let packed = format != stored_format;
    if packed && format.unpacked_format() != Some(stored_format) {
        let right = format.unpacked_format().map_or("nothing".to_owned(), |from| from.to_string());
        return Err(format!(
            "its format is {format}, packed from {stored_format}; {format} can only be packed from {right}"
        ));
    }
    let rows = info.shape.iter().rev().skip(1).try_fold(1u64, |rows, n| rows.checked_mul(*n));
    let bytes = rows.and_then(|rows| rows.checked_mul(format.row_bytes(columns)?));
    if bytes != Some(info.bytes) {
        let right = bytes.map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
        return Err(format!("it has {} bytes; a weight of {format} {:?} has {right}", info.bytes, info.shape));
    }
    if packed && !rows.is_some_and(|rows| rows.is_multiple_of(STRIP as u64)) {
        return Err(format!(
            "it is {format} {:?}; expected a multiple of {STRIP} rows, because it is packed",
            info.shape
        ));
    }
    Ok(Weight { format, columns, stored, packed: packed.then(OnceCell::new) })
}

impl Weight<'_> {
    fn bytes(&self) -> &[u8] {
        let Some(packed) = &self.packed else { return &self.stored };
        packed.get_or_init(|| {
            let row = |format: Format| format.row_bytes(self.columns).unwrap_or(0) as usize * STRIP;
            let from = self.format.unpacked_format().map_or(0, row);
            let mut packed = vec![0; self.stored.len() / from.max(1) * row(self.format)];
            let strips = packed.chunks_exact_mut(row(self.format).max(1));
            for (rows, strip) in self.stored.chunks_exact(from.max(1)).zip(strips) {
                pack(self.format, rows, strip);
            }
            packed
        })
    }
}

impl WeightBytes for ModelWeights<'_> {
    fn slice(&self, weight: u32, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, String> {
        let weight = self.weights.get(weight as usize).ok_or("the model has no weight with this number")?;
        let all = weight.bytes();
        let end = offset.checked_add(bytes).filter(|end| *end <= all.len() as u64);
        match end {
            Some(end) => Ok(Cow::Borrowed(&all[offset as usize..end as usize])),
            None => Err(format!(
                "{bytes} bytes were requested from byte {offset} on; the weight has only {} bytes",
                all.len()
            )),
        }
    }
}
