//! Chats in a terminal: each line is a question, and its answer is printed while it is generated.
//!
//! ```text
//! cargo run --release --example chat -- model.gguf
//! ```
//!
//! Without a path, the demo model answers. It is small, so its text makes little sense.

use std::io::{self, Write};
use std::path::PathBuf;

use ixc::runtime::sample::SamplerSettings;
use ixc::text::template::known;
use ixc::{LoadOptions, Message, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let mut session = Session::open(path.as_deref(), &LoadOptions::default())?;
    if session.model().chat_template().is_none() {
        session.text_options_mut().chat.template = known::find("chatml").map(|known| known.template());
    }
    session.text_options_mut().limit = Some(128);
    // The likeliest token at each step, so that the same questions get the same answers.
    session.text_options_mut().sampling = SamplerSettings::greedy().into();

    let mut messages = vec![Message::new("system", "Be brief.")];
    for line in io::stdin().lines() {
        messages.push(Message::new("user", line?));
        for piece in session.chat(&messages)? {
            print!("{piece}");
            io::stdout().flush()?;
        }
        println!();
        // An error during the generation ended the loop, and is returned here.
        if let Some(completion) = session.take_completion()? {
            messages.push(completion.into_message());
        }
    }
    Ok(())
}
