//! Builds models: reads the keys and tensors of a file, and returns hyperparameters and a graph.

use std::fs::File;
use std::path::Path;

use ixc_ir::graph::Module;
use ixc_ir::plan::Pooling;
use ixc_ir::state::Rollback;
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{Gguf, GgufError};

use crate::architecture::Architecture;
use crate::builder::{Builder, Drafting};
use crate::error::{ArchError, NextnProblem};
use crate::hyper::{Defaults, DraftInput, Hyper, Precise};
use crate::models::architectures;

/// A model: hyperparameters and graph.
#[derive(Clone, Debug)]
pub struct Model {
    /// Hyperparameters of the model.
    pub hyper: Hyper,
    /// The graph: one function, `step`.
    pub module: Module,
    /// Meaning of the graph's first result.
    pub output: Output,
}

/// Meaning of a graph's first result, which has a row for each requested row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Logits.
    Logits,
    /// Hidden states after the last norm, the input of the output matrix.
    Hidden {
        /// Method that reduces the hidden states of a text to one vector, if the file states one.
        pooling: Option<Pooling>,
        /// Whether the vector of a text is scaled to length 1.
        unit: bool,
    },
    /// Weighted sums of the outputs of each row's experts. The module has a function for each layer
    /// (see [`ixc_ir::graph::expert_layers`]).
    Experts,
}

/// Parts of a model to build a graph of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Number of layers to build, counted from the first layer.
    pub layers: usize,
    /// Whether the graph ends with the output matrix and returns logits.
    pub head: bool,
    /// Drafting by the model's own layers.
    pub nextn: Nextn,
}

/// Drafting by the model's own layers ("nextn", multi-token prediction). Such a layer takes a token
/// and the hidden state of the preceding token, and drafts the next token. The graph of a draft
/// layer has a fourth parameter: those hidden states. After `eh_proj` it is like the model's other
/// layers, with its own KV cache.
///
/// ```text
/// func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L], %hidden: f32[T, 256])
///     -> (f32[L, 4096], f32[T, 256]) {
///   %4 = embed %ids, @token_embd.weight
///   %5 = rms_norm %4, @blk.4.nextn.enorm.weight
///   %6 = rms_norm %hidden, @blk.4.nextn.hnorm.weight
///   %7 = concat %5, %6
///   %8 = matmul %7, @blk.4.nextn.eh_proj.weight
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nextn {
    /// No drafting.
    #[default]
    Absent,
    /// Graph of the whole model. It returns hidden states of all tokens in addition to logits.
    Fed,
    /// Graph of the first draft layer only. It returns hidden states, the input of its next draft.
    Alone,
}

impl Parts {
    /// The whole model.
    pub const ALL: Parts = Parts { layers: usize::MAX, head: true, nextn: Nextn::Absent };
}

/// Opens a model: a GGUF file, or a folder of safetensors. Adds tensors that older files store in
/// another form ([`complete`]).
///
/// # Errors
/// If the file is missing, malformed, or of an unsupported kind.
pub fn open(path: &Path) -> Result<Gguf, CheckpointError> {
    Ok(complete(ixc_model_files::open(path)?)?)
}

/// Reads a model from an open GGUF file, like [`open`]. `path` is the path of that file.
///
/// # Errors
/// If the file is malformed or of an unsupported kind, or another shard of the model is missing.
pub fn open_file(file: File, path: &Path) -> Result<Gguf, CheckpointError> {
    Ok(complete(Gguf::of_file(file, path)?)?)
}

/// Adds the tensors that the architecture needs and that older files store in another form.
///
/// # Errors
/// If shapes of the stored tensors contradict the keys.
pub fn complete(gguf: Gguf) -> Result<Gguf, GgufError> {
    let name = gguf.metadata().read_optional::<&str>("general.architecture")?;
    let Some(architecture) = architectures().find(|row| Some(row.name) == name) else { return Ok(gguf) };
    (architecture.defaults.complete)(gguf, architecture.name)
}

/// Returns the lists of tensors that quantisers keep in a precise format for an architecture. The
/// lists are empty for an unknown architecture.
pub fn precise(architecture: &str) -> Precise {
    let known = architectures().find(|row| row.name == architecture);
    known.map_or(Defaults::USUAL.precise, |row| row.defaults.precise)
}

/// Builds the graph of the model in `gguf`.
///
/// # Errors
/// If the architecture is unknown, a key or tensor is missing or impossible, or a tensor's type has
/// no format.
pub fn build(gguf: &Gguf) -> Result<Model, ArchError> {
    build_parts(gguf, Parts::ALL)
}

