//! Errors of draft models and draft layers.

use ixc_failure::Class;

/// Reason why a draft model does not match its model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// A token with different texts in the two models.
    #[error(
        "token {id} is {draft:?} in the draft model's vocabulary, and {model:?} in the model's; expected equal vocabularies"
    )]
    Token {
        /// Id of the token.
        id: u32,
        /// Text of the token in the draft model.
        draft: String,
        /// Text of the token in the model.
        model: String,
    },
    /// A token that is text in one model and a control token in the other.
    #[error(
        "token {id}, {text:?}, is {} in the draft model's vocabulary, and {} in the model's; expected equal vocabularies",
        kind(.draft_is_text), kind(.model_is_text)
    )]
    Kind {
        /// Id of the token.
        id: u32,
        /// Text of the token in both models.
        text: String,
        /// Whether the token is text in the draft model.
        draft_is_text: bool,
        /// Whether the token is text in the model.
        model_is_text: bool,
    },
    /// Texts begin with different tokens in the two models.
    #[error("the draft model begins texts with {}, and the model with {}; expected the same token", begin(.draft), begin(.model))]
    Begin {
        /// First token of the draft model's texts, if any.
        draft: Option<u32>,
        /// First token of the model's texts, if any.
        model: Option<u32>,
    },
    /// The draft model's states cannot be truncated after a rejected draft.
    #[error("its recurrent states cannot be restored after a rejected draft")]
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

/// Reason why a draft layer does not match its model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnLayerError {
    /// The layer does not both take and return hidden states.
    #[error("the draft layer does not take and return hidden states; build a graph of only the nextn layer")]
    Layer,
    /// The model does not return the hidden states that the layer takes.
    #[error("the draft layer takes hidden states of {takes} numbers, and the model returns {}; build the model with hidden states as a result", gives.map_or_else(|| "none".to_owned(), |gives| format!("{gives}")))]
    Hidden {
        /// Elements of a hidden state that the layer takes.
        takes: u32,
        /// Elements of a hidden state that the model returns, if any.
        gives: Option<u32>,
    },
    /// The layer has a vocabulary of another size.
    #[error(
        "the draft layer's vocabulary has {layer} tokens, and the model's has {model}; expected a draft layer of this model"
    )]
    Vocabulary {
        /// Size of the layer's vocabulary.
        layer: u32,
        /// Size of the model's vocabulary.
        model: u32,
    },
    /// The draft layer's states cannot be truncated after a rejected draft.
    #[error("the states of the draft layer cannot be restored after a rejected draft")]
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
