//! Lines of `--stats`: a label in the first columns, then measurements.
//!
//! ```text
//! load      0.31 s, 2 threads, target avx2
//! decode    64 tokens in 0.58 s, 110.3 tokens/s
//! ```
//!
//! [`Label`] has the glossary of all labels. `docs/stats.md` is generated from it.

use std::fmt;

use super::output::print_stderr;

/// Declares the labels, with the text of each and its explanation in the glossary.
macro_rules! labels {
    ($($label:ident $text:literal: $meaning:literal,)*) => {
        /// Label of a line of `--stats`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Label {
            $(#[doc = $meaning] $label,)*
        }

        impl Label {
            /// All labels, in the order of the report.
            #[cfg(test)]
            const ALL: &[Label] = &[$(Label::$label),*];

            /// Returns the text at the start of the line.
            fn text(self) -> &'static str {
                match self { $(Label::$label => $text,)* }
            }

            /// Returns the explanation for the glossary, in Markdown.
            #[cfg(test)]
            fn meaning(self) -> &'static str {
                match self { $(Label::$label => $meaning,)* }
            }
        }
    };
}

labels! {
    Load "load": "seconds until the model is ready, number of threads, target",
    Replaced "replaced": "number and names of the kernels that `--override` replaced",
    Tuned "tuned": "number of weights with tuned parameters, file of the parameters",
    Locked "locked": "bytes of weights that `--mlock` keeps in memory",
    States "states": "memory of the KV cache and other states, number of positions, formats of the KV cache",
    Prefill "prefill": "tokens of the prompt, seconds, rate; then the time of prefill by op and by kernel",
    Decode "decode": "generated tokens, seconds, rate; then the time of decode by op and by kernel",
    Drafts "drafts": "speculation: drafted and accepted tokens, time of drafting, steps without a draft",
    Packing "packing": "seconds for packing weights at their first use; a compiled plan needs none",
    Limits "limits": "measured rates of this machine: reads from memory and caches, operations by number format",
    Experts "experts": "number of requested experts; parts of them that were cached, being read at the request, and missed",
    Cache "cache": "memory of the expert cache",
    Pinned "pinned": "experts that are never evicted",
    Drive "drive": "bytes of experts read, and the method; rates while any read ran, and while a missed expert was read; remarks",
    Predicted "predicted": "bytes of prefetched experts; the part that was used, and the part that was evicted unused",
    Stall "stall": "time for which threads waited for experts",
    Overlap "overlap": "part of the time of decode in which the drive read, and part of this reading time during which threads computed",
    Prefetch "prefetch": "the predictor of experts, the rejected ones, and scores by layer",
    Queue "queue": "number and size of concurrent reads, and the origin of the number",
    Share "share": "rate for missed experts, as a part of the drive's own rate",
    Forecast "forecast": "time of a token compared with its computing time and reading time; rate predicted by `ixc plan`, measured rate, error",
    Deferral "deferral": "number of experts per token that `--defer` adds one layer late",
    Hints "hints": "experts announced to the page cache, if the model file is mapped",
    Faults "faults": "page faults that waited for the drive",
    Threads "threads": "processors to which threads are bound, or why they are not",
    Nodes "nodes": "memory of each rank, or of each copy of the weights, on its NUMA nodes and on others",
    Pages "pages": "resident memory by use, and the part of it in pages of 2 MiB",
    Sharing "sharing": "memory of states that sequences share, and the saving",
    Seed "seed": "the seed of the sampler",
    Memory "memory": "peak memory of the process, including mapped weights",
}

impl Label {
    /// Prints a line on standard error, also with `--quiet`.
    pub fn print(self, text: impl fmt::Display) {
        print_stderr(&format!("{:<9} {text}", self.text()));
    }
}

/// Prints a line that continues the previous one.
pub fn print_more(text: impl fmt::Display) {
    print_stderr(&format!("{:<9} {text}", ""));
}

/// Prints a line of `--stats` with a label.
macro_rules! stat {
    ($label:ident, $($argument:tt)*) => {
        $crate::stats_line::Label::$label.print(format_args!($($argument)*))
    };
}
pub(super) use stat;

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::{env, fs};

    use ixc_measure::op_times::OtherTime;

    use super::Label;

    /// Page with the glossary.
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/stats.md");

    fn table(heads: [&str; 2], rows: impl Iterator<Item = (&'static str, &'static str)>) -> String {
        let mut text = format!("| {} | {} |\n| --- | --- |\n", heads[0], heads[1]);
        rows.for_each(|(name, meaning)| writeln!(text, "| `{name}` | {meaning} |").unwrap());
        text
    }

    /// Returns the explanation of a time outside of ops, for the glossary.
    fn meaning(time: OtherTime) -> &'static str {
        match time {
            OtherTime::OtherThreads => "threads had finished their part of a stage, and other threads had not",
            OtherTime::SingleThread => "one thread did a small stage for all",
            OtherTime::Barriers => "threads synchronised, without the waiting above",
            OtherTime::Packing => "weights were packed for their first use",
            OtherTime::UnusedThreads => "threads were unused because other processes had the CPU",
            OtherTime::StepEnds => "inputs were set, and threads started and joined",
            OtherTime::BetweenSteps => "no step ran: sampling, drafting, and output of text",
        }
    }

    /// Compares the tables of the page with the labels. `IXC_BLESS=1` rewrites the tables.
    #[test]
    fn the_glossary_has_every_label() {
        let labels = Label::ALL.iter().map(|label| (label.text(), label.meaning()));
        let times = OtherTime::ALL.iter().map(|time| (time.name(), meaning(*time)));
        let tables = [table(["line", "contents"], labels), table(["row", "time in which"], times)];
        let page = fs::read_to_string(PAGE).unwrap();
        let mut parts = page.split("<!-- generated -->\n");
        let mut expected = parts.next().unwrap().to_owned();
        for (part, table) in parts.zip(&tables) {
            let rest = part.trim_start_matches('\n').lines().skip_while(|line| line.starts_with('|'));
            write!(expected, "<!-- generated -->\n\n{table}").unwrap();
            rest.for_each(|line| writeln!(expected, "{line}").unwrap());
        }
        assert_eq!(page.matches("<!-- generated -->\n").count(), tables.len());
        if page != expected && env::var_os("IXC_BLESS").is_some_and(|value| !value.is_empty()) {
            fs::write(PAGE, &expected).unwrap();
            return;
        }
        assert!(page == expected, "docs/stats.md is not up to date; IXC_BLESS=1 rewrites its tables:\n{expected}");
    }

    #[test]
    fn labels_fit_their_columns() {
        assert!(Label::ALL.iter().all(|label| label.text().len() <= 9));
    }
}
