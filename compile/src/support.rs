//! Features of this build: architectures, formats with their kernels on each target, tokenizers,
//! chat formats. The list is made from the tables that the program itself uses, so it is always
//! correct.
//!
//! Every architecture takes weights in every format, on every target. Only the kernels of matrix
//! products depend on the format and target.

use std::fmt::Write as _;

use ixc_architectures::FAMILIES;
use ixc_ir::format::{FORMATS, Format};
use ixc_kernels::candidates::{Weight, candidates};
use ixc_targets::{TARGETS, Target};
use ixc_text::chat;
use ixc_text::tokenizer::supported_pre_tokenizers;
use serde::Serialize;

/// Number of rows and of columns of the weight for which kernels are listed. Every format supports
/// this size.
const ROWS: u64 = 4096;
const COLUMNS: u64 = 4096;
/// Weight rows in an item of the listed kernels.
const ITEM: u64 = 64;
/// Width of the page in columns. Tables may be wider.
const WIDTH: usize = 80;

/// Supported features.
#[derive(Clone, Debug, Serialize)]
pub struct Support {
    /// Architectures, by family.
    pub architectures: Vec<ArchitectureSupport>,
    /// Block formats of files.
    pub formats: Vec<FormatSupport>,
    /// Pre-tokenizers of byte-pair vocabularies, by the value of `tokenizer.ggml.pre`.
    pub pre_tokenizers: Vec<&'static str>,
    /// Chat formats whose answers the server can split into reasoning, tool calls and content.
    pub answers: Vec<&'static str>,
}

/// A supported architecture.
#[derive(Clone, Debug, Serialize)]
pub struct ArchitectureSupport {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Models with this architecture.
    pub about: &'static str,
    /// Family of these models.
    pub family: &'static str,
}

/// A supported weight format.
#[derive(Clone, Debug, Serialize)]
pub struct FormatSupport {
    /// Name of the format.
    pub name: &'static str,
    /// Bits per element in the file.
    pub bits: f64,
    /// Bits per element in packed form.
    pub packed_bits: f64,
    /// Whether `ixc quantise` can write the format.
    pub made: bool,
    /// Kernels for products with weights of this format, on each target.
    pub products: Vec<Products>,
}

/// Kernels of a format's products on a target.
#[derive(Clone, Debug, Serialize)]
pub struct Products {
    /// Name of the target.
    pub target: &'static str,
    /// Format of the activations.
    pub activations: &'static str,
    /// Names of the kernels, from the one for few rows to the one for many.
    pub kernels: Vec<String>,
}

/// Returns the targets that have different kernels. Each CPU uses the kernels of one of these
/// targets.
fn targets() -> impl Iterator<Item = Target> {
    let mut seen = Vec::new();
    Target::all().filter(move |target| {
        let isa = target.isa();
        let new = !seen.contains(&isa);
        seen.push(isa);
        new
    })
}

fn bits(format: Format) -> f64 {
    format.block_bytes() as f64 * 8.0 / format.block_len() as f64
}

fn products(format: Format, target: Target) -> Products {
    let packed = format.packed_format().unwrap_or(format);
    let tiles = packed.tile_activation().filter(|_| target.isa().tile_registers > 0);
    let pairs = packed.pair_activation().filter(|_| target.has_dot2_bf16());
    let x = tiles.or(pairs).unwrap_or(packed.activation());
    let weight = Weight { format: packed, x, n: ROWS, k: COLUMNS, products: 1, block: 1, sub_block: 1 };
    let mut kernels: Vec<String> =
        candidates(&weight, ITEM, target).iter().map(|candidate| candidate.strategy.to_string()).collect();
    kernels.dedup();
    Products { target: target.name(), activations: x.name(), kernels }
}

impl Support {
    /// Returns the features of this build.
    pub fn here() -> Support {
        let formats = FORMATS.iter().map(|row| row.format).filter(|format| format.is_in_files() && format.is_weight());
        let formats = formats.map(|format| FormatSupport {
            name: format.name(),
            bits: bits(format),
            packed_bits: bits(format.packed_format().unwrap_or(format)),
            made: format.encodes(),
            products: targets().map(|target| products(format, target)).collect(),
        });
        let architectures = FAMILIES.iter().flat_map(|family| {
            let rows = family.architectures.iter();
            rows.map(|row| ArchitectureSupport { name: row.name, about: row.doc, family: family.name })
        });
        Support {
            architectures: architectures.collect(),
            formats: formats.collect(),
            pre_tokenizers: supported_pre_tokenizers(),
            answers: chat::format::FORMATS.iter().map(|format| format.name).collect(),
        }
    }

