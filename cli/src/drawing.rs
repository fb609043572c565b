//! Printing of IR: as text, or as input of drawing programs.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ixc_ir::drawing::Language;
use ixc_passes::manager::Ir;

use super::wrap::Text;
use super::{Usage, terminal};

/// Returns the drawing language with this name.
fn language(name: &str) -> Option<Language> {
    Language::ALL.iter().find(|(own, ..)| *own == name).map(|(.., language)| *language)
}

fn values() -> impl Iterator<Item = PossibleValue> {
    Language::ALL.into_iter().map(|(name, doc, _)| PossibleValue::new(name).help(doc))
}

/// Returns clap's parser of a drawing language.
pub fn languages() -> impl TypedValueParser<Value = Language> {
    PossibleValuesParser::new(values()).try_map(|name| language(&name).ok_or("this language is not supported"))
}

/// Output format of IR: a drawing language, or text that can be parsed again (`None`).
#[derive(Clone, Copy, Debug)]
struct Format(Option<Language>);

fn formats() -> impl TypedValueParser<Value = Format> {
    let text = PossibleValue::new("text").help("Text that is read back");
    PossibleValuesParser::new([text].into_iter().chain(values())).map(|name| Format(language(&name)))
}

/// Options for the output format of IR.
#[derive(Clone, Debug, clap::Args)]
pub struct FormatChoice {
    /// Output format. In a drawing of a graph, ops are nodes and typed values are edges. In a
    /// drawing of tasks, tasks are boxes and buffers are edges.
    #[arg(long, value_parser = formats(), value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Same as --format dot.
    #[arg(long, conflicts_with = "format")]
    dot: bool,
}

impl FormatChoice {
    /// Returns the drawing language, or `None` for text.
    pub fn language(&self) -> Option<Language> {
        if self.dot { Some(Language::Dot) } else { self.format.0 }
    }
}

/// Draws IR.
///
/// # Errors
/// If the IR is that of a plan, which cannot be drawn.
pub fn render(ir: &Ir, language: Language) -> anyhow::Result<String> {
    let none = || Usage("a plan cannot be drawn; draw a graph, or the tasks after the pass lower or steps".into());
    terminal::set_text(Text::Verbatim);
    Ok(ir.drawing().ok_or_else(none)?.text(language))
}
