//! `ixc explain`: what passes decided, and why.

use std::io::Write;

use ixc::compile::TargetName;
use ixc::explain;
use ixc::passes::decision::Decision;
use ixc::passes::manager;
use serde_json::{Value as Json, json};

use super::choose::ModelArgument;
use super::output::{self, counted, lines};
use super::select::SelectChoice;
use super::stage_choice::StageChoice;

/// Prints what compiling a model decides where something else was possible: what was chosen, what lost, and why.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc explain model.gguf
  ixc explain model.gguf --pass tile --layer 3 --op ffn_down
                                             how a layer's weight is cut
  ixc explain model.gguf --pass fuse         what is not fused, and why not
  ixc explain model.gguf --expert-memory 6GiB --predict 2 --pass residency
  ixc explain model.gguf --target sapphire-rapids --json
  ixc explain                                the built-in demo model

Passes tell what they choose as they choose it. Decisions that are alike are said once, with how often and in which layers they were made; --json has each by \
itself. What nothing else could take the place of is no decision.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Only decisions of these passes of `ixc opt`, or of compile, which runs them.
    #[arg(long = "pass", value_name = "PASS,..", value_delimiter = ',', value_parser = sources())]
    passes_told: Vec<String>,
    #[command(flatten)]
    select: SelectChoice,
    /// What to generate kernels for: native, a target or a CPU of `ixc doctor`.
    #[arg(long, default_value = "native", env = "IXC_TARGET", hide_env_values = true)]
    target: TargetName,
    #[command(flatten)]
    stages: StageChoice,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Where decisions are made.
fn sources() -> Vec<&'static str> {
    [vec![ixc::compile::DECIDES], manager::names()].concat()
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let options = self.stages.options(Some(self.target))?;
        let model = self.model.open()?;
        let mut decisions = explain::decisions(&model, &options)?;
        if !self.passes_told.is_empty() {
            decisions.retain(|decision| self.passes_told.iter().any(|pass| pass == decision.pass));
        }
        let selection = self.select.selection();
        let items: Vec<_> = decisions.iter().map(explain::item).collect();
        let chosen = selection.of(&items).map_err(ixc::Error::from)?;
        let decisions: Vec<Decision> = chosen.into_iter().map(|at| decisions[at].clone()).collect();
        if self.json {
            let each = |decision: &Decision| {
                json!({
                    "pass": decision.pass,
                    "op": decision.op,
                    "name": decision.name,
                    "layer": explain::item(decision).layer,
                    "question": decision.question,
                    "chosen": decision.chosen,
                    "why": decision.why,
                    "rejected": decision.rejected,
                })
            };
            let facts = json!({
                "ixc": ixc::build::BUILD,
                "model": self.model.path().map(|path| path.display().to_string()),
                "architecture": model.arch.hyper.architecture,
                "target": self.target.target.name(),
                "decisions": decisions.iter().map(each).collect::<Vec<Json>>(),
            });
            return Ok(output::json(out, "ixc.explain.v1", &facts)?);
        }
        let groups = explain::grouped(&decisions);
        let count = counted(decisions.len() as u64, "decision");
        writeln!(out, "{count} for {}, {} of them unlike each other", self.target, groups.len())?;
        for group in groups {
            write!(out, "\n{}", lines(&group.to_string()))?;
        }
        Ok(())
    }
}
