//! `ixc simulate`: simulates a model on a dataflow machine, or predicts its speed on several ranks
//! ([`ranks`]).

mod ranks;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context as _;
use ixc_compile::model::{self, Model};
use ixc_compile::place::{PlaceOptions, place};
use ixc_compile::simulate::ModelWeights;
use ixc_dataflow::check::Machine;
use ixc_dataflow::data::Runner;
use ixc_dataflow::report::{Report, Summary};
use ixc_dataflow::simulate::Simulator;
use ixc_dataflow::{drawing, grids, page, read};
use ixc_files::Output;
use ixc_ir::drawing::Language;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_model_files::gguf::ShardFile;
use ixc_runtime::engine::{self, Engine};
use ixc_text::tokenizer::DecodeOptions;
use serde_json::json;

use super::drawing::languages;
use super::force::{Force, reads};
use super::interrupt::TextGuard;
use super::model_args::open;
use super::model_name::ModelName;
use super::output::{self, note};
use super::terminal::{self, standard_error};
use super::{BadInput, Usage};

/// Schema of the JSON document.
const SCHEMA: &str = "ixc.simulate.v1";

/// Default max number of tokens to generate.
const DEFAULT_TOKENS: usize = 32;

/// Simulates a model on a dataflow machine: weights stay on processing elements (PEs), and
/// activations stream between them. With --ranks it predicts the model's speed on several machines.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc simulate                                    a token of the demo model
  ixc simulate model.gguf --target dataflow:wse3 --batch 1,8,64 --position 500
  ixc simulate descriptor.json --html grid.html   a page that draws the grid
  ixc simulate --draw dot | dot -Tsvg > out.svg   programs and their streams
  ixc simulate -p \"The borrow checker\" -n 8 --check
                                                  text, checked against the CPU
  ixc simulate model.gguf --ranks 8 --machines xeon-6980p
                                                  tokens per second on 8 sockets

A batch of N is one step of N tokens of a prompt. They follow each other through the grid: the \
first fills the pipeline, the others keep it full. The roofline next to it is the rate if only the \
slowest part worked: the busiest PE or link, the host, or all of them. Without -p, no weights are \
read and experts are drawn at random. Grids: wse3, wse2, aie, tiny, tiny-colours, small, medium, \
or a path that ends in .toml.

With --ranks, nothing is simulated in detail: the time of each rank follows from the graph that it \
would run, and from the machines. No weights are read, so a file with holes in their place is \
enough.")]
pub struct Args {
    /// Descriptor (.json), or a model to place [default: `demo`, the built-in model].
    #[arg(value_parser = ModelName::parser())]
    input: Option<ModelName>,
    /// Model file of a descriptor, for its weights.
    #[arg(short, long, value_name = "MODEL", value_parser = ModelName::parser())]
    model: Option<ModelName>,
    /// Machine to place the model on.
    #[arg(long, value_name = "dataflow:GRID", default_value = "dataflow:small")]
    target: GridName,
    /// Context length of the placed model, in tokens.
    #[arg(short = 'c', long = "ctx", alias = "ctx-size", value_name = "N")]
    context: Option<u32>,
    /// Run this prompt with the model's weights and print the greedy continuation.
    #[arg(short, long, allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Maximum number of tokens to generate [default: 32].
    #[arg(short = 'n', long = "tokens", value_name = "N", requires = "prompt")]
    count: Option<usize>,
    /// Compare all logits with the CPU engine's on the same plan, bit for bit. Needs a model, not a
    /// descriptor.
    #[arg(long, requires = "prompt")]
    check: bool,
    /// Run kernels in the reference interpreter, slowly, instead of as portable machine code.
    #[arg(long, requires = "prompt")]
    interpreter: bool,
    /// Tokens in a step; several numbers give a table.
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "1", conflicts_with = "prompt",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: Vec<u32>,
    /// Tokens before the step.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "prompt")]
    position: u32,
    /// Seed of the random choice of experts.
    #[arg(long, default_value_t = 1, conflicts_with = "prompt")]
    seed: u64,
    /// Print a drawing of the programs and their streams, without simulating.
    #[arg(long, value_parser = languages(), value_name = "FORMAT", conflicts_with_all = ["prompt", "html", "json"])]
    draw: Option<Language>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write an HTML page that draws the grid in the last step. With `-` the page goes to standard
    /// output and the rest to standard error.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    ranks: ranks::RankArgs,
    #[command(flatten)]
    force: Force,
}

/// Name of a grid of processing elements.
#[derive(Clone, Debug)]
struct GridName(String);

impl FromStr for GridName {
    type Err = String;

