//! `ixc kernel tune`: finds the fastest tiling of a matrix product's kernel, in a real model or in
//! a synthetic model of one kernel.

use std::io::Write;
use std::path::{Path, PathBuf};

use ixc_compile::machine::features::cpu_name;
use ixc_compile::model::Model;
use ixc_compile::tuned::{self, MeasurementSource, Place as Kept, Speedup, own_file, put};
use ixc_compile::{compile, demo};
use ixc_passes::tuned::TunedChoice;
use ixc_runtime::engine;
use ixc_targets::{CoreCaches, Target};
use ixc_workbench::kernels::bench::MemoryLevel;
use ixc_workbench::kernels::choose::{self, ModelName, OpenModel};
use ixc_workbench::kernels::tune::model::{Event, Kernel, ModelTuning, StepComparison, TuneOptions, tune_model};
use ixc_workbench::kernels::tune::{self, Candidate, TunedKernel, tune};
use ixc_workbench::kernels::{KernelError, KernelSpec};
use serde_json::{Value as Json, json};

use super::super::Usage;
use super::super::model_args::PinChoice;
use super::super::output::{self, Printable};
use super::choice::KernelChoice;

/// Searches the fastest tiling of a matrix product: widths of items and bands, rows, prefetch
/// distance and unrolling.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "KERNEL is a MODEL (all its products that take time), MODEL:NAME (one of them), a row or a spec.

Candidates are measured in turn with the tiling that the pass `tile` takes from cache sizes. They \
run in steps of an engine with all threads: the model's, or one made for the spec. The measure is \
the time of the steps that read the weight, up to the last thread. The fastest candidate is \
measured again and must win by more than the spread of rounds. For a model, whole steps with all \
winners must be faster, too. Winners are written to a file in the user's cache folder, which later \
runs on this CPU read, or to the file of -o, for --tuned. For a target that cannot run here, the \
CPU's cost model decides; it knows no prefetches and threads. No candidate changes a bit of the \
output, since the choice of kernels by rows is not searched.

EXAMPLES:
  ixc kernel tune model.gguf                 all products that take time
  ixc kernel tune model.gguf:gemm_q6_k       one kernel of the model
  ixc kernel tune linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv
  ixc kernel tune gemm_q4_k_r16 --rows 128   for prompts of 128 tokens
  ixc kernel tune gemm_q4_k_r16 --target zen4 -o zen4.json
  ixc kernel tune gemv_q4_k_r16 --choose gemv@0/1 -o tuned.json
                                             this candidate, not the fastest
  ixc kernel tune gemv_q4_k_r16 --no-save --json"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    /// Location of a spec's weights: memory, as in a model, or caches.
    #[arg(long, value_name = "PLACE", default_value = "memory", value_parser = place, hide_short_help = true)]
    place: MemoryLevel,
    /// Rounds of each measurement.
    #[arg(short, long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    repetitions: u32,
    /// Number of threads [default: one per core].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    pin: PinChoice,
    /// Rows of activations in a prefill step [default: 512, or the model's maximum].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rows: Option<u32>,
    /// Minimum share of a step's time, 0 to 1. Products of a MODEL that take less are not tuned.
    #[arg(long, value_name = "PART", default_value_t = 0.03, value_parser = part, hide_short_help = true)]
    least: f64,
    /// File that the fastest tiling is added to [default: this machine's file in the user's cache
    /// folder].
    #[arg(short, long, value_name = "FILE", conflicts_with = "no_save")]
    output: Option<PathBuf>,
    /// Write this candidate of the table, not the fastest one, with its measurement.
    #[arg(long, value_name = "CANDIDATE", conflicts_with = "no_save")]
    choose: Option<String>,
    /// Write no file.
    #[arg(long)]
    no_save: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn part(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|part| (0.0..=1.0).contains(part))
        .ok_or_else(|| "expected a fraction from 0 to 1".to_owned())
}

fn place(text: &str) -> Result<MemoryLevel, String> {
    match text {
        "memory" => Ok(MemoryLevel::Memory),
        "caches" => Ok(MemoryLevel::Caches),
        _ => Err("expected `memory` or `caches`".to_owned()),
    }
}

/// Writer of the results.
struct Output<'o> {
    out: &'o mut dyn Write,
    json: bool,
    /// Unit of a cost, and the factor from a cost to this unit.
    unit: (&'static str, f64),
    failed: Option<std::io::Error>,
}

/// Width of the first column, in characters.
const WIDTH: usize = 28;