/// Builds the graph of a model for display. The graph of an encoder ends before the output matrix,
/// which encoders lack.
///
/// # Errors
/// See [`build`].
pub fn build_to_see(gguf: &Gguf) -> Result<Model, ArchError> {
    match build(gguf) {
        Err(ArchError::NotCausal { .. }) => build_parts(gguf, Parts { head: false, ..Parts::ALL }),
        built => built,
    }
}

/// Builds the graph of the requested parts of the model. If only the first layers are built, the
/// logits are meaningless, but the graph takes as long as these layers. Forecasts use such graphs.
///
/// # Errors
/// See [`build`].
pub fn build_parts(gguf: &Gguf, parts: Parts) -> Result<Model, ArchError> {
    let Parts { layers, head, nextn } = parts;
    let name: &str = gguf.metadata().read("general.architecture")?;
    let architecture = architectures().find(|row| row.name == name).ok_or_else(|| {
        let (path, found) = (gguf.metadata().path().into(), name.into());
        ArchError::UnknownArchitecture { path, found, known: architectures().map(|row| row.name).collect() }
    })?;
    let mut hyper = Hyper::read(gguf, architecture.name, architecture.defaults, nextn == Nextn::Alone)?;
    if head && !hyper.causal {
        return Err(ArchError::NotCausal { path: gguf.metadata().path().into(), architecture: architecture.name });
    }
    let drafting = match nextn {
        Nextn::Absent => Drafting::None,
        Nextn::Fed => Drafting::Fed(draft_input(gguf, architecture, &hyper, parts)?),
        Nextn::Alone => Drafting::Alone(draft_input(gguf, architecture, &hyper, parts)?),
    };
    let model_layers = hyper.layers.len();
    hyper.layers.truncate(layers);
    let Architecture { name, defaults, .. } = *architecture;
    let mut builder = Builder::new(gguf, &hyper, name, defaults, model_layers, head, drafting);
    let result = (architecture.build)(&mut builder)?;
    let module = builder.finish(result, model_layers <= layers)?;
    let output = match head {
        true => Output::Logits,
        false => Output::Hidden { pooling: pooling(gguf, architecture.name)?, unit: unit(gguf, architecture.name)? },
    };
    Ok(Model { hyper, module, output })
}

/// Returns which hidden states the model's own draft layers take as input.
///
/// # Errors
/// If the model has no draft layers, or they are not supported.
fn draft_input(gguf: &Gguf, architecture: &Architecture, hyper: &Hyper, parts: Parts) -> Result<DraftInput, ArchError> {
    let refuse = |problem| Err(ArchError::Nextn { path: gguf.metadata().path().into(), problem });
    // The key `nextn_predict_layers` may count draft layers that the file does not contain.
    let is_draft_matrix = |name: &str| name.ends_with(".nextn.eh_proj.weight");
    if hyper.draft_layers == 0 || !gguf.tensors().any(|tensor| is_draft_matrix(tensor.name())) {
        return refuse(NextnProblem::None);
    }
    if hyper.layers.iter().any(|layer| layer.recurrent) {
        return refuse(NextnProblem::Recurrent);
    }
    match architecture.defaults.draft_input {
        Some(from) => Ok(from),
        None if has_snapshots(gguf, parts) => refuse(NextnProblem::Recurrent),
        None => {
            let known = architectures().filter(|row| row.defaults.draft_input.is_some());
            let known = known.map(|row| row.name).collect();
            refuse(NextnProblem::Architecture { architecture: architecture.name, known })
        }
    }
}

/// Returns whether a model has states that cannot be truncated to an earlier position.
fn has_snapshots(gguf: &Gguf, parts: Parts) -> bool {
    let model = build_parts(gguf, Parts { nextn: Nextn::Absent, ..parts });
    model.is_ok_and(|model| model.module.states.iter().any(|state| state.rollback != Rollback::Cut))
}

/// Returns whether the vectors of texts have length 1. GGUF files without the key mean yes; for
/// folders, `modules.json` decides.
fn unit(gguf: &Gguf, architecture: &str) -> Result<bool, GgufError> {
    gguf.metadata().read_or(&format!("{architecture}.embedding_normalized"), true)
}

/// Reads `ARCHITECTURE.pooling_type`, with llama.cpp's numbers; 0 means no pooling.
fn pooling(gguf: &Gguf, architecture: &str) -> Result<Option<Pooling>, GgufError> {
    let key = format!("{architecture}.pooling_type");
    Ok(match gguf.metadata().read_or(&key, 0u32)? {
        0 => None,
        1 => Some(Pooling::Mean),
        2 => Some(Pooling::First),
        3 => Some(Pooling::Last),
        other => return Err(gguf.metadata().bad_value(&key, other, "0 to 3 (none, mean, cls, last)")),
    })
}
