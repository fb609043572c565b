//! `ixc compile --ranks`: one plan file for several ranks.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use ixc_compile::cluster::{self, DivisionChoice};
use ixc_compile::compile::TargetName;
use ixc_compile::model::Model;
use ixc_generate::ranks::compile_ranks;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Exchange, Plan, RowCount, Step};
use ixc_model_files::gguf::ShardFile;
use ixc_passes::shard::Division;
use ixc_runtime::{engine, file};
use serde_json::json;

use super::Args;
use crate::Usage;
use crate::force::reads;
use crate::output::{self, Bytes, count_text};

/// Division of a model among ranks: the requested one, or the choice of a forecast.
struct RequestedDivision {
    division: Division,
    /// Reason for the division, if a forecast chose it.
    reason: Option<String>,
}

/// Size of a rank's plan, and its traffic, for the report.
struct RankNumbers {
    weight_bytes: u64,
    steps: u64,
    exchanges: u64,
    /// Bytes that the rank sends for each token.
    token_bytes: u64,
}

impl RankNumbers {
    fn from_plan(plan: &Plan<Kernel>) -> RankNumbers {
        let exchanges = || {
            plan.steps
                .iter()
                .filter_map(|step| if let Step::Exchange(exchange) = step { Some(*exchange) } else { None })
        };
        let peers = plan.ranks.map_or(0, |ranks| u64::from(ranks.ranks) - 1);
        let sent = |exchange: Exchange| {
            let buffer = exchange.sent_buffer().and_then(|sent| plan.buffers.get(sent.0 as usize));
            let row = buffer.map_or(0, |buffer| match buffer.rows {
                RowCount::Tokens => buffer.row_bytes,
                RowCount::Routed { top_k } => buffer.row_bytes.saturating_mul(top_k.into()),
                RowCount::Outputs => 0,
            });
            row.saturating_mul(if exchange.peer().is_some() { 1 } else { peers })
        };
        RankNumbers {
            weight_bytes: plan.weights.iter().fold(0, |sum, weight| sum.saturating_add(weight.bytes)),
            steps: plan.steps.len() as u64,
            exchanges: exchanges().count() as u64,
            token_bytes: exchanges().map(sent).fold(0, u64::saturating_add),
        }
    }
}

impl Args {
    /// Returns the requested division. For `auto`, returns the fastest one by a forecast, with the
    /// reason.
    fn division(&self, model: &Model, ranks: u32) -> anyhow::Result<RequestedDivision> {
        if let Some(division) = self.shard.division() {
            if self.machines.file().is_some() {
                return Err(Usage("--machines needs --shard auto".to_owned()).into());
            }
            return Ok(RequestedDivision { division, reason: None });
        }
        let chosen = cluster::choose(&model.arch.module, &self.machines.machines()?, ranks);
        let DivisionChoice { division, reason, .. } = chosen.map_err(ixc_error::Error::from)?;
        Ok(RequestedDivision { division, reason: Some(reason) })
    }

    /// Compiles a model for several ranks.
    pub(super) fn run_ranks(&self, target: &TargetName, ranks: u32, out: &mut dyn Write) -> anyhow::Result<()> {
        let begin = Instant::now();
        let path = self.output.clone().unwrap_or_else(|| self.default_name("ixp"));
        let inputs: Vec<&Path> =
            self.model.path().into_iter().chain(self.changes.files()).chain(self.machines.file()).collect();
        let mut output = self.force.open(&path, &file::KIND, &inputs)?;
        let model = self.open_model()?;
        reads(&mut output, model.gguf.files().iter().map(ShardFile::path))?;
        let options = self.options(target)?;
        let run = engine::EngineOptions { memory: self.memory.bytes(), ..engine::EngineOptions::default() };
        let choice = self.division(&model, ranks)?;
        let division = choice.division;
        let plans = compile_ranks(&model, &options, &run, ranks, division).map_err(ixc_error::Error::from)?;
        file::write_ranks_to(output, &plans).map_err(ixc_error::Error::from)?;
        let (seconds, bytes) = (begin.elapsed().as_secs_f64(), std::fs::metadata(&path).map_or(0, |file| file.len()));
        let numbers: Vec<RankNumbers> = plans.iter().map(RankNumbers::from_plan).collect();
        let Some(first) = plans.first() else { return Ok(()) };
        if self.json {
            let each = numbers.iter().map(|rank| {
                json!({
                    "weight_bytes": rank.weight_bytes,
                    "steps": rank.steps,
                    "exchanges": rank.exchanges,
                    "sent_bytes_per_token": rank.token_bytes,
                })
            });
            let facts = json!({
                "plan": path,
                "bytes": bytes,
                "target": first.target,
                "division": division.word(),
                "reason": choice.reason,
                "ranks": each.collect::<Vec<_>>(),
                "model_files": first.files.iter().map(|file| &file.path).collect::<Vec<_>>(),
                "seconds": seconds,
            });
            return Ok(output::json(out, "ixc.compile-ranks.v1", &facts)?);
        }
        writeln!(
            out,
            "{}: {} for {}, {ranks} ranks by {}, {} in {seconds:.2} s",
            path.display(),
            first.architecture,
            first.target,
            division.word(),
            Bytes(bytes)
        )?;
        if let Some(reason) = &choice.reason {
            writeln!(out, "  {reason}")?;
        }
        for (rank, numbers) in numbers.iter().enumerate() {
            let RankNumbers { weight_bytes, steps, exchanges, token_bytes } = numbers;
            writeln!(
                out,
                "  rank {rank}: {} of weights, {}, {}, sends {} for each token",
                Bytes(*weight_bytes),
                count_text(*steps, "step"),
                count_text(*exchanges, "exchange"),
                Bytes(*token_bytes)
            )?;
        }
        Ok(writeln!(out, "  {}", super::model_files(first))?)
    }
}
