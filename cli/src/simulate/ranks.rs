//! `ixc simulate --ranks`: predicts the speed of a model on several ranks.

use std::io::Write;
use std::path::{Path, PathBuf};

use ixc_compile::cluster::{self, ClusterForecast, ClusterRequest, page};
use ixc_files::Output;
use ixc_model_files::gguf::ShardFile;
use serde::Serialize;

use crate::division::{DivisionOption, MachineChoice};
use crate::force::{Force, reads};
use crate::model_args::open;
use crate::output;
use crate::terminal::standard_error;

/// Schema of the JSON document.
const SCHEMA: &str = "ixc.ranks.v1";
/// Max number of ranks. The forecast builds the graph of each rank.
const MAX_RANKS: i64 = 1024;
/// Options of a forecast for several ranks.
#[derive(Debug, clap::Args)]
pub struct RankArgs {
    /// Predict the speed on this number of ranks, one for each socket.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS),
          conflicts_with_all = ["model", "target", "context", "prompt", "batch", "seed", "draw"])]
    ranks: Option<u32>,
    /// Division of the model among ranks [default: auto].
    #[arg(long, value_name = "DIVISION", requires = "ranks")]
    shard: Option<DivisionOption>,
    #[command(flatten)]
    machines: MachineChoice,
}

/// A forecast for several ranks, as requested.
pub struct RequestedForecast<'a> {
    request: ClusterRequest,
    machines: &'a MachineChoice,
}

/// Outputs of a forecast besides text.
pub struct ForecastOutput {
    /// Whether the forecast is printed as JSON.
    pub json: bool,
    /// File of the page.
    pub html: Option<PathBuf>,
    /// Whether existing files are overwritten.
    pub force: Force,
}

impl RankArgs {
    /// Returns the requested forecast. `position` is the number of tokens before the decoded one.
    pub fn forecast(&self, position: u32) -> Option<RequestedForecast<'_>> {
        let division = self.shard.and_then(DivisionOption::division);
        let request = ClusterRequest { ranks: self.ranks?, division, position: position.into() };
        Some(RequestedForecast { request, machines: &self.machines })
    }
}

/// JSON document of a forecast.
#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    #[serde(flatten)]
    forecast: &'a ClusterForecast,
}

impl RequestedForecast<'_> {
    /// Predicts the speed, and writes it as text or JSON, and as a page if one is requested. `path`
    /// is the path of the model; `None` is the built-in model.
    pub fn run(&self, out: &mut dyn Write, path: Option<&Path>, wanted: &ForecastOutput) -> anyhow::Result<()> {
        let inputs: Vec<&Path> = path.into_iter().chain(self.machines.file()).collect();
        // Open the output before the work, which would otherwise be lost.
        let mut page = wanted.html.as_ref().map(|file| wanted.force.open(file, &page::KIND, &inputs)).transpose()?;
        let machines = self.machines.machines()?;
        let model = open(path)?;
        if let Some(page) = &mut page {
            reads(page, model.gguf.files().iter().map(ShardFile::path))?;
        }
        let forecast = cluster::forecast(&model.arch.module, &machines, &self.request);
        let forecast = forecast.map_err(ixc_error::Error::from)?;
        let name = model.gguf.metadata().path().file_stem().map_or("model".into(), |name| name.to_string_lossy());
        let mut stderr = standard_error();
        let out = if page.as_ref().is_some_and(Output::is_standard) { &mut *stderr } else { out };
        if wanted.json {
            output::json(out, SCHEMA, &Document { model: &name, forecast: &forecast })?;
        } else {
            write!(out, "{forecast}")?;
        }
        if let Some(output) = page {
            let page = page::page(&name, &forecast, &machines);
            output.write(|out| out.write_all(page.as_bytes())).map_err(ixc_error::Error::from)?;
        }
        Ok(())
    }
}
