//! Options of llama-cli and llama-server with one dash and several letters: clap would read `-cnv`
//! as `-c nv` and `-sys x` as `-s ys x`.

use std::ffi::{OsStr, OsString};

/// Spellings in llama.cpp and here, by command.
const SPELLINGS: [(&str, &[(&str, &str)]); 2] = [
    (
        RUN,
        &[
            ("-cnv", "--chat"),
            ("-no-cnv", "--no-chat"),
            ("-sys", "--system"),
            ("-jf", "--json-schema-file"),
            ("-md", "--model-draft"),
        ],
    ),
    ("serve", &[("-md", "--model-draft")]),
];
const RUN: &str = "run";
/// Options of llama-cli that ixc does not have, and the reasons.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("-ngl", "there is no GPU to put layers on"),
    ("-fa", "attention is always computed as with -fa"),
    ("-ctk", "`--kv FORMAT` says what keys and values are kept in, `--kv KEYS,VALUES` of each"),
    ("-ctv", "`--kv FORMAT` says what keys and values are kept in, `--kv KEYS,VALUES` of each"),
    ("-tb", "-t is for the prompt, too"),
    ("-ub", "`ixc compile --max-tokens` says how many tokens are computed at once"),
    ("-st", "--chat with -p is one turn"),
    ("-sysf", "--system takes the text itself, such as \"$(cat FILE)\""),
];
/// Options whose value may look like an option.
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
    let Some((name, spellings)) = SPELLINGS.iter().find(|(name, _)| arguments[command + 1] == *name) else {
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
        if let Some((option, why)) = UNSUPPORTED.iter().find(|(option, _)| *name == RUN && argument == option) {
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

    fn spelled(line: &str) -> Result<String, String> {
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
            // The word after one of these options is text.
            ("ixc run -p -cnv -cnv", "ixc run -p -cnv --chat"),
            ("ixc run -sys -sys -cnv", "ixc run --system -sys --chat"),
            ("ixc run -- -cnv", "ixc run -- -cnv"),
            ("ixc bench -cnv", "ixc bench -cnv"),
            ("ixc run -md small.gguf", "ixc run --model-draft small.gguf"),
            ("ixc serve -md small.gguf -cnv", "ixc serve --model-draft small.gguf -cnv"),
            ("ixc", "ixc"),
        ] {
            assert_eq!(spelled(line).as_deref(), Ok(expected));
        }
        assert!(spelled("ixc run m.gguf -ngl 99").unwrap_err().contains("no GPU"));
    }
}
