//! Target for GGUF files: the header, the vocabulary, and the graph of the model.

use std::path::Path;

use ixc_compile::model::{Model, tokenizer};
use ixc_model_files::gguf::Gguf;
use ixc_model_files::gguf::write::GgufWriter;

use crate::{Outcome, small_models};

/// Dictionary of GGUF: keys and values.
pub const DICTIONARY: &[&str] = &[
    "GGUF",
    "general.architecture",
    "general.alignment",
    "llama",
    "qwen2",
    "gemma3",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.attention.head_count",
    "llama.rope.dimension_count",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "split.count",
    "\u{1}\0\0\0",
    "\u{4}\0\0\0",
    "\u{8}\0\0\0",
    "\t\0\0\0",
];

/// Reads a GGUF file, and builds its tokenizer and its graph.
pub fn gguf(input: &[u8]) -> Outcome {
    let gguf = match Gguf::from_bytes(Path::new("m.gguf"), input.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => {
            let class = error.class();
            assert!(!error.to_string().contains(|c: char| c.is_control()), "control characters in {error}");
            return Outcome::refused_as(error, class);
        }
    };
    assert_sound(&gguf);
    if let Ok(tokenizer) = tokenizer(&gguf) {
        super::texts::encode(&tokenizer);
    }
    match Model::new(gguf) {
        Ok(model) => Outcome::Accepted(format!("model {}", model.arch.hyper.architecture)),
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(format!("file accepted, {error}"), class)
        }
    }
}

/// Checks that an accepted file has the properties that the reader guarantees. Derived tensors are
/// skipped, because they are not in a file.
pub fn assert_sound(gguf: &Gguf) {
    let stored: Vec<_> = gguf.tensors().filter(|tensor| tensor.file() < gguf.files().len()).collect();
    let mut ranges: Vec<_> = stored.iter().map(|t| [t.file() as u64, t.offset(), t.offset() + t.bytes()]).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0][0] != pair[1][0] || pair[0][2] <= pair[1][1], "overlap: {pair:?}");
    }
    for tensor in stored {
        let file = &gguf.files()[tensor.file()];
        assert!(tensor.offset() + tensor.bytes() <= file.data().len() as u64);
        assert_eq!(gguf.tensor_data(tensor).len() as u64, tensor.bytes());
        assert_eq!(tensor.tensor_type().tensor_bytes(tensor.dims()), Some(tensor.bytes()));
    }
    for (key, value) in gguf.metadata().iter() {
        assert!(std::ptr::eq(gguf.metadata().get(key).expect("a key of the list"), value));
        let _ = value.to_string();
    }
}

/// Returns GGUF files without a model, and one with a complete model.
pub fn seeds() -> Vec<Vec<u8>> {
    let plain = GgufWriter::new()
        .key("general.architecture", "llama")
        .key("tokens", vec!["a", "bc", "", "d"])
        .key("scores", vec![0.5f32, 1.0])
        .key("flag", true)
        .f32_tensor("one", &[5], &[1.0; 5]);
    vec![plain.finish(), small_models::gguf().finish()]
}