    fn from_str(name: &str) -> Result<GridName, String> {
        match name.strip_prefix("dataflow:") {
            Some(grid) if !grid.is_empty() => Ok(GridName(grid.to_owned())),
            _ => Err("a dataflow target is written dataflow:GRID, such as dataflow:wse3".to_owned()),
        }
    }
}

/// Machine, and the model or plan that runs on it.
struct Simulated {
    machine: Machine,
    model: Option<Model>,
    plan: Option<Plan<Kernel>>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        if let Some(forecast) = self.ranks.forecast(self.position) {
            let path = self.input.as_ref().and_then(ModelName::path);
            return forecast.run(
                out,
                path,
                &ranks::ForecastOutput { json: self.json, html: self.html, force: self.force },
            );
        }
        let begin = Instant::now();
        let inputs = [&self.input, &self.model].into_iter().flatten().filter_map(ModelName::path);
        let inputs: Vec<&Path> = inputs.chain(grids::file(&self.target.0)).collect();
        // Open the output before the work, which would otherwise be lost.
        let mut page = self.html.as_ref().map(|path| self.force.open(path, &page::KIND, &inputs)).transpose()?;
        let mut simulated = self.open()?;
        if let (Some(page), Some(model)) = (&mut page, &simulated.model) {
            reads(page, model.gguf.files().iter().map(ShardFile::path))?;
        }
        let mut stderr = standard_error();
        let out = if page.as_ref().is_some_and(Output::is_standard) { &mut *stderr } else { out };
        let d = &simulated.machine.descriptor;
        note!(
            "{} programs, {} instances on {} PEs of grid {}; ready in {:.2} s",
            d.programs.len(),
            simulated.machine.layout.pe.len(),
            simulated.machine.memory.iter().filter(|bytes| **bytes > 0).count(),
            d.grid.name,
            begin.elapsed().as_secs_f64()
        );
        if let Some(language) = self.draw {
            return Ok(out.write_all(drawing::draw(d).text(language).as_bytes())?);
        }
        let plan = simulated.plan.take();
        let report = match &self.prompt {
            Some(prompt) => self.text(out, &simulated, plan, prompt)?,
            None => self.times(out, &simulated.machine)?,
        };
        if let Some(output) = page {
            let page = page::page(&report, &simulated.machine.descriptor.kernels);
            output.write(|out| out.write_all(page.as_bytes())).map_err(ixc_error::Error::from)?;
        }
        Ok(())
    }

    /// Opens the descriptor, verifies it, and opens its model.
    fn open(&self) -> anyhow::Result<Simulated> {
        let input = self.input.as_ref().and_then(ModelName::path);
        if let Some(path) = input.filter(|path| path.extension().is_some_and(|end| end == "json")) {
            if self.check {
                return Err(Usage(
                    "--check compares results with a model's plan on the CPU, so it needs a model, not a descriptor"
                        .into(),
                )
                .into());
            }
            let descriptor = read::open(path).map_err(ixc_error::Error::from)?;
            let machine = Machine::new(descriptor).map_err(|error| ixc_error::Error::from(Box::new(error)))?;
            let model = match (&self.model, &self.prompt) {
                (Some(name), _) => Some(open(name.path())?),
                (None, None) => None,
                (None, Some(_)) => {
                    return Err(Usage(
                        "a prompt needs the weights of the model: name the model file with --model".into(),
                    )
                    .into());
                }
            };
            return Ok(Simulated { machine, model, plan: None });
        }
        if self.model.is_some() {
            return Err(Usage(
                "--model gives the weights for a descriptor; name a model that is to be placed without --model".into(),
            )
            .into());
        }
        let model = open(input)?;
        let grid = grids::find(&self.target.0).map_err(ixc_error::Error::from)?;
        let context = self.context;
        let placed = place(&model, &grid, &PlaceOptions { context })?;
        let machine = Machine::new(placed.descriptor).map_err(|error| ixc_error::Error::from(Box::new(error)));
        Ok(Simulated {
            machine: machine.context("the descriptor that ixc made of the model is malformed")?,
            model: Some(model),
            plan: Some(placed.plan),
        })
    }

    /// Simulates steps without weights, and writes a row of times for each.
    fn times(&self, out: &mut dyn Write, machine: &Machine) -> anyhow::Result<Report> {
        let mut last = None;
        let mut rows = Vec::new();
        let is_table = !self.json && self.batch.len() > 1;
        if is_table {
            table_head(out)?;
        }
        for &batch in &self.batch {
            let begin = Instant::now();
            let mut simulator = Simulator::for_timing(machine, self.seed);
            simulator.seek(self.position);
            let wanted: Vec<u32> = (0..batch).collect();
            let step =
                simulator.step(&vec![0; batch as usize], &wanted).map_err(|e| ixc_error::Error::from(Box::new(e)))?;
            let (summary, seconds) = (step.report.summary(), begin.elapsed().as_secs_f64());
            if is_table {
                table_row(out, &summary, seconds)?;
            }
            rows.push((summary, seconds));
            last = Some(step.report);
        }
        if self.json {
            let rows: Vec<_> = rows
                .iter()
                .map(|(summary, seconds)| json!({"step": summary, "simulated_in_seconds": seconds}))
                .collect();
            output::json(out, SCHEMA, &json!({ "steps": rows }))?;
        } else if let ([(summary, _)], false) = (&rows[..], is_table) {
            write!(out, "{summary}")?;
        }
        last.ok_or_else(|| BadInput("no batch".into()).into())
    }

    /// Generates a text for a prompt.
    fn text(
        &self,
        out: &mut dyn Write,
        simulated: &Simulated,
        plan: Option<Plan<Kernel>>,
        prompt: &str,
    ) -> anyhow::Result<Report> {
        let Some(model) = &simulated.model else {
            return Err(BadInput("a prompt needs the weights of a model".into()).into());
        };
        let machine = &simulated.machine;
        let tokenizer = model::tokenizer(&model.gguf)?;
        let mut tokens = tokenizer.encode(prompt, true).map_err(ixc_error::Error::from)?;
        if let Some(bos) = tokenizer.add_bos().filter(|bos| tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        model.check_tokens(&tokens)?;
        let weights = ModelWeights::new(&machine.descriptor, &model.gguf).map_err(ixc_error::Error::from)?;
        let runner = if self.interpreter { Runner::Interpreter } else { Runner::Compiled };
        let new = Simulator::with_weights(machine, &weights, runner);
        let mut simulator = new.map_err(|error| ixc_error::Error::from(Box::new(error)))?;
        let mut engine = match (self.check, plan) {
            (true, Some(plan)) => Some(cpu(plan, machine.descriptor.context)?),
            _ => None,
        };
        let mut stream = tokenizer.stream(DecodeOptions { show_special: false, at_start: false });
        let (mut text, mut made, mut cycles) = (String::new(), Vec::new(), 0u64);
        let mut compared = 0usize;
        let (begin, mut writing) = (Instant::now(), None);
        let mut next = tokens;
        let limit = self.count.unwrap_or(DEFAULT_TOKENS);
        let report = loop {
            let wanted = [next.len() as u32 - 1];
            let step = simulator.step(&next, &wanted).map_err(|error| ixc_error::Error::from(Box::new(error)))?;
            model.gguf.check_readable().map_err(ixc_error::Error::from)?;
            cycles += step.report.cycles;
            let logits = step.logits.first().map_or(&[][..], Vec::as_slice);
            if let Some(engine) = &mut engine {
                // The engine may divide the tokens into shorter steps, which does not change the
                // results of a token.
                let right = engine.prefill(&next).map_err(ixc_error::Error::from)?;
                compare(logits, right, simulator.position())?;
                compared += logits.len();
            }
            let token = likeliest(logits);
            let ends = tokenizer.is_end_of_generation(token) || made.len() >= limit;
            let full = simulator.position() >= machine.descriptor.context;
            // From here on, before text appears, Ctrl-C ends the text and not the program.
            let writing = writing.get_or_insert_with(|| TextGuard::begin(begin.elapsed()));
            if !ends {
                made.push(token);
                show(out, &stream.push(token).map_err(ixc_error::Error::from)?, &mut text, self.json)?;
            }
            if ends || full || made.len() >= limit || writing.is_interrupted() {
                break step.report;
            }
            next = vec![token];
        };
        show(out, &stream.finish(), &mut text, self.json)?;
        let seconds = cycles as f64 / machine.descriptor.grid.clock_hz;
        if self.json {
            let facts = json!({
                "text": text, "tokens": made, "cycles": cycles, "seconds": seconds,
                "logits_compared": self.check.then_some(compared), "last_step": report.summary(),
            });
            output::json(out, SCHEMA, &facts)?;
        } else {
            writeln!(out)?;
        }
        // Flush before messages on standard error, which may be the same terminal.
        out.flush()?;
        if self.check {
            note!("check     {compared} logits, all equal to the CPU's bit for bit");
        }
        note!("simulated {cycles} cycles, {:.1} µs; the last step:", seconds * 1e6);
        note!("{}", report.summary());
        Ok(report)
    }
}

