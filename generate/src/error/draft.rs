//! Why a model cannot guess for another one.

use ixc_failure::Class;

/// A model that cannot guess for another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// A token that says something else.
    #[error("token {id} is {draft:?} in it and {model:?} in the model; a draft model has the model's own vocabulary")]
    Token {
        /// Which.
        id: u32,
        /// What it says in the draft model.
        draft: String,
        /// What it says in the model.
        model: String,
    },
    /// A token of a kind of its own in one of the two alone.
    #[error(
        "token {id}, {text:?}, is {} in it and {} in the model; a draft model has the model's own vocabulary",
        kind(.draft_is_text), kind(.model_is_text)
    )]
    Kind {
        /// Which.
        id: u32,
        /// What it says in both.
        text: String,
        /// Whether it is text in the draft model.
        draft_is_text: bool,
        /// Whether it is text in the model.
        model_is_text: bool,
    },
    /// What texts begin with.
    #[error("texts begin with {} in it and with {} in the model", begin(.draft), begin(.model))]
    Begin {
        /// The token that the draft model wants there.
        draft: Option<u32>,
        /// The one that the model does.
        model: Option<u32>,
    },
    /// A state of it cannot be cut.
    #[error(
        "its states cannot be cut back by a few tokens (recurrent ones cannot), as it must be where a guess was wrong"
    )]
    Uncut,
}

impl DraftError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            DraftError::Token { .. } | DraftError::Kind { .. } | DraftError::Begin { .. } | DraftError::Uncut => {
                Class::Data
            }
        }
    }
}

/// A layer of a model that cannot guess for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnLayerError {
    /// It is no such layer.
    #[error(
        "it takes no hidden states and gives none, as what guesses does: the model is to be built as its nextn layer alone"
    )]
    Layer,
    /// The model gives it nothing to guess from.
    #[error("it takes hidden states of {takes} numbers, and the model gives {}; the model is to be built with these", gives.map_or_else(|| "none".to_owned(), |gives| format!("{gives}")))]
    Hidden {
        /// Elements of a hidden state that the layer takes.
        takes: u32,
        /// Elements of those that the model gives, where it gives some.
        gives: Option<u32>,
    },
    /// It is of another vocabulary.
    #[error("its vocabulary is of {layer} tokens, the model's of {model}: it is the layer of another model")]
    Vocabulary {
        /// Of the layer.
        layer: u32,
        /// Of the model.
        model: u32,
    },
    /// A state of it cannot be cut.
    #[error("its states cannot be cut, as they must be where a guess was wrong")]
    Uncut,
}

impl OwnLayerError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            OwnLayerError::Layer
            | OwnLayerError::Hidden { .. }
            | OwnLayerError::Vocabulary { .. }
            | OwnLayerError::Uncut => Class::Data,
        }
    }
}

fn kind(is_text: &bool) -> &'static str {
    if *is_text { "text" } else { "a control token" }
}

fn begin(token: &Option<u32>) -> String {
    token.map_or_else(|| "none".to_owned(), |token| format!("token {token}"))
}
