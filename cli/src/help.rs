//! Help of commands. `--help` prints everything, with headings for many options. `-h` prints one
//! screen: the most common options, the first sentence of each text, and a few examples.

use clap::{Arg, Command};

/// The widest help, in columns.
pub const WIDEST: usize = 100;
/// Commands with more options than this have headings and a short help.
const MANY: usize = 14;
/// Number of examples in a short help.
const EXAMPLES: usize = 3;

/// Heading with its options, by their long names.
struct Group {
    heading: &'static str,
    /// Options that the short help shows.
    common: &'static [&'static str],
    /// Options of the group that only `--help` shows, and not `-h`.
    rest: &'static [&'static str],
}

/// All groups, in the order of `--help`.
const GROUPS: [Group; 10] = [
    Group {
        heading: "Model",
        common: &["threads", "ctx"],
        rest: &[
            "model",
            "download",
            "target",
            "pin",
            "numa",
            "mlock",
            "no-pack",
            "no-check",
            "emulate",
            "weights",
            "no-cache",
            "cache-dir",
            "cache-limit",
        ],
    },
    Group {
        heading: "Server",
        common: &["host", "port", "api-key", "api-key-file", "embeddings", "models-dir"],
        rest: &[
            "no-api-key",
            "allowed-host",
            "allowed-origin",
            "log-format",
            "alias",
            "queue",
            "prompt-rows",
            "exact-batch",
            "drain-delay",
            "request-timeout",
            "per-key-parallel",
            "prompt-cache",
            "prompt-cache-size",
            "prompt-cache-memory",
            "slot-save-path",
            "sandbox",
            "pooling",
        ],
    },
    Group {
        heading: "Text",
        common: &["prompt", "file", "raw", "chat", "system", "tokens", "parallel"],
        rest: &["chat-template", "context-shift", "keep", "drop-turns", "save-state", "load-state", "batch"],
    },
    Group {
        heading: "Memory",
        common: &["memory"],
        rest: &[
            "expert-memory",
            "experts",
            "queue-depth",
            "prefetch",
            "prefetch-extra",
            "predict",
            "cache",
            "defer",
            "kv",
            "expert-stats",
            "pin-experts",
            "pin-percent",
        ],
    },
    Group {
        heading: "Sampling",
        common: &["temp", "seed"],
        rest: &[
            "top-k",
            "top-p",
            "min-p",
            "repeat-penalty",
            "presence-penalty",
            "frequency-penalty",
            "repeat-last-n",
            "typical-p",
            "top-n-sigma",
            "xtc-probability",
            "xtc-threshold",
            "dry-multiplier",
            "dry-base",
            "dry-allowed-length",
            "dry-penalty-last-n",
            "dry-sequence-breaker",
            "dynatemp-range",
            "dynatemp-exp",
            "mirostat",
            "mirostat-ent",
            "mirostat-lr",
            "samplers",
            "sampling-seq",
            "ignore-eos",
            "stop",
        ],
    },
    Group { heading: "Grammar", common: &["json-schema"], rest: &["json-schema-file", "grammar", "grammar-file"] },
    Group {
        heading: "Speculation",
        common: &[],
        rest: &[
            "spec",
            "model-draft",
            "draft-max",
            "draft-min",
            "draft-p-min",
            "spec-ngram-max",
            "spec-ngram-min",
            "spec-always",
        ],
    },
    Group { heading: "Output", common: &["output", "json"], rest: &["force"] },
    Group {
        heading: "For kernel developers",
        common: &[],
        rest: &[
            "tile",
            "set",
            "start-from",
            "override",
            "no-override-check",
            "tuned",
            "perf",
            "trace",
            "stop-after",
            "dump-dir",
            "emit",
        ],
    },
    Group { heading: "Messages", common: &["stats", "quiet"], rest: &["verbose", "color", "log-file"] },
];

/// Adds headings to the options of commands with many options, in the order of [`GROUPS`].
pub fn with_headings(command: Command) -> Command {
    let many = has_many(&command);
    let command = command.mut_subcommands(with_headings);
    if !many {
        return command;
    }
    // Headings are printed in the order of their first options.
    let mut sorted: Vec<Arg> = command.get_arguments().cloned().collect();
    sorted.sort_by_key(|arg| match group_number(arg) {
        Some(number) => number + 1,
        None if arg.get_help_heading().is_some() => GROUPS.len() + 1,
        None => 0,
    });
    let mut sorted = sorted.into_iter();
    command.mut_args(|arg| {
        let arg = sorted.next().unwrap_or(arg);
        match group_of(&arg) {
            Some(group) => arg.help_heading(group.heading),
            None => arg,
        }
    })
}

