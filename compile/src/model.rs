//! A model file that was opened and checked, with its graph, and exact logits from the reference
//! interpreter.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ixc_architectures::{FileWeights, Parts};
use ixc_files::open_regular;
use ixc_ir::graph::expert_layers;
use ixc_ir::graph::interpret::Interpreter;
use ixc_ir::plan::FILE_MAGIC;
use ixc_model_files::gguf::{self, Gguf};
use ixc_text::tokenizer::{ModelKind, Tokenizer, TokenizerError, TokenizerSpec};

use crate::Error;

/// Model file with its graph and vocabulary.
#[derive(Debug)]
pub struct Model {
    /// Contents of the model file: keys and tensors.
    pub gguf: Gguf,
    /// Hyperparameters and graph of the model.
    pub arch: ixc_architectures::Model,
    /// Vocabulary from the file. It is empty if it needs a pre-tokenizer that is not supported; the
    /// model then still runs on token ids.
    pub vocabulary: TokenizerSpec,
}

impl Model {
    /// Opens a model (a GGUF file, or a folder of safetensors) and builds its graph.
    ///
    /// # Errors
    /// Fails if the file is missing, malformed, or not a supported model.
    pub fn open(path: &Path) -> Result<Model, Error> {
        Model::open_parts(path, Parts::ALL)
    }

    /// Opens a model like [`Model::open`], but builds only parts of its graph: see
    /// [`Model::of_parts`].
    ///
    /// # Errors
    /// See [`Model::open`].
    pub fn open_parts(path: &Path, parts: Parts) -> Result<Model, Error> {
        Model::of_parts(Input::open(path)?.model(path)?, parts)
    }

    /// Builds the graph of an open file.
    ///
    /// # Errors
    /// Fails if the file is not a supported model.
    pub fn new(gguf: Gguf) -> Result<Model, Error> {
        Model::of_parts(gguf, Parts::ALL)
    }

    /// Builds the graph of parts of an open file. The graph may have only the first layers, to
    /// measure the time of a layer. Or it may return hidden states instead of logits, for
    /// embeddings.
    ///
    /// # Errors
    /// See [`Model::new`].
    pub fn of_parts(gguf: Gguf, parts: Parts) -> Result<Model, Error> {
        let arch = ixc_architectures::build_parts(&gguf, parts)?;
        Model::of_arch(gguf, arch)
    }

    /// Builds the graph of an open file for display: [`ixc_architectures::build_to_see`].
    ///
    /// # Errors
    /// See [`Model::new`].
    pub fn to_see(gguf: Gguf) -> Result<Model, Error> {
        let arch = ixc_architectures::build_to_see(&gguf)?;
        Model::of_arch(gguf, arch)
    }

    fn of_arch(gguf: Gguf, arch: ixc_architectures::Model) -> Result<Model, Error> {
        let vocabulary = match vocabulary(&gguf) {
            Err(Error::Tokenizer(error @ TokenizerError::UnknownPreTokenizer { .. })) => {
                tracing::warn!("{error}; the model takes token ids only");
                TokenizerSpec::default()
            }
            other => other?,
        };
        gguf.check_readable()?;
        tracing::info!(
            architecture = arch.hyper.architecture,
            layers = arch.hyper.layers.len(),
            files = gguf.files().len(),
            "model read"
        );
        Ok(Model { gguf, arch, vocabulary })
    }

    /// Returns new handles to the model's open files, by file number. Loading the model's plan then
    /// opens no file again. A file in memory has no handle.
    ///
    /// # Errors
    /// Fails if the system gives no more handles.
    pub fn handles(&self) -> Result<Vec<Option<File>>, Error> {
        self.gguf.handles().map_err(Error::io(self.gguf.metadata().path(), "open"))
    }

    /// Reduces the model's graph to its routed experts: a function for each layer with experts
    /// ([`expert_layers`]). The plan of such a graph is for `ixc_generate::moe::Moe`.
    ///
    /// # Errors
    /// Fails if no layer has routed experts, or if the experts of a layer have inputs other than
    /// rows, ids and weights.
    pub fn into_expert_layers(mut self) -> Result<Model, Error> {
        self.arch.module = expert_layers::cut(&self.arch.module, &ixc_architectures::layer_of)?;
        self.arch.output = ixc_architectures::Output::Experts;
        Ok(self)
    }

