//! Runs the demo model from another program:
//! `cargo run --release --example embed -- "The borrow checker"`.

use std::io::Write;
use std::ops::ControlFlow;

use ixc::generator::Request;
use ixc::loaded_model::LoadOptions;
use ixc::runtime::sample::Settings;
use ixc::session::Session;

fn main() -> Result<(), ixc::Error> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "The borrow checker".into());
    // A path in place of `None` opens a GGUF file or a plan.
    let mut session = Session::open(None, &LoadOptions::default())?;
    let tokens = session.model().encode_prompt(&prompt)?;

    print!("{prompt}");
    let request = Request { limit: Some(48), ..Request::new(tokens, Settings::greedy()) };
    let generation = session.generate(&request, |event| -> Result<ControlFlow<()>, ixc::Error> {
        if let Some(text) = event.text() {
            print!("{text}");
            std::io::stdout().flush().map_err(ixc::Error::io("standard output".as_ref(), "write"))?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    println!("\n({} tokens, {:?})", generation.tokens.len(), generation.end);
    Ok(())
}
