//! Runs the demo model from another program: `cargo run --release --example embed -- "The borrow checker"`.

use std::io::Write;
use std::ops::ControlFlow;

use ixc::frontend::tokenizer::DecodeOptions;
use ixc::runtime::sample::Settings;
use ixc::session::{Progress, Request, Session, SessionOptions};

fn main() -> Result<(), ixc::Error> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "The borrow checker".into());
    // A path in place of `None` opens a GGUF file or a plan.
    let mut session = Session::open(None, &SessionOptions::default())?;
    let tokens = session.encode_prompt(&prompt)?;
    let tokenizer = session.tokenizer()?.clone();
    let mut text = tokenizer.stream(DecodeOptions { show_special: false, at_start: false });

    print!("{prompt}");
    let request = Request { limit: Some(48), ..Request::new(&tokens, Settings::greedy()) };
    let generation = session.generate(&request, |progress| -> Result<ControlFlow<()>, ixc::Error> {
        if let Progress::Token(id) = progress {
            print!("{}", text.push(id)?);
            std::io::stdout().flush().map_err(ixc::Error::io("standard output".as_ref(), "write"))?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    println!("{}\n({} tokens, {:?})", text.finish(), generation.tokens.len(), generation.end);
    Ok(())
}
