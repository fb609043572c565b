//! Rows of the registry: architectures and their families.

use ixc_ir::graph::ValueId;

use crate::builder::Builder;
use crate::error::ArchError;
use crate::hyper::Defaults;

/// A family of models. Most families have one author.
#[derive(Debug)]
pub struct Family {
    /// Name of the family, with its author.
    pub name: &'static str,
    /// Architectures of the family's models.
    pub architectures: &'static [Architecture],
}

/// A row of the registry.
#[derive(Debug)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Names of the models.
    pub doc: &'static str,
    /// Defaults for keys that files of this architecture lack.
    pub(crate) defaults: Defaults,
    /// Builds the ops of the graph, and returns the value with the logits (in encoders, hidden
    /// states).
    pub(crate) build: fn(&mut Builder<'_>) -> Result<ValueId, ArchError>,
}