    /// Returns the features as Markdown.
    pub fn markdown(&self) -> String {
        self.text(true)
    }

    /// Returns the features as Markdown without the kernels of each format and target, which are
    /// too wide for terminals.
    pub fn markdown_without_kernels(&self) -> String {
        self.text(false)
    }

    fn text(&self, kernels: bool) -> String {
        let mut out = String::from("# What is supported\n\n");
        out += &wrap_paragraph(
            "Generated from the tables in the code; `ixc inspect --support` prints this page. Each architecture works \
             with each block format on each target.",
        );
        out += &self.architectures_text();
        out += &self.formats_text(kernels);
        out += "\n## Tokenizers\n\n";
        let tokenizers = "Values of `tokenizer.ggml.model`: `llama` (SentencePiece), `t5` (SentencePiece unigram), \
             `bert` (WordPiece), `gemma4`, `plamo2`, `rwkv`, and `gpt2` (byte-level BPE) with one of these values of \
             `tokenizer.ggml.pre`:";
        out += &wrap_paragraph(&format!("{tokenizers} {}.", list(&self.pre_tokenizers)));
        out += "\n## Answers\n\n";
        let answers = "Answers in these chat formats are split into content, reasoning and tool calls:";
        out += &wrap_paragraph(&format!("{answers} {}.", list(&self.answers)));
        out
    }

    /// Returns one paragraph for each family of architectures.
    fn architectures_text(&self) -> String {
        let mut out = String::from("\n## Architectures\n\n");
        out += &wrap_paragraph("Values of `general.architecture`, each with its models, by family:");
        for family in self.architectures.chunk_by(|one, next| one.family == next.family) {
            let name = family[0].family;
            let models: Vec<String> = family.iter().map(|row| format!("`{}`: {}", row.name, row.about)).collect();
            out += "\n";
            out += &wrap_paragraph(&format!("**{name}** — {}", models.join(" · ")));
        }
        out
    }

    /// Returns a table of formats, with their kernels if `kernels` is set.
    fn formats_text(&self, kernels: bool) -> String {
        let mut out = String::from("\n## Block formats\n\n");
        out += &wrap_paragraph(
            "`bits` and `packed` are bits per element, in the file and packed. `made` marks formats that \
             `ixc quantise` can write.",
        );
        if kernels {
            out += &wrap_paragraph(
                "The other columns are the matrix product kernels of each target, from few rows to many.",
            );
        }
        let names = TARGETS.iter().map(|row| row.name);
        let columns: Vec<&str> = match self.formats.first() {
            Some(format) if kernels => format.products.iter().map(|product| product.target).collect(),
            _ => Vec::new(),
        };
        let _ = writeln!(
            out,
            "\n| format | bits | packed | made |{}",
            columns.iter().map(|name| format!(" {name} |")).collect::<String>()
        );
        let _ = writeln!(out, "| --- | --- | --- | --- |{}", " --- |".repeat(columns.len()));
        for format in &self.formats {
            let FormatSupport { name, bits, packed_bits, made, products } = format;
            let made = if *made { "yes" } else { "" };
            let products = products.iter().filter(|products| columns.contains(&products.target));
            let names: String = products.map(|products| format!(" {} |", products.kernels.join(", "))).collect();
            let _ = writeln!(out, "| `{name}` | {bits:.4} | {packed_bits:.4} | {made} |{names}");
        }
        if kernels {
            let cpus: Vec<&str> = names.filter(|name| !columns.contains(name)).collect();
            let cpus = format!("Each CPU has the kernels of its instruction set: {}.", cpus.join(", "));
            out += "\n";
            out += &wrap_paragraph(&cpus);
        }
        out
    }
}

/// Returns names in code marks, separated by commas.
fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a paragraph as lines of at most [`WIDTH`] columns, unless a word is wider.
fn wrap_paragraph(paragraph: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if column > 0 {
            let fits = column + 1 + width <= WIDTH;
            out.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        out += word;
        column += width;
    }
    out + "\n"
}
