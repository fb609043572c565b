//! `ixc dump`: prints one stage between the model and its machine code.

use std::io::Write;

use ixc_compile::compile::{TargetName, compile, stop_after};
use ixc_compile::select;
use ixc_passes::manager::{self, Ir, Stop};

use super::Usage;
use super::drawing::{FormatChoice, render};
use super::model_args::ModelArgument;
use super::select::SelectChoice;
use super::stage_choice::StageChoice;
use super::stages::Stage;

/// Prints a stage between the model and its machine code.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc dump model.gguf --stage graph
  ixc dump model.gguf --stage kernel --kernel gemv_q4_k
  ixc dump model.gguf --stage asm --kernel rms_norm --target portable
  ixc dump --stage plan                      the built-in demo model
  ixc dump model.gguf --after tile           tiling of each weight
  ixc dump model.gguf --stage plan --layer 3 --op ffn_down
                                             a layer's steps that read a weight
  ixc dump model.gguf --format dot | dot -Tsvg
                                             a drawing of the graph
  ixc dump model.gguf --stage plan --format mermaid
                                             tasks and their dependencies
  ixc dump --stage fused --expert-memory 1MiB --predict 2
                                             loads of experts")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Stage to print; without it, the stages are listed.
    #[arg(long, value_enum)]
    stage: Option<Stage>,
    /// Print the IR after this pass, as text that `ixc opt` reads.
    #[arg(long, value_name = "PASS", conflicts_with_all = ["stage", "kernel"], value_parser = manager::names())]
    after: Option<String>,
    #[command(flatten)]
    format: FormatChoice,
    /// Print only kernels whose names contain this text.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Target or CPU to generate kernels for: `native`, or a name that `ixc doctor` lists.
    #[arg(long, default_value = "native")]
    target: TargetName,
    #[command(flatten)]
    select: SelectChoice,
    #[command(flatten)]
    stages: StageChoice,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let options = self.stages.options(Some(self.target))?;
        let (selection, language) = (self.select.selection(), self.format.language());
        if language.is_some() && self.kernel.is_some() {
            return Err(Usage("kernels cannot be drawn: --kernel chooses kernels to print as text; leave out --kernel, or the drawing's --format".into()).into());
        }
        if language.is_some() && !selection.is_all() {
            return Err(Usage(
                "a drawing shows the whole graph: --op and --layer only choose parts of printed text".into(),
            )
            .into());
        }
        if let Some(pass) = &self.after {
            let stop = stop_after(&self.model.open_for_display()?, &options, pass)?;
            let text = match language {
                Some(language) => render(&stop.ir, language)?,
                None if selection.is_all() => stop.text(),
                None => select::text(&stop.ir, &selection).map_err(ixc_error::Error::from)?,
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        let stage = self.stage.or(language.map(|_| Stage::Graph));
        let Some(stage) = stage else { return Err(Usage(Stage::list()).into()) };
        if self.kernel.is_some() && !matches!(stage, Stage::Kernel | Stage::Asm) {
            return Err(Usage("--kernel chooses kernels: it needs --stage kernel or --stage asm".into()).into());
        }
        if let Some(language) = language {
            // A drawing of a plan shows its tasks, which are the result of `steps`.
            let pass = match stage {
                Stage::Graph => None,
                Stage::Fused => manager::graph_passes().last().copied(),
                Stage::Plan => Some(ixc_passes::schedule::steps::PASS.name),
                Stage::Kernel | Stage::Asm => {
                    return Err(Usage(
                        "kernels cannot be drawn; draw --stage graph, fused or plan, or the graph --after a pass"
                            .into(),
                    )
                    .into());
                }
            };
            let model = self.model.open_for_display()?;
            let ir = match pass {
                Some(pass) => stop_after(&model, &options, pass)?.ir,
                None => Ir::Graph(model.arch.module),
            };
            return Ok(out.write_all(render(&ir, language)?.as_bytes())?);
        }
        let model = self.model.open_for_display()?;
        if stage == Stage::Graph {
            let graph = Stop { ir: Ir::Graph(model.arch.module), after: None };
            let text = match selection.is_all() {
                true => graph.text(),
                false => select::text(&graph.ir, &selection).map_err(ixc_error::Error::from)?,
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        let compiled = compile(&model, &options)?;
        Ok(out.write_all(stage.text(&model, &compiled, self.kernel.as_deref(), &selection)?.as_bytes())?)
    }
}
