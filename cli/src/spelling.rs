//! Options of llama.cpp's programs, with their counterparts in ixc. Some have one dash and several
//! letters: clap would read `-cnv` as `-c nv` and `-sys x` as `-s ys x`. For options without a
//! counterpart, the error gives the reason.

use std::ffi::{OsStr, OsString};

/// Spellings in llama.cpp and in ixc, by command.
const SPELLINGS: [(&str, &[(&str, &str)]); 4] = [
    (
        "run",
        &[
            ("-cnv", "--chat"),
            ("-no-cnv", "--no-chat"),
            ("-sys", "--system"),
            ("-jf", "--json-schema-file"),
            ("-md", "--model-draft"),
            ("-np", "--parallel"),
        ],
    ),
    ("serve", &[("-md", "--model-draft"), ("-np", "--parallel")]),
    ("bench", &[]),
    ("eval", &[]),
];
/// Options of llama.cpp's programs that ixc does not have, and the reasons.
const UNSUPPORTED: [(&[&str], &str); 13] = [
    (&["-ngl", "--n-gpu-layers", "--gpu-layers"], "ixc does not use a GPU; leave this option out"),
    (&["-fa", "--flash-attn"], "flash attention is always on; leave this option out"),
    (&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], "`--kv KEYS,VALUES` sets the formats of the KV cache"),
    (&["-tb", "--threads-batch"], "-t sets the threads for prompts and for generated tokens"),
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size"],
        "`ixc compile --max-tokens` sets the maximum number of tokens in a step",
    ),
    (&["-st", "--single-turn"], "--chat with -p answers one turn and ends"),
    (&["-sysf", "--system-prompt-file"], "--system takes the text itself, such as \"$(cat FILE)\""),
    (&["--mmap", "--no-mmap"], "model files are always mapped into memory; leave this option out"),
    (&["--jinja", "--no-jinja"], "chat templates are always rendered as Jinja; leave this option out"),
    (
        &["-cb", "--cont-batching", "-nocb", "--no-cont-batching"],
        "the server always batches continuously; leave this option out",
    ),
    (
        &["--metrics", "--slots", "--props"],
        "the server always serves /metrics, /slots and /props; leave this option out",
    ),
    (&["-mm", "--mmproj"], "models with images run as text models, without their projector; leave this option out"),
    (&["--lora", "--lora-scaled"], "LoRA adapters are not supported"),
];
/// Options whose value is text that may look like an option.
const TEXTS: [&str; 10] =
    ["-p", "--prompt", "--system", "--system-prompt", "-sys", "-r", "--stop", "--grammar", "-j", "--json-schema"];

/// Replaces llama.cpp's spellings by those of this program. The error is a text.
///
/// # Errors
/// If an option has no counterpart here.
pub fn of_llama(mut arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let is_option = |argument: &OsStr| argument.as_encoded_bytes().starts_with(b"-");
    let Some(command) = arguments.iter().skip(1).position(|argument| !is_option(argument)) else {
        return Ok(arguments);
    };
    let Some((_, spellings)) = SPELLINGS.iter().find(|(name, _)| arguments[command + 1] == *name) else {
        return Ok(arguments);
    };
    let mut text = false;
    for argument in arguments.iter_mut().skip(command + 2) {
        if *argument == "--" {
            break;
        }
        let is_text = std::mem::replace(&mut text, TEXTS.iter().any(|option| argument == option));
        if is_text {
            text = false;
            continue;
        }
        let mut unsupported =
            UNSUPPORTED.iter().flat_map(|(options, why)| options.iter().map(move |option| (option, why)));
        if let Some((option, why)) = unsupported.find(|(option, _)| argument == *option) {
            return Err(format!("ixc has no {option}: {why}"));
        }
        if let Some((_, ours)) = spellings.iter().find(|(theirs, _)| argument == theirs) {
            *argument = (*ours).into();
        }
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_line(line: &str) -> Result<String, String> {
        let arguments = of_llama(line.split(' ').map(OsString::from).collect())?;
        Ok(arguments.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn single_dash_long_options_are_rewritten() {
        for (line, expected) in [
            ("ixc run m.gguf -cnv -sys Brief", "ixc run m.gguf --chat --system Brief"),
            ("ixc run -no-cnv -p Hello", "ixc run --no-chat -p Hello"),
            ("ixc -q run -cnv", "ixc -q run --chat"),
            ("ixc run -jf schema.json", "ixc run --json-schema-file schema.json"),
            // The word after `-p` or `-sys` is text.
            ("ixc run -p -cnv -cnv", "ixc run -p -cnv --chat"),
            ("ixc run -sys -sys -cnv", "ixc run --system -sys --chat"),
            ("ixc run -- -cnv", "ixc run -- -cnv"),
            ("ixc bench -cnv", "ixc bench -cnv"),
            ("ixc run -md small.gguf", "ixc run --model-draft small.gguf"),
            ("ixc serve -md small.gguf -cnv", "ixc serve --model-draft small.gguf -cnv"),
            ("ixc serve -np 8", "ixc serve --parallel 8"),
            ("ixc quantise -ngl 99", "ixc quantise -ngl 99"),
            ("ixc run -p --jinja", "ixc run -p --jinja"),
            ("ixc", "ixc"),
        ] {
            assert_eq!(check_line(line).as_deref(), Ok(expected));
        }
        for (line, says) in [
            ("ixc run m.gguf -ngl 99", "ixc has no -ngl: ixc does not use a GPU"),
            ("ixc serve m.gguf --n-gpu-layers 99", "ixc has no --n-gpu-layers: ixc does not use a GPU"),
            ("ixc serve m.gguf --no-mmap", "ixc has no --no-mmap: model files are always mapped"),
            ("ixc bench -fa 1", "ixc has no -fa: flash attention"),
            ("ixc eval m.gguf -ctk q8_0", "`--kv KEYS,VALUES`"),
        ] {
            let error = check_line(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
