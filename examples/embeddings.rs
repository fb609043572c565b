//! Computes embeddings of texts, and prints the cosine of each pair.
//!
//! ```text
//! cargo run --release --example embeddings -- model.gguf "A cat sleeps." "A dog sleeps."
//! ```
//!
//! The model may be an encoder or a text model. Without arguments, it is the demo model.

use std::path::PathBuf;

use ixc::LoadOptions;
use ixc::embedding::Embedder;
use ixc::loaded_model::LoadedModel;

fn main() -> Result<(), ixc::Error> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map(PathBuf::from);
    let mut texts: Vec<String> = arguments.collect();
    if texts.is_empty() {
        texts = ["A trait has methods.", "A trait has functions.", "The borrow checker"].map(String::from).to_vec();
    }
    let mut options = LoadOptions { embeddings: true, ..LoadOptions::default() };
    // Texts that are computed together: weights are read once for all of them.
    options.run.sequences = 4;
    let mut embedder = Embedder::new(LoadedModel::open(path.as_deref(), &options)?, None)?;

    let tokens = texts.iter().map(|text| embedder.encode(text)).collect::<Result<_, _>>()?;
    // One f32 vector of `embedder.width()` numbers for each text, of length 1.
    let vectors = embedder.embed(tokens)?;
    for (text, vector) in texts.iter().zip(&vectors) {
        for other in &vectors {
            let cosine: f32 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
            print!("{cosine:5.2} ");
        }
        println!(" {text}");
    }
    Ok(())
}
