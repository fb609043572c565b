//! Continues a text, and prints the reason of the end and the numbers of tokens.
//!
//! ```text
//! cargo run --release --example complete -- model.gguf "The borrow checker"
//! ```
//!
//! Without arguments, the demo model continues "The borrow checker".

use std::io::{self, Write};
use std::path::PathBuf;

use ixc::runtime::sample::SamplerSettings;
use ixc::{LoadOptions, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map(PathBuf::from);
    let prompt = arguments.next().unwrap_or_else(|| "The borrow checker".into());
    let mut session = Session::open(path.as_deref(), &LoadOptions::default())?;
    let options = session.text_options_mut();
    (options.limit, options.sampling) = (Some(32), SamplerSettings::greedy().into());
    options.stop = ["\n\n".into()].into();

    print!("{prompt}");
    let mut text = session.complete(&prompt)?;
    while let Some(piece) = text.try_next()? {
        print!("{piece}");
        io::stdout().flush()?;
    }
    let completion = text.finish()?;
    println!("\n{:?}: {} tokens after {}", completion.end, completion.tokens.len(), completion.prompt_tokens);
    Ok(())
}
