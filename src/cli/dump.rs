//! `ixc dump`: one stage between the model and its machine code.

use std::io::Write;

use ixc::compile::{Options, TargetName, after, compile};
use ixc::passes::manager::{self, Ir, Stop};
use ixc::select;

use super::Usage;
use super::changed::ChangeChoice;
use super::choose::ModelArgument;
use super::experts::Experts;
use super::passes::PassChoice;
use super::select::SelectChoice;
use super::stages::Stage;

/// Prints a stage between the model and its machine code.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc dump model.gguf --stage graph
  ixc dump model.gguf --stage kernel --kernel gemv_q4_k
  ixc dump model.gguf --stage asm --kernel rms_norm --target portable
  ixc dump --stage plan                      the built-in demo model
  ixc dump model.gguf --after tile           how each weight is cut, and why
  ixc dump model.gguf --stage plan --layer 3 --op ffn_down
                                             one layer's steps that read it
  ixc dump model.gguf --dot | dot -Tsvg      the graph of a step, drawn
  ixc dump --stage fused --expert-memory 1MiB --predict 2
                                             when experts are loaded")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// The stage; without one, what stages there are is said.
    #[arg(long, value_enum)]
    stage: Option<Stage>,
    /// What a pass of `ixc opt` leaves, as text that `ixc opt` reads.
    #[arg(long, value_name = "PASS", conflicts_with_all = ["stage", "kernel"], value_parser = manager::names())]
    after: Option<String>,
    /// The drawing of a graph, or of tasks that a pass left, for Graphviz: ops are nodes, values with their types edges.
    #[arg(long, conflicts_with = "kernel")]
    dot: bool,
    /// Only kernels whose names contain this.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// What to generate kernels for: native, a target or a CPU of `ixc doctor`.
    #[arg(long, default_value = "native", env = "IXC_TARGET", hide_env_values = true)]
    target: TargetName,
    #[command(flatten)]
    select: SelectChoice,
    #[command(flatten)]
    experts: Experts,
    #[command(flatten)]
    passes: PassChoice,
    #[command(flatten)]
    changes: ChangeChoice,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let options = Options {
            target: Some(self.target.target),
            caches: self.target.caches,
            passes: self.passes.options()?,
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..Options::default()
        };
        let options = self.changes.over(options)?;
        let selection = self.select.selection();
        if self.dot && !selection.is_all() {
            return Err(Usage("--dot draws all of a graph: --op and --layer are for text".into()).into());
        }
        if let Some(pass) = &self.after {
            let stop = after(&self.model.open()?, &options, pass)?;
            let text = match (self.dot, selection.is_all()) {
                (true, _) => drawn(&stop.ir, true)?,
                (false, true) => stop.text(),
                (false, false) => select::text(&stop.ir, &selection).map_err(ixc::Error::from)?,
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        let written = self.dot.then_some(Stage::Graph);
        let Some(stage) = self.stage.or(written) else { return Err(Usage(Stage::list()).into()) };
        if self.kernel.is_some() && !matches!(stage, Stage::Kernel | Stage::Asm) {
            return Err(Usage("--kernel chooses kernels: it needs --stage kernel or --stage asm".into()).into());
        }
        if self.dot && !matches!(stage, Stage::Graph | Stage::Fused) {
            return Err(Usage("--dot draws graphs: it needs --stage graph, --stage fused or --after".into()).into());
        }
        let model = self.model.open()?;
        if stage == Stage::Graph {
            let graph = Stop { ir: Ir::Graph(model.arch.module), after: None };
            let text = match (self.dot, selection.is_all()) {
                (true, _) => drawn(&graph.ir, true)?,
                (false, true) => graph.text(),
                (false, false) => select::text(&graph.ir, &selection).map_err(ixc::Error::from)?,
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        let compiled = compile(&model, &options)?;
        if self.dot {
            return Ok(out.write_all(drawn(&Ir::Graph(compiled.fused), true)?.as_bytes())?);
        }
        Ok(out.write_all(stage.text(&model, &compiled, self.kernel.as_deref(), &selection)?.as_bytes())?)
    }
}

/// IR as text, or as Graphviz draws it.
///
/// # Errors
/// For the drawing of a plan.
pub fn drawn(ir: &Ir, dot: bool) -> anyhow::Result<String> {
    if !dot {
        return Ok(ir.text());
    }
    let none = || Usage("--dot draws graphs, and tasks as lower and steps leave them; a plan is neither".into());
    Ok(ir.dot().ok_or_else(none)?)
}
