//! Table of the targets, and one file for each group of them.
//!
//! To add a target, write its function in a file of its group, and add a row here. If its input is
//! a text, add inputs to `fuzz/corpus/NAME`. A binary format of this program gets its inputs from
//! code, so that they always have the current version.

mod chats;
mod checkpoints;
mod differential;
mod grammars;
mod grids;
mod ir_texts;
mod models;
mod plans;
mod requests;
mod saved;
mod settings;
mod texts;

use crate::Outcome;

/// A fuzz function with its limits.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name on the command line, and of the folder of inputs.
    pub name: &'static str,
    /// Input class, for the documentation.
    pub input: &'static str,
    /// The function. Panics if an invariant is broken.
    pub run: fn(&[u8]) -> Outcome,
    /// Inputs from code.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the input's language.
    pub dictionary: &'static [&'static str],
    /// Max bytes of an input.
    pub max_bytes: usize,
    /// Max seconds of a case in a build without optimisation, on a busy machine.
    pub case_seconds: u64,
    /// Max bytes of memory of a case.
    pub memory_bytes: u64,
}

/// No inputs from code.
fn none() -> Vec<Vec<u8>> {
    Vec::new()
}

/// Row of most targets.
const TEXT: Target = Target {
    name: "",
    input: "",
    run: |_| Outcome::accepted(),
    seeds: none,
    dictionary: &[],
    max_bytes: 64 << 10,
    case_seconds: 20,
    memory_bytes: 1 << 30,
};

/// Words of JSON.
const JSON: &[&str] =
    &["{", "}", "[", "]", ",", ":", "\"", "null", "true", "false", "0", "-1", "1e999", "\\u0000", "\\ud800"];

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "gguf",
        input: "GGUF file: header, vocabulary, graph of the model",
        run: models::gguf,
        seeds: models::seeds,
        dictionary: models::DICTIONARY,
        max_bytes: 256 << 10,
        ..TEXT
    },
    Target {
        name: "safetensors",
        input: "folder of safetensors: headers, index, configuration",
        run: checkpoints::folder,
        dictionary: checkpoints::DICTIONARY,
        ..TEXT
    },
    Target {
        name: "tokenizer",
        input: "tokenizer.json of a folder, and the texts that it encodes",
        run: checkpoints::tokenizer,
        dictionary: checkpoints::TOKENIZER_DICTIONARY,
        ..TEXT
    },
    Target {
        name: "template",
        input: "chat template",
        run: chats::template,
        seeds: chats::templates,
        dictionary: chats::DICTIONARY,
        case_seconds: 60,
        ..TEXT
    },
    Target {
        name: "chat_parser",
        input: "text of a model, from which tool calls and reasoning are parsed",
        run: chats::parser,
        seeds: chats::answers,
        dictionary: chats::MARKERS,
        max_bytes: 16 << 10,
        ..TEXT
    },
    Target {
        name: "graph",
        input: "text of graph IR, and stages in JSON",
        run: ir_texts::graph,
        seeds: ir_texts::graphs,
        dictionary: ir_texts::GRAPH_DICTIONARY,
        ..TEXT
    },
    Target {
        name: "kernel",
        input: "text of kernel IR, compiled for three targets",
        run: ir_texts::kernel,
        seeds: ir_texts::kernels,
        dictionary: ir_texts::KERNEL_DICTIONARY,
        ..TEXT
    },
    Target {
        name: "plan",
        input: "plan (.ixp), with a right checksum",
        run: plans::file,
        seeds: plans::seeds,
        max_bytes: 2 << 20,
        ..TEXT
    },
    Target {
        name: "descriptor",
        input: "dataflow descriptor, checked and simulated",
        run: grids::descriptor,
        seeds: grids::descriptors,
        dictionary: JSON,
        max_bytes: 1 << 20,
        ..TEXT
    },
    Target {
        name: "grid",
        input: "description of a grid in TOML",
        run: grids::grid,
        dictionary: &["\n[", "]\n", "=", "[[", "]]", "\"", "pe", "link", "io", "edges", "sram_bytes", "inf", "0x"],
        ..TEXT
    },
    Target {
        name: "saved_state",
        input: "saved state of a sequence, with right checksums",
        run: saved::state,
        seeds: saved::states,
        max_bytes: 1 << 20,
        ..TEXT
    },
    Target {
        name: "prompt_cache",
        input: "file of a prompt cache, with right checksums",
        run: saved::page,
        seeds: saved::pages,
        max_bytes: 1 << 20,
        ..TEXT
    },
    Target {
        name: "http",
        input: "path and body of a request, for all HTTP APIs",
        run: requests::http,
        dictionary: requests::DICTIONARY,
        case_seconds: 60,
        ..TEXT
    },
    Target {
        name: "grammar",
        input: "grammar in GBNF or Lark, and the masks of an answer",
        run: grammars::grammar,
        dictionary: grammars::GRAMMAR_DICTIONARY,
        max_bytes: 4 << 10,
        case_seconds: 60,
        ..TEXT
    },
    Target {
        name: "schema",
        input: "JSON schema, and the masks of an answer",
        run: grammars::schema,
        dictionary: grammars::SCHEMA_DICTIONARY,
        max_bytes: 4 << 10,
        case_seconds: 60,
        ..TEXT
    },
    Target {
        name: "tuned",
        input: "file of tuned choices, with a right checksum",
        run: settings::tuned,
        seeds: settings::tuned_files,
        dictionary: JSON,
        ..TEXT
    },
    Target {
        name: "override",
        input: "kernel that replaces a generated one, with its spec",
        run: settings::replacement,
        dictionary: ir_texts::KERNEL_DICTIONARY,
        ..TEXT
    },
    Target {
        name: "configuration",
        input: "configuration file of the program",
        run: settings::configuration,
        dictionary: settings::DICTIONARY,
        ..TEXT
    },
    Target {
        name: "importance",
        input: "importance matrix, in GGUF or llama.cpp's older form",
        run: settings::importance,
        seeds: settings::importance_files,
        ..TEXT
    },
    Target { name: "expert_use", input: "record of expert use", run: settings::expert_use, dictionary: JSON, ..TEXT },
    Target {
        name: "same_graphs",
        input: "seed: a random model in interpreter, emulator, native and portable code",
        run: differential::graphs,
        seeds: differential::seeds,
        max_bytes: 8,
        case_seconds: 120,
        ..TEXT
    },
    Target {
        name: "same_kernels",
        input: "seed: a random kernel in interpreter, emulator and portable code",
        run: differential::kernels,
        seeds: differential::seeds,
        max_bytes: 8,
        ..TEXT
    },
    Target {
        name: "plan_run",
        input: "seed: a plan with random changes; accepted ones run in the emulator",
        run: plans::changed,
        seeds: plans::change_seeds,
        max_bytes: 16,
        case_seconds: 60,
        ..TEXT
    },
    Target {
        name: "schedules",
        input: "schedule of requests; each gives the bits that it gives alone",
        run: differential::schedules,
        seeds: differential::schedule_seeds,
        max_bytes: 64,
        case_seconds: 60,
        ..TEXT
    },
];

/// Returns the target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
