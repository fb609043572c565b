//! Errors of measuring. They wrap errors of `ixc-generate`.

pub mod record;

use std::path::{Path, PathBuf};

use ixc_compile::Error as CompileError;
use ixc_failure::{Class, Remedy, from_inner};
use ixc_generate::Error as GenerationError;
use ixc_runtime::engine::StepError;
use ixc_runtime::load::LoadError;
use ixc_text::tokenizer::TokenizerError;

use record::RecordError;

/// Error of measuring a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Generate(#[from] Box<GenerationError>),
    /// The record of an evaluation cannot be continued.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The forecast needs the speed of the drive, and reads of this file cannot measure it.
    #[error("{}: cannot measure the speed of the drive with this file; expected a regular file on a block device", path.display())]
    NoDrive {
        /// File that cannot measure the drive.
        path: PathBuf,
    },
    /// The plan holds all weights itself, but the model file is needed.
    #[error("{}: is a plan that holds all weights; also give the model file from which the plan was compiled", path.display())]
    NoModelFile {
        /// Path of the plan.
        path: PathBuf,
    },
    /// The model has no experts that could stay on the drive.
    #[error("{}: has no experts to stream from the drive; it always runs with all weights in memory", path.display())]
    NoExperts {
        /// Path of the model.
        path: PathBuf,
    },
    /// The text is shorter than one piece.
    #[error(
        "the text has {tokens} tokens; expected at least {context}, the tokens of a piece; use a longer text or a shorter context"
    )]
    ShortText {
        /// Number of tokens.
        tokens: usize,
        /// Tokens of a piece.
        context: usize,
    },
    /// Two models have vocabularies of different sizes.
    #[error("the models have vocabularies of {} and {} tokens; expected equal vocabularies, since predictions of the same tokens are compared", vocabularies[0], vocabularies[1])]
    OtherVocabulary {
        /// Sizes of both vocabularies.
        vocabularies: [usize; 2],
    },
    /// A logit is not finite, so the prediction cannot be scored.
    #[error("piece {piece}, position {position}: a logit is not finite; expected finite logits at all positions")]
    LogitsNotFinite {
        /// Index of the piece.
        piece: usize,
        /// Index of the position in the piece.
        position: usize,
    },
}

from_inner!(Error, Box<GenerationError>: GenerationError);
from_inner!(Error, GenerationError: CompileError, LoadError, StepError, TokenizerError);

impl Error {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Generate(error) => error.class(),
            Error::Record(error) => error.class(),
            Error::NoModelFile { .. } => Class::Usage,
            Error::NoDrive { .. }
            | Error::NoExperts { .. }
            | Error::ShortText { .. }
            | Error::OtherVocabulary { .. }
            | Error::LogitsNotFinite { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Generate(error) => error.remedy(),
            Error::Record(error) => error.remedy(),
            Error::NoModelFile { .. } => Some(Remedy::FindModelFile),
            Error::ShortText { .. } => Some(Remedy::ShorterPieces),
            _ => None,
        }
    }

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Generate(error) => error.missing_file(),
            _ => None,
        }
    }

    /// Returns whether the error is only that the reader of standard output has closed it.
    pub fn is_closed_standard_output(&self) -> bool {
        matches!(self, Error::Generate(error) if error.is_closed_standard_output())
    }
}