/// Replaces the help of commands by the one that `-h` prints.
pub fn short(command: Command) -> Command {
    let path = command.get_name().to_owned();
    short_at(command, &path)
}

/// Shortens the help of a command, such as `ixc kernel list`, and of its subcommands.
fn short_at(command: Command, path: &str) -> Command {
    let many = has_many(&command);
    let mut is_cut = false;
    let mut first = |text: String| {
        let sentence = first_sentence(&text);
        is_cut |= sentence != text;
        sentence
    };
    let command = command.mut_args(|arg| {
        // The short help hides global options, except `--quiet`.
        let is_rare = arg.is_global_set() && arg.get_long() != Some("quiet");
        let is_hidden = many && group_of(&arg).is_some_and(|group| !is_common(group, &arg));
        // The short help has room for the whole help of a positional argument if there are few
        // options.
        let is_whole = arg.is_positional() && !many;
        let sentence = arg.get_help().filter(|_| !is_whole).map(|help| first(help.to_string()));
        let arg = if is_rare { arg.hide_short_help(true) } else { arg };
        let arg = if is_hidden { arg.hide(true) } else { arg };
        let arg = if many { arg.hide_possible_values(true).help_heading(None::<&'static str>) } else { arg };
        match sentence {
            Some(sentence) => arg.help(sentence),
            None => arg,
        }
    });
    let about = command.get_about().map(|about| first(about.to_string())).unwrap_or_default();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = first_examples(&after);
    is_cut |= examples != after;
    let command = command.about(about).mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        short_at(inner, &path)
    });
    let rest = match (command.has_subcommands(), many) {
        (true, _) => format!("\n\n`{path} COMMAND -h` shows the options of a command, and `{path} --help` more."),
        (false, true) => format!("\n\n`{path} --help` shows all options."),
        (false, false) if is_cut => format!("\n\n`{path} --help` shows more."),
        (false, false) => String::new(),
    };
    command.after_help(format!("{examples}{rest}"))
}

fn has_many(command: &Command) -> bool {
    command.get_arguments().filter(|arg| arg.get_long().is_some()).count() > MANY
}

/// Returns the position in [`GROUPS`] of the group that an option belongs to.
fn group_number(arg: &Arg) -> Option<usize> {
    let long = arg.get_long()?;
    GROUPS.iter().position(|group| group.common.contains(&long) || group.rest.contains(&long))
}

fn group_of(arg: &Arg) -> Option<&'static Group> {
    group_number(arg).and_then(|number| GROUPS.get(number))
}

fn is_common(group: &Group, arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| group.common.contains(&long))
}

/// Returns the first sentence of a help text, or its first clause up to a semicolon or colon
/// outside of parentheses. Keeps a default at the end of the help text.
fn first_sentence(help: &str) -> String {
    const DEFAULT: &str = " [default: ";
    let (text, default) = help.split_once(DEFAULT).map_or((help, None), |(text, default)| (text, Some(default)));
    let is_end = |at: usize| {
        let (before, after) = text.split_at(at);
        let is_outside = before.matches('(').count() == before.matches(')').count();
        is_outside && ["; ", ". ", ": "].iter().any(|end| after.starts_with(end))
    };
    let end = text.char_indices().map(|(at, _)| at).find(|&at| is_end(at)).unwrap_or(text.len());
    let default = default.and_then(|rest| rest.split_once(']')).map(|(default, _)| format!("{DEFAULT}{default}]"));
    text[..end].trim_end_matches('.').to_owned() + &default.unwrap_or_default()
}

/// Returns the first examples of a help text, each with its continuation lines.
fn first_examples(help: &str) -> String {
    const TITLE: &str = "EXAMPLES:";
    let Some(begin) = help.find(TITLE) else { return String::new() };
    let block = help[begin..].lines().take_while(|line| !line.trim().is_empty());
    let mut count = 0;
    let lines = block.take_while(|line| {
        // Continuation lines are indented further.
        count += usize::from(line.starts_with("  ") && !line.starts_with("   "));
        count <= EXAMPLES
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_in_one_group() {
        let mut names: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.common.iter().chain(group.rest)).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn short_help_is_first_sentence_and_first_examples() {
        assert_eq!(first_sentence("Threads [default: 4]."), "Threads [default: 4]");
        assert_eq!(first_sentence("Say more; a lot."), "Say more");
        assert_eq!(first_sentence("A key (Key: VALUE). Others see it."), "A key (Key: VALUE)");
        assert_eq!(
            first_examples("Text.\n\nEXAMPLES:\n  ixc a\n     more\n  ixc b\n  cat c | ixc\n  ixc d\n\nText"),
            "EXAMPLES:\n  ixc a\n     more\n  ixc b\n  cat c | ixc"
        );
    }
}