impl Output<'_> {
    /// Writes a line, unless the output is JSON. An error is kept until the end.
    fn line(&mut self, text: &str) {
        if !self.json && self.failed.is_none() {
            // Tuning takes minutes: flush, so that a reader of an output file sees the progress.
            self.failed = writeln!(self.out, "{text}").and_then(|()| self.out.flush()).err();
        }
    }

    fn head(&mut self) {
        self.line(&format!(
            "{:<WIDTH$} {:>12} {:>7}  {:>7} {:>7}",
            "candidate", self.unit.0, "ratio", "quarter", "quarter"
        ));
    }

    fn row(&mut self, row: &Candidate) {
        let Speedup { median: ratio, low, high } = row.ratio;
        let rates = format!("{:>12.3} {ratio:>7.3}  {low:>7.3} {high:>7.3}", row.cost * self.unit.1);
        self.line(&format!("{:<WIDTH$} {rates}", row.what));
    }

    fn default(&mut self, found: &TunedKernel) {
        self.line(&format!(
            "default choice from cache sizes: {}, {:.3} {}",
            found.own,
            found.default.cost * self.unit.1,
            self.unit.0
        ));
    }

    fn times(row: &Candidate) -> String {
        let Speedup { median: ratio, low, high } = row.ratio;
        format!("{} is {ratio:.3} times as fast ({low:.3} to {high:.3})", row.what)
    }

    fn not_faster(&mut self, found: &TunedKernel) {
        match &found.close {
            Some(row) => {
                self.line(&format!("no candidate is faster by more than the spread of rounds: {}", Output::times(row)));
            }
            None => self.line("no candidate is faster than the default"),
        }
    }

    /// Writes a line with the path of the results.
    fn write_place(&mut self, setting: &Setting) {
        match &setting.place {
            Some(Kept { path, .. }) => self.line(&format!("written to {}", Printable(&path.display().to_string()))),
            None => self.line("not written"),
        }
    }

    /// Writes the progress of tuning a model.
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Kernel(Kernel { spec, rows, share }) => {
                let of = if *rows == 1 { "decode".to_owned() } else { format!("prefill of {rows} tokens") };
                self.line(&format!("\n{spec}\n{:.1} % of {of}", share * 100.0));
                self.head();
            }
            Event::Candidate(row) => self.row(row),
            Event::TunedKernel(found) => {
                self.default(found);
                match &found.winner {
                    Some((row, _)) => self.line(&format!("fastest, measured again: {}", Output::times(row))),
                    None => self.not_faster(found),
                }
            }
            Event::StepComparison(StepComparison { choices, rows, is_faster }) => {
                self.line(&format!("\nwhole steps with {}", choices.join("; ")));
                rows.iter().for_each(|row| self.line(&Output::times(row)));
                if !is_faster {
                    self.line("whole steps are not faster by more than the spread of rounds");
                }
            }
        }
    }

    fn end(self) -> anyhow::Result<()> {
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Target of tuning, and the file of the results.
struct Setting {
    target: Target,
    caches: CoreCaches,
    source: MeasurementSource,
    place: Option<Kept>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let (text, is_selected) = self.kernel.text();
        let target = self.kernel.target().target;
        let runs = target.missing().is_empty();
        let model = choose::model_name(&text);
        // A selected kernel is tuned alone if this machine cannot run it, or with --choose.
        let is_one = is_selected && (!runs || self.choose.is_some());
        let is_whole = model.is_some_and(|model| model.is_whole && !is_one);
        if is_whole && self.choose.is_some() {
            let hint = "--choose is for one kernel: name it, as in MODEL:gemm_q6_k";
            return Err(Usage(hint.into()).into());
        }
        if is_whole && !runs {
            let hint = format!(
                "{} cannot run here, and a model is tuned by running it: name a kernel, as in MODEL:gemm_q6_k, which is tuned by the cost model of its CPU",
                target.name()
            );
            return Err(Usage(hint).into());
        }
        let opened = model.map(|model| Ok::<_, ixc_error::Error>((model, model.open()?))).transpose()?;
        // The weights of a plan are already tiled. So only a single kernel of a plan is tuned, by
        // its spec.
        if let (Some((ModelName { path: Some(path), .. }, OpenModel::Plan(_))), true) = (&opened, is_whole) {
            return Err(ixc_compile::Error::IsPlan { path: path.to_path_buf() }.into());
        }
        let spec = match is_whole {
            true => None,
            false => {
                let chosen = match &opened {
                    Some((named, opened)) => named.choose(opened, target, &self.kernel.selection())?,
                    None => self.kernel.choose()?,
                };
                let why = "the kernel has no spec".to_owned();
                let none = ixc_error::Error::from(KernelError::NotTuned { spec: chosen.name.clone(), why });
                Some(chosen.spec.ok_or(none)?)
            }
        };
        let setting = self.setting(target)?;
        match (opened, spec) {
            (Some((named, OpenModel::Model(model))), spec) if runs => {
                self.of_model(&model, named.path, spec, &setting, out)
            }
            (_, Some(spec)) => self.of_spec(&spec, &setting, out),
            (_, None) => {
                Err(Usage("nothing is named that could be tuned: name a kernel, a spec or a model".into()).into())
            }
        }
    }

    fn setting(&self, target: Target) -> anyhow::Result<Setting> {
        let is_native = target == Target::native();
        let place = match (&self.output, self.no_save) {
            (Some(path), _) => Some(Kept { path: path.clone(), is_own: false }),
            (None, true) => None,
            (None, false) if is_native => {
                Some(Kept { path: own_file(target).map_err(ixc_error::Error::from)?, is_own: true })
            }
            (None, false) => {
                return Err(ixc_error::Error::from(ixc_compile::error::tuned::TunedError::NoPlace {
                    target: target.name(),
                })
                .into());
            }
        };
        let runs = target.missing().is_empty();
        let source =
            if runs { MeasurementSource::Cpu(cpu_name()) } else { MeasurementSource::Model(target.name().to_owned()) };
        if let Some(place) = &place {
            // Check the file of the results before tuning, which takes minutes.
            place.check(target, &source)?;
        }
        let row = target.row();
        let caches = if is_native { CoreCaches::here(row) } else { row.caches() };
        Ok(Setting { target, caches, source, place })
    }

    fn engine_options(&self) -> engine::EngineOptions {
        let built_in = Some(ixc_generate::plan_file::built_in());
        engine::EngineOptions { threads: self.threads, pin: self.pin.pin, built_in, ..engine::EngineOptions::default() }
    }

    /// Stores the fastest candidate of a kernel. Without one, removes the stored candidate.
    fn keep(setting: &Setting, found: &TunedKernel, kept: Option<(&Candidate, &TunedChoice)>) -> anyhow::Result<()> {
        let Some(place) = &setting.place else { return Ok(()) };
        let stored = kept.map(|(row, choice)| tuned::Row {
            choice: choice.to_string(),
            instead_of: found.own.clone(),
            ratio: row.ratio,
        });
        Ok(put(place, setting.target, &setting.source, found.kernel, stored)?)
    }

    /// Describes the target and the CPU of the results.
    fn subject(setting: &Setting) -> String {
        let source = match &setting.source {
            MeasurementSource::Cpu(name) => name.clone(),
            MeasurementSource::Model(name) => format!("the cost model of {name}"),
        };
        format!("for {} on {}", setting.target.name(), Printable(&source))
    }

    fn of_spec(self, spec: &KernelSpec, setting: &Setting, out: &mut dyn Write) -> anyhow::Result<()> {
        let runs = matches!(setting.source, MeasurementSource::Cpu(_));
        let unit = if runs { ("us/row", 1e6) } else { ("cycles/row", 1.0) };
        let mut report = Output { out, json: self.json, unit, failed: None };
        let by = match runs {
            true => {
                let (place, rounds, rows, run) =
                    (self.place, self.repetitions, self.rows, Box::new(self.engine_options()));
                tune::Comparison::Time { place, rounds, rows, run }
            }
            false => tune::Comparison::Model { place: self.place },
        };
        // A kernel that cannot be tuned gets no table.
        let mut is_begun = false;
        let found = tune(spec, setting.target, &setting.caches, by, &mut |row| {
            if !std::mem::replace(&mut is_begun, true) {
                report.line(&spec.to_string());
                report.line(&Args::subject(setting));
                report.head();
            }
            report.row(row);
        })?;
        let chosen = self.choose.as_deref().map(|what| found.candidate(what)).transpose()?;
        let by_hand = chosen.is_some();
        let winner = chosen.or(found.winner.clone());
        Args::keep(setting, &found, winner.as_ref().map(|(row, choice)| (row, choice)))?;
        if self.json {
            let facts = json!({
                "spec": spec.to_string(),
                "target": setting.target.name(),
                "by": setting.source,
                "unit": unit.0,
                "threads": found.measured.map(|(threads, _)| threads),
                "rows": found.measured.map(|(_, rows)| rows),
                "tiling": found.own,
                "default": found.default,
                "candidates": found.rows,
                "winner": winner.as_ref().map(|(row, choice)| json!({ "measured": row, "choice": choice.to_string() })),
                "close": found.close,
                "file": winner.as_ref().and(setting.place.as_ref()).map(|place| &place.path),
            });
            return Ok(output::json(report.out, "ixc.kernel-tune.v1", &facts)?);
        }
        report.default(&found);
        match &winner {
            Some((row, choice)) => {
                let why = if by_hand { "as requested" } else { "fastest, measured again" };
                report.line(&format!("{why}: {}", Output::times(row)));
                report.line(&format!("chosen: {choice}"));
                report.write_place(setting);
            }
            None => report.not_faster(&found),
        }
        report.end()
    }

    fn of_model(
        self,
        model: &Model,
        path: Option<&Path>,
        spec: Option<KernelSpec>,
        setting: &Setting,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let mut report = Output { out, json: self.json, unit: ("us/row", 1e6), failed: None };
        let compile = compile::CompileOptions {
            target: Some(setting.target),
            caches: Some(setting.caches),
            ..compile::CompileOptions::default()
        };
        let is_one = spec.is_some();
        let options = TuneOptions {
            compile,
            run: self.engine_options(),
            rounds: self.repetitions,
            prompt: self.rows,
            min_share: self.least,
            kernel: spec,
            selection: self.kernel.selection(),
        };
        report.line(&Args::subject(setting));
        let model = tune_model(model, &options, &mut |event| report.event(event))?;
        // A candidate that the user chose is stored, even if the whole model does not get faster.
        let chosen = match (&self.choose, &model.kernels[..]) {
            (Some(what), [(_, found)]) => Some(found.candidate(what)?),
            _ => None,
        };
        let tuned = TunedModel { model, chosen };
        for (number, (_, found)) in tuned.model.kernels.iter().enumerate() {
            Args::keep(setting, found, tuned.winner(number))?;
        }
        let choices = tuned.choices();
        if self.json {
            let facts = tuned.facts(path, setting, report.unit.0);
            return Ok(output::json(report.out, "ixc.kernel-tune-model.v1", &facts)?);
        }
        report.line("");
        match (&tuned.chosen, choices.is_empty()) {
            (Some((row, _)), _) => report.line(&format!("as requested: {}", Output::times(row))),
            (None, true) => {
                report.line(match is_one {
                    true => "no candidate makes the model faster: the choice from cache sizes stays",
                    false => "no candidate makes the model faster by more than the spread of rounds: the choice from cache sizes stays",
                });
            }
            (None, false) => {}
        }
        for choice in &choices {
            report.line(&format!("chosen: {choice}"));
        }
        if !choices.is_empty() {
            report.write_place(setting);
        }
        report.end()
    }
}