fn show(out: &mut dyn Write, piece: &str, text: &mut String, quiet: bool) -> std::io::Result<()> {
    text.push_str(piece);
    if !quiet {
        out.write_all(piece.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// Loads the same plan into an engine on this CPU.
fn cpu(plan: Plan<Kernel>, context: u32) -> anyhow::Result<Engine> {
    let built_in = Some(ixc_generate::plan_file::built_in());
    let options = engine::EngineOptions { context: Some(context.into()), built_in, ..engine::EngineOptions::default() };
    Ok(Engine::load(plan, Path::new(""), &options).map_err(ixc_error::Error::from)?)
}

/// Returns the token with the largest logit; among equal ones, the first.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

fn compare(found: &[f32], right: &[f32], position: u32) -> anyhow::Result<()> {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    if found.len() == right.len() && found.iter().zip(right).all(same) {
        return Ok(());
    }
    let place = found.iter().zip(right).position(|pair| !same(pair)).unwrap_or(0);
    let (a, b) = (found.get(place).copied().unwrap_or(f32::NAN), right.get(place).copied().unwrap_or(f32::NAN));
    anyhow::bail!(
        "results differ: at position {position}, the logit of token {place} is {a:?} on the grid and {b:?} on this CPU"
    )
}

/// Min columns of a terminal for the whole table of steps.
const WIDE: usize = 111;

/// Cells of a line of the table of steps.
struct StepCells<'a> {
    tokens: &'a str,
    cycles: &'a str,
    cycles_per_token: &'a str,
    tokens_per_second: &'a str,
    roofline_per_second: &'a str,
    busy: &'a str,
    share_of_peak: &'a str,
    messages: &'a str,
    links: &'a str,
    seconds: &'a str,
}

/// Writes a line of the table of steps. A terminal of 80 columns has room for the most important
/// columns.
fn table_line(out: &mut dyn Write, cells: &StepCells<'_>) -> std::io::Result<()> {
    let StepCells { tokens, cycles, cycles_per_token, busy, messages, links, seconds, .. } = cells;
    let (rate, roofline, peak) = (cells.tokens_per_second, cells.roofline_per_second, cells.share_of_peak);
    match terminal::output_width().is_none_or(|width| width >= WIDE) {
        true => writeln!(
            out,
            "{tokens:>6} {cycles:>12} {cycles_per_token:>14} {rate:>12} {roofline:>12} {busy:>8} {peak:>8} {messages:>10} {links:>11} {seconds:>8}"
        ),
        false => writeln!(out, "{tokens:>6} {cycles:>12} {rate:>12} {roofline:>12} {busy:>8} {peak:>8} {seconds:>8}"),
    }
}

/// Writes the head of a table of steps.
fn table_head(out: &mut dyn Write) -> std::io::Result<()> {
    table_line(
        out,
        &StepCells {
            tokens: "tokens",
            cycles: "cycles",
            cycles_per_token: "cycles/token",
            tokens_per_second: "tokens/s",
            roofline_per_second: "roofline/s",
            busy: "busy",
            share_of_peak: "of_peak",
            messages: "messages",
            links: "links",
            seconds: "sim. s",
        },
    )?;
    out.flush()
}

/// Writes a step as a row of the table, and flushes it, since the next step may take minutes.
fn table_row(out: &mut dyn Write, row: &Summary, seconds: f64) -> std::io::Result<()> {
    table_line(
        out,
        &StepCells {
            tokens: &row.rows.to_string(),
            cycles: &row.cycles.to_string(),
            cycles_per_token: &format!("{:.1}", row.cycles as f64 / row.rows as f64),
            tokens_per_second: &format!("{:.1}", row.tokens_per_second),
            roofline_per_second: &format!("{:.1}", row.roofline_tokens_per_second),
            busy: &format!("{:.2}%", row.busy * 100.0),
            share_of_peak: &format!("{:.2}%", row.arithmetic_utilisation * 100.0),
            messages: &row.messages.to_string(),
            links: &row.hops.to_string(),
            seconds: &format!("{seconds:.2}"),
        },
    )?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// Reader that sees the flushed text.
    #[derive(Default)]
    struct Reader {
        unseen: Vec<u8>,
        seen: Vec<String>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.unseen.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.seen.push(String::from_utf8_lossy(&std::mem::take(&mut self.unseen)).into_owned());
            Ok(())
        }
    }

    #[test]
    fn simulation_table_prints_each_row_when_computed() {
        let Command { args } = Command::parse_from(["simulate", "--batch", "1,2,3"]);
        let simulated = args.open().unwrap();
        let mut reader = Reader::default();
        args.times(&mut reader, &simulated.machine).unwrap();
        let first_words: Vec<Vec<&str>> = reader
            .seen
            .iter()
            .map(|text| text.lines().map(|line| line.split_whitespace().next().unwrap()).collect())
            .collect();
        assert_eq!(first_words, [["tokens"], ["1"], ["2"], ["3"]]);
        assert!(reader.unseen.is_empty());
    }
}
