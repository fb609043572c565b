//! Generates the answers to many requests at once: a step of the engine has rows of all of them.
//!
//! ```text
//! cargo run --release --example requests -- model.gguf "A trait is" "A macro is" "A lifetime is"
//! ```
//!
//! Without arguments, the demo model continues six texts. Four are computed at once, and the others
//! wait for a sequence. Each text is the same as if it were computed alone.

use std::collections::HashMap;
use std::path::PathBuf;

use ixc::LoadOptions;
use ixc::generator::{Event, Generator, Request};
use ixc::loaded_model::LoadedModel;
use ixc::runtime::sample::SamplerSettings;

fn main() -> Result<(), ixc::Error> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map(PathBuf::from);
    let mut prompts: Vec<String> = arguments.collect();
    if prompts.is_empty() {
        prompts = ["trait", "macro", "lifetime", "closure", "slice", "crate"].map(|word| format!("A {word} is")).into();
    }
    let mut options = LoadOptions::default();
    options.run.sequences = 4;
    let mut generator = Generator::new(LoadedModel::open(path.as_deref(), &options)?)?;

    // Each text begins with its prompt.
    let mut texts = HashMap::new();
    for prompt in prompts {
        let tokens = generator.model().encode_prompt(&prompt)?;
        let request = Request { limit: Some(12), ..Request::new(tokens, SamplerSettings::greedy()) };
        texts.insert(generator.submit(request)?, prompt);
    }
    while !generator.is_idle() {
        for (id, event) in generator.step() {
            texts.entry(id).or_default().push_str(event.text().unwrap_or_default());
            match event {
                Event::Ended { end, .. } => println!("{:?}, {end:?}", texts[&id]),
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}
