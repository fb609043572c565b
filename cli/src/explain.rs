//! `ixc explain`: decisions of passes, of placement on a grid and of the start of a run, with their
//! reasons.

use std::io::Write;

use ixc_compile::cluster;
use ixc_compile::compile::{CompileOptions, CompileTarget};
use ixc_compile::model::Model;
use ixc_compile::place;
use ixc_dataflow::grids;
use ixc_generate::explain;
use ixc_passes::decision::Decision;
use ixc_passes::options::OptionSet;
use ixc_passes::shard::ShardOptions;
use ixc_runtime::engine;
use serde_json::{Value as Json, json};

use super::Usage;
use super::division::{DivisionOption, MachineChoice};
use super::model_args::{MemoryChoice, ModelArgument};
use super::output::{self, count_text, lines};
use super::prefetch::PrefetchChoice;
use super::select::SelectChoice;
use super::stage_choice::StageChoice;

/// Prints the decisions made while compiling a model: the choice, the alternatives, and the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc explain model.gguf
  ixc explain model.gguf --pass tile --layer 3 --op ffn_down
                                             tiling of a layer's weight
  ixc explain model.gguf --pass fuse         regions that were not fused
  ixc explain model.gguf --expert-memory 6GiB --predict 2 --pass residency
  ixc explain model.gguf --memory 6GiB --pass compile,residency,run
                                             a run with 6 GiB
  ixc explain model.gguf --target dataflow:wse3 --pass place
                                             placement on a wafer
  ixc explain model.gguf --ranks 4 --machines xeon-6980p --pass shard
                                             division among ranks
  ixc explain model.gguf --target sapphire-rapids --json
  ixc explain                                the built-in demo model

Passes report decisions as they make them. Equal decisions are printed once, with their count and \
layers; --json lists each. A choice without an alternative is not a decision. Without --memory or \
--expert-memory, the whole model is assumed to fit. Nothing is run; `ixc run --stats` reports \
decisions that depend on measurements, such as prefetch.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Print only decisions of these passes of `ixc opt`, or of compile (which runs them), place
    /// (on a grid) or run.
    #[arg(long = "pass", value_name = "PASS,..", value_delimiter = ',', value_parser = explain::sources())]
    shown_passes: Vec<String>,
    #[command(flatten)]
    select: SelectChoice,
    /// Target or CPU to generate kernels for: `native`, a name that `ixc doctor` lists, or
    /// dataflow:GRID for a grid of processing elements.
    #[arg(long, default_value = "native")]
    target: CompileTarget,
    /// Compile for this number of ranks: print the decision about the division, and the decisions
    /// of rank 0. --memory is then that of one rank.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Option<u32>,
    /// Division of the model among ranks.
    #[arg(long, value_enum, value_name = "DIVISION", default_value_t = DivisionOption::Auto, requires = "ranks")]
    shard: DivisionOption,
    #[command(flatten)]
    machines: MachineChoice,
    #[command(flatten)]
    memory: MemoryChoice,
    #[command(flatten)]
    prefetch: PrefetchChoice,
    #[command(flatten)]
    stages: StageChoice,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns all decisions, the model's architecture, and the target.
    fn decisions(&self) -> anyhow::Result<(Vec<Decision>, String, String)> {
        let target = match &self.target {
            CompileTarget::Processor(target) => *target,
            CompileTarget::Dataflow(name) => {
                if self.memory.bytes().is_some() || self.ranks.is_some() || self.stages.is_given()? {
                    let problem = "--memory, --ranks and the options of experts, passes and edits apply to plans for a CPU, not to a dataflow grid; leave them out";
                    return Err(Usage(problem.to_owned()).into());
                }
                let grid = grids::find(name).map_err(ixc_error::Error::from)?;
                let model = self.model.open_for_display()?;
                let (_, decisions) = explain::placement(&model, &grid, &place::PlaceOptions::default())?;
                return Ok((decisions, model.arch.hyper.architecture.clone(), self.target.to_string()));
            }
        };
        let options = self.stages.options(Some(target))?;
        let memory = self.memory.bytes();
        if memory.is_some() && options.expert_memory.is_some() {
            let problem = "--memory limits all memory of a run, --expert-memory only that of experts; give one of them";
            return Err(Usage(problem.to_owned()).into());
        }
        let model = self.model.open_for_display()?;
        let run =
            engine::EngineOptions { memory, prefetch: self.prefetch.settings(), ..engine::EngineOptions::default() };
        let (options, division) = self.divided(options, &model)?;
        let mut decisions: Vec<Decision> = division.into_iter().collect();
        decisions.extend(explain::decisions(&model, &options, &run)?);
        Ok((decisions, model.arch.hyper.architecture.clone(), target.target.name().to_owned()))
    }

    /// Returns the options of rank 0, and the decision about the division if there was a choice.
    fn divided(&self, options: CompileOptions, model: &Model) -> anyhow::Result<(CompileOptions, Option<Decision>)> {
        let Some(ranks) = self.ranks else { return Ok((options, None)) };
        let (by, decision) = match self.shard.division() {
            Some(division) => (division, None),
            None => {
                let chosen = cluster::choose(&model.arch.module, &self.machines.machines()?, ranks);
                let chosen = chosen.map_err(ixc_error::Error::from)?;
                (chosen.division, Some(chosen.decision))
            }
        };
        let shard = OptionSet::default().with(&ShardOptions { ranks, rank: 0, by });
        Ok((CompileOptions { passes: shard.over(&options.passes), ..options }, decision))
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let (mut decisions, architecture, target) = self.decisions()?;
        if !self.shown_passes.is_empty() {
            decisions.retain(|decision| self.shown_passes.iter().any(|pass| pass == decision.pass));
        }
        let selection = self.select.selection();
        let items: Vec<_> = decisions.iter().map(explain::item).collect();
        let chosen = selection.positions(&items).map_err(ixc_error::Error::from)?;
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
                "ixc": ixc_compile::build::BUILD,
                "model": self.model.path().map(|path| path.display().to_string()),
                "architecture": architecture,
                "target": target,
                "decisions": decisions.iter().map(each).collect::<Vec<Json>>(),
            });
            return Ok(output::json(out, "ixc.explain.v1", &facts)?);
        }
        let groups = explain::group_decisions(&decisions);
        let count = count_text(decisions.len() as u64, "decision");
        writeln!(out, "{count} for {}, {} distinct", self.target, groups.len())?;
        for group in groups {
            write!(out, "\n{}", lines(&group.to_string()))?;
        }
        Ok(())
    }
}
