//! Stages between a model and its machine code, as text, for `dump` and `compile --emit`.

use clap::ValueEnum;
use ixc_compile::compile::{Compilation, assembly};
use ixc_compile::model::Model;
use ixc_compile::select::{self, Selection};
use ixc_files::Kind;
use ixc_ir::kernel::Kernel;
use ixc_passes::manager::{self, Stop};
use ixc_targets::Target;

use super::{Usage, suggestions};

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// The graph as the model file describes it.
    Graph,
    /// The graph after all passes.
    Fused,
    /// Steps, tasks and buffers.
    Plan,
    /// Kernel IR.
    Kernel,
    /// Machine code of the kernels.
    Asm,
}

impl Stage {
    /// Returns the list of stages, for a command line that names none.
    pub fn list() -> String {
        let mut list = "--stage is missing; its values are".to_owned();
        for value in Stage::value_variants().iter().filter_map(ValueEnum::to_possible_value) {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            list += &format!("\n  {:<8} {help}", value.get_name());
        }
        list
    }

    /// Returns the name of the file that `compile --emit` writes; names sort in the order of the
    /// stages.
    pub fn file_name(self) -> &'static str {
        match self {
            Stage::Graph => "1.graph.ix",
            Stage::Fused => "2.fused.ix",
            Stage::Plan => "3.plan.txt",
            Stage::Kernel => "4.kernel.ix",
            Stage::Asm => "5.asm.txt",
        }
    }

    /// Returns the kind of the output file, which its first bytes identify.
    pub fn kind(self) -> Kind {
        let (name, is): (_, fn(&[u8]) -> bool) = match self {
            Stage::Graph | Stage::Fused => {
                ("graph", |head| head.starts_with(b"; after ") || head.starts_with(b"weight @"))
            }
            Stage::Plan => ("listing of a plan", |head| head.starts_with(b"plan ")),
            Stage::Kernel => ("file of kernels", |head| head.starts_with(b"kernel ")),
            Stage::Asm => ("listing of machine code", |head| {
                // Assembler text; for `portable`, cranelift's own listing.
                let intel = b".intel_syntax noprefix";
                head.starts_with(b"# ") && head.windows(intel.len()).any(|part| part == intel)
                    || head.starts_with(b"; ")
            }),
        };
        Kind { name, is, streams: true, private: false }
    }

    /// Returns the stage as text. `kernel` selects kernels. With a selection of ops or layers, the
    /// text cannot be parsed again.
    pub fn text(
        self,
        model: &Model,
        compiled: &Compilation,
        kernel: Option<&str>,
        selection: &Selection,
    ) -> anyhow::Result<String> {
        let name = |kernel: &Kernel| kernel.name.clone();
        if !selection.is_all() {
            let text = match self {
                Stage::Graph => Some(select::of_graph(&model.arch.module, selection)),
                Stage::Fused => Some(select::of_graph(&compiled.fused, selection)),
                Stage::Plan => Some(select::of_plan(&compiled.plan, &name, selection)),
                Stage::Kernel | Stage::Asm => None,
            };
            if let Some(text) = text {
                return Ok(text.map_err(ixc_error::Error::from)?);
            }
        }
        let kernels = |kernel| -> anyhow::Result<Vec<&Kernel>> {
            let used = select::kernels(&compiled.plan, &name, selection).map_err(ixc_error::Error::from)?;
            choose(used.into_iter().map(|(at, _)| &compiled.plan.kernels[at]).collect(), kernel)
        };
        match self {
            Stage::Graph => Ok(Stop::graph_text(&model.arch.module, None)),
            Stage::Fused => {
                let after = manager::graph_passes().last().copied();
                Ok(Stop::graph_text(&compiled.fused, after))
            }
            Stage::Plan => Ok(ixc_ir::plan::print::print(&compiled.plan, name)),
            Stage::Kernel => Ok(kernels(kernel)?.into_iter().map(Kernel::to_string).collect::<Vec<_>>().join("\n")),
            Stage::Asm => {
                let target = Target::from_name(&compiled.plan.target).unwrap_or_else(Target::native);
                Ok(assembly(kernels(kernel)?, target)?)
            }
        }
    }
}

/// Max kernels in an error text.
const MAX_KERNELS: usize = 3;

/// Returns the error for an unknown kernel name. For a weight's name, the error names the options
/// that choose its kernels.
fn no_kernel(name: &str, kernels: &[&str]) -> String {
    let mut near: Vec<&str> = kernels.iter().copied().filter(|kernel| suggestions::is_near(name, kernel)).collect();
    near.extend(kernels.iter().copied().filter(|kernel| !suggestions::is_near(name, kernel)));
    let more = near.len().saturating_sub(MAX_KERNELS);
    near.truncate(MAX_KERNELS);
    let more = if more > 0 { format!(" and {more} more (`ixc kernel list --model MODEL`)") } else { String::new() };
    let weight = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let hint = match weight {
        Some((layer, weight)) => {
            let op = weight.trim_end_matches(".weight").trim_end_matches(".bias");
            format!("; this is the name of a weight, whose kernels are those of --op {op} --layer {layer}")
        }
        None => String::new(),
    };
    format!("no kernel has the name {name}{hint}; the kernels are {}{more}", near.join(", "))
}

/// Returns the kernels whose names contain `name`.
fn choose<'k>(kernels: Vec<&'k Kernel>, name: Option<&str>) -> anyhow::Result<Vec<&'k Kernel>> {
    let Some(name) = name else { return Ok(kernels) };
    let chosen: Vec<_> = kernels.iter().copied().filter(|kernel| kernel.name.contains(name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        return Err(Usage(no_kernel(name, &names)).into());
    }
    Ok(chosen)
}
