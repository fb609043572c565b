//! Readers of model files, tokenizers, chat templates, and the architectures that build graphs.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`arch`] | architectures: from a file to a graph |
//! | [`gguf`] | the GGUF reader |

pub mod arch;
pub mod gguf;