    /// Checks token ids from an untrusted source.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::NoTokens`].
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.arch.hyper.vocabulary)?;
        let context = usize::try_from(self.arch.hyper.context_length).unwrap_or(usize::MAX);
        if tokens.len() > context {
            return Err(Error::Context { tokens: tokens.len(), context, model: context });
        }
        Ok(())
    }

    /// Computes logits at every position, `[tokens, vocabulary]`, or hidden states if the graph
    /// returns these. It slowly computes in f32 from dequantised weights.
    ///
    /// # Errors
    /// Fails if a token is not in the vocabulary.
    pub fn exact_logits(&self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.check_tokens(tokens)?;
        let weights = FileWeights::new(&self.gguf, &self.arch.module);
        let mut interpreter = Interpreter::new(&self.arch.module, &weights)?.with_context(tokens.len() as u64);
        let mut logits = Vec::new();
        // A step has many tokens, since every step dequantises all weights that it uses. A model
        // that is not causal gets all tokens at once.
        let step = if self.arch.hyper.causal { EXACT_STEP } else { tokens.len() };
        for (index, chunk) in tokens.chunks(step).enumerate() {
            let start = index * step;
            let positions: Vec<u32> = (start as u32..).take(chunk.len()).collect();
            let rows: Vec<u32> = (0..chunk.len() as u32).collect();
            logits.extend(interpreter.step(chunk, &positions, &rows)?);
        }
        self.gguf.check_readable()?;
        Ok(logits)
    }
}

/// Opens a model's files: a GGUF file, or a folder of safetensors.
///
/// # Errors
/// Fails if the files are missing or malformed.
pub fn open_files(path: &Path) -> Result<Gguf, Error> {
    Ok(ixc_architectures::open(path)?)
}

/// An open plan or model, for commands that accept both.
#[derive(Debug)]
pub enum Input {
    /// A plan's file, positioned at its beginning.
    Plan(File),
    /// A model's files.
    Model(Box<Gguf>),
}

impl Input {
    /// Opens a plan, or the files of a model. Each file is opened once.
    ///
    /// # Errors
    /// Fails if a file is missing, or the files of a model are malformed.
    pub fn open(path: &Path) -> Result<Input, Error> {
        let model = match open_regular(path) {
            Ok(file) if begins_plan(&file) => return Ok(Input::Plan(file)),
            Ok(file) => ixc_architectures::open_file(file, path)?,
            // The path is a folder, or a file whose error the reader of model files reports.
            Err(_) => open_files(path)?,
        };
        Ok(Input::Model(Box::new(model)))
    }

    /// Returns the files of a model. `path` is the path of the input.
    ///
    /// # Errors
    /// [`Error::IsPlan`].
    pub fn model(self, path: &Path) -> Result<Gguf, Error> {
        match self {
            Input::Model(gguf) => Ok(*gguf),
            Input::Plan(_) => Err(Error::IsPlan { path: path.to_owned() }),
        }
    }
}

/// Whether a file starts like a plan. The read position does not change.
fn begins_plan(file: &File) -> bool {
    let mut magic = [0; FILE_MAGIC.len()];
    file.read_exact_at(&mut magic, 0).is_ok() && magic[..] == FILE_MAGIC[..]
}

/// Reads and checks the vocabulary of a file. A file without a vocabulary gives
/// [`ModelKind::None`].
///
/// # Errors
/// Fails if the vocabulary contradicts itself or the embedding matrix.
pub fn vocabulary(gguf: &Gguf) -> Result<TokenizerSpec, Error> {
    let spec = gguf::read_vocabulary(gguf.metadata())?;
    if let (Some(embedding), false) = (gguf.tensor("token_embd.weight"), spec.model == ModelKind::None) {
        // A GGUF tensor's dimensions have the row length first.
        spec.check_embedding_rows(embedding.dims().get(1).copied().unwrap_or(1))?;
    }
    Ok(spec)
}

/// Returns the tokenizer of a file.
///
/// # Errors
/// Fails if there is no vocabulary, or it is inconsistent or unsupported.
pub fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::new(&vocabulary(gguf)?)?)
}

/// Max tokens in one step of the interpreter.
const EXACT_STEP: usize = 128;

/// Checks untrusted token ids against a vocabulary.
///
/// # Errors
/// [`Error::Token`], [`Error::NoTokens`].
pub fn check_tokens(tokens: &[u32], vocabulary: u64) -> Result<(), Error> {
    if tokens.is_empty() {
        return Err(Error::NoTokens);
    }
    match tokens.iter().position(|&id| u64::from(id) >= vocabulary) {
        Some(position) => Err(Error::Token { position, id: tokens[position].into(), vocabulary }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_known_by_their_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (plan, other) = (folder.path().join("model.ixp"), folder.path().join("other.ixp"));
        std::fs::write(&plan, [&FILE_MAGIC[..], b"..."].concat()).unwrap();
        std::fs::write(&other, &FILE_MAGIC[..7]).unwrap();
        assert!(matches!(Input::open(&plan), Ok(Input::Plan(_))));
        for path in [&other, folder.path()] {
            assert!(Input::open(path).is_err());
        }
    }
}
