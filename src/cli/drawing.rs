//! IR as text, or as other programs draw it.

use clap::ValueEnum;
use ixc::ir::drawing::Language;
use ixc::passes::manager::Ir;

use super::Usage;

/// As what IR is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text that is read back.
    Text,
    /// A drawing for Graphviz.
    Dot,
    /// A drawing for Mermaid, as Markdown has it.
    Mermaid,
}

impl Format {
    /// What draws it; nothing does text.
    pub fn language(self) -> Option<Language> {
        match self {
            Format::Text => None,
            Format::Dot => Some(Language::Dot),
            Format::Mermaid => Some(Language::Mermaid),
        }
    }
}

/// What draws, where nothing else is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Drawer {
    /// Graphviz.
    Dot,
    /// Mermaid, as Markdown has it.
    Mermaid,
}

impl Drawer {
    /// Its language.
    pub fn language(self) -> Language {
        match self {
            Drawer::Dot => Language::Dot,
            Drawer::Mermaid => Language::Mermaid,
        }
    }
}

/// Options that say as what IR is printed.
#[derive(Clone, Debug, clap::Args)]
pub struct FormatChoice {
    /// As what it is printed. In a drawing of a graph ops are nodes, values with their types edges; in one of tasks
    /// these are boxes, between them what they write and read.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// The same as --format dot.
    #[arg(long, conflicts_with = "format")]
    dot: bool,
}

impl FormatChoice {
    /// What is to draw it, where anything is.
    pub fn language(&self) -> Option<Language> {
        if self.dot { Some(Language::Dot) } else { self.format.language() }
    }
}

/// A drawing of IR.
///
/// # Errors
/// For that of a plan.
pub fn drawn(ir: &Ir, language: Language) -> anyhow::Result<String> {
    let none = || Usage("graphs are drawn, and tasks as lower and steps leave them; a plan is neither".into());
    Ok(ir.drawing().ok_or_else(none)?.text(language))
}
