//! Readers of model files, tokenizers, chat templates, and the architectures that build graphs.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`gguf`] | the GGUF reader |

pub mod gguf;
