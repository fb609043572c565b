//! `ixc inspect --html`: writes a page about a model's or plan's way to machine code.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ixc_compile::compile::TargetName;
use ixc_compile::model::{Input, Model};
use ixc_files::Output;
use ixc_model_files::gguf::ShardFile;
use ixc_runtime::file::of_file;
use ixc_workbench::report::{KIND, Report};

use super::Usage;
use super::force::{Force, reads};
use super::model_args::ModelArgument;
use super::output::Bytes;
use super::settings::arguments::is_added;
use super::stage_choice::StageChoice;
use super::terminal::standard_error;

/// Page, and compile options for its contents.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Page")]
pub struct PageChoice {
    /// Write an HTML page instead; `-` writes to standard output. It shows the graph, the changes
    /// of each pass, tensors, memory over steps, kernels with IR, instructions and cost, and expert
    /// loads. It needs no network.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "tensors"])]
    html: Option<PathBuf>,
    /// Trace of this model from `ixc run --trace`. The page then begins with measured times and
    /// with this machine's peak rates, which take a few seconds to measure.
    #[arg(long, value_name = "FILE", requires = "html")]
    trace: Option<PathBuf>,
    /// Target or CPU to generate kernels for: `native`, or a name that `ixc doctor` lists [default:
    /// native]. A plan already has its target.
    #[arg(long, value_name = "TARGET", requires = "html")]
    target: Option<TargetName>,
    #[command(flatten)]
    stages: StageChoice,
    #[command(flatten)]
    force: Force,
}

impl PageChoice {
    /// Returns whether a page was requested.
    ///
    /// # Errors
    /// If no page was requested, but options for its compilation were given.
    pub fn is_asked_for(&self) -> anyhow::Result<bool> {
        let said = self.stages.is_given()?;
        match self.html.is_some() {
            false if said || self.force.is_set() => {
                Err(Usage("the options of the HTML page need --html FILE".into()).into())
            }
            asked => Ok(asked),
        }
    }

    /// Writes the page.
    pub fn run(&self, model: &ModelArgument, out: &mut dyn Write) -> anyhow::Result<()> {
        let begin = Instant::now();
        let path = self.html.clone().unwrap_or_default();
        let inputs = [model.path(), self.trace.as_deref()].into_iter().flatten().chain(self.stages.changes.files());
        let inputs: Vec<&Path> = inputs.collect();
        // Open the output before the work, which would otherwise be lost.
        let mut output = self.force.open(&path, &KIND, &inputs)?;
        let mut stderr = standard_error();
        let out = if output.is_standard() { &mut *stderr } else { out };
        let mut report = match model.path() {
            Some(path) => match Input::open(path)? {
                Input::Plan(plan) => self.of_plan(plan, path)?,
                Input::Model(gguf) => self.of_model(Model::new(*gguf)?, &mut output)?,
            },
            None => self.of_model(model.open()?, &mut output)?,
        };
        if let Some(trace) = &self.trace {
            report.add_trace(trace)?;
        }
        let bytes = output.write(|out| out.write_all(report.page().as_bytes())).map_err(ixc_error::Error::from)?;
        if let Some(failed) = report.failed {
            return Err(failed.into());
        }
        Ok(writeln!(out, "{}: {} in {:.2} s", path.display(), Bytes(bytes), begin.elapsed().as_secs_f64())?)
    }

    fn of_plan(&self, file: File, path: &Path) -> anyhow::Result<Report> {
        let is_target_given = self.target.is_some() && !is_added("target");
        if is_target_given || self.stages.is_given()? {
            return Err(Usage("a plan is already compiled: give --html FILE alone, or with --trace".into()).into());
        }
        let plan = of_file(file, path).map_err(ixc_error::Error::from)?.plan;
        Ok(Report::of_plan(path, &plan)?)
    }

    fn of_model(&self, model: Model, output: &mut Output) -> anyhow::Result<Report> {
        reads(output, model.gguf.files().iter().map(ShardFile::path))?;
        Ok(Report::of_model(&model, &self.stages.options(self.target)?)?)
    }
}