/// Results of tuning a model, and the candidate that the user chose for its only kernel.
struct TunedModel {
    model: ModelTuning,
    chosen: Option<(Candidate, TunedChoice)>,
}

impl TunedModel {
    /// Returns the stored candidate of a kernel, if there is one.
    fn winner(&self, number: usize) -> Option<(&Candidate, &TunedChoice)> {
        let winner = match &self.chosen {
            Some(chosen) => Some(chosen),
            None if self.model.kept.contains(&number) => self.model.kernels[number].1.winner.as_ref(),
            None => None,
        };
        winner.map(|(row, choice)| (row, choice))
    }

    /// Returns the stored candidates of all kernels as text.
    fn choices(&self) -> Vec<String> {
        let winners = (0..self.model.kernels.len()).filter_map(|number| self.winner(number));
        winners.map(|(_, choice)| choice.to_string()).collect()
    }

    /// Returns the results as JSON.
    fn facts(&self, path: Option<&Path>, setting: &Setting, unit: &str) -> Json {
        let ModelTuning { threads, prompt, kernels, together, .. } = &self.model;
        let kernel = |(number, (kernel, found)): (usize, &(Kernel, TunedKernel))| {
            json!({
                "spec": kernel.spec,
                "rows": kernel.rows,
                "share": kernel.share,
                "tiling": found.own,
                "default": found.default,
                "candidates": found.rows,
                "winner": found.winner.as_ref().map(|(row, choice)| json!({ "measured": row, "choice": choice.to_string() })),
                "close": found.close,
                "kept": self.winner(number).map(|(_, choice)| choice.to_string()),
            })
        };
        json!({
            "model": path.map_or_else(|| demo::NAME.into(), |path| path.display().to_string()),
            "target": setting.target.name(),
            "by": setting.source,
            "unit": unit,
            "threads": threads,
            "prompt": prompt,
            "kernels": kernels.iter().enumerate().map(kernel).collect::<Vec<_>>(),
            "together": together,
            "file": setting.place.as_ref().filter(|_| !self.choices().is_empty()).map(|place| &place.path),
        })
    }
}
