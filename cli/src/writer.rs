//! Writer of a model's text, and of its statistics.

use std::cell::OnceCell;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ixc_generate::chat::{self, Chat, FittedPrompt};
use ixc_generate::generator::{End, Request};
use ixc_generate::output_text::without_added_space;
use ixc_generate::session::{Generation, Session};
use ixc_generate::speculate::Tally;
use ixc_generate::timing::Phase;
use ixc_grammar::Matcher;
use ixc_measure::forecast::StoredForecast;
use ixc_measure::roofline::Roofline;
use ixc_measure::streaming::{BASELINE, PhaseMeasurement, counts_since};
use ixc_runtime::processors::PinRefusal;
use ixc_runtime::progress::{Activity, ProgressCounter};
use ixc_runtime::storage::pages::PageUse;
use ixc_runtime::streaming::store::ExpertCache;
use ixc_runtime::streaming::store::stats::Stats;
use ixc_text::chat::{Answer, Parser};
use ixc_workbench::kernels::roofline;
use serde_json::json;

use super::answer::DisplayedAnswer;
use super::interrupt::{Interrupted, TextGuard};
use super::model_args::{ModelChoice, StreamingChoice};
use super::output::{Bytes, Document, Watch, count_text, note, print_dim, print_stderr_unchanged};
use super::ranges::Ranges;
use super::sampling::SamplingArgs;
use super::stats_line::{Label, stat};
use super::wrap::Text;
use super::{nodes, op_times, streaming, terminal};

/// Number of tokens of a prefill step in a conversation, and its assumed max time. After Ctrl-C the
/// program waits up to three times this time for the step to end, so that Ctrl-C ends the answer
/// and not the conversation.
const LONG_STEP: (u32, Duration) = (512, Duration::from_secs(20));
/// Min packing time for a message about packing: in seconds, and as a share of the phase's time.
const LONG_PACKING: (f64, f64) = (1.0, 0.2);

/// Options of a text generation.
pub struct TextParams<'a> {
    pub model: &'a ModelChoice,
    pub streaming: &'a StreamingChoice,
    pub sampling: SamplingArgs,
    /// Matcher of the grammar that each text must follow.
    pub grammar: Option<Matcher>,
    /// Input files of the command.
    pub inputs: Vec<&'a Path>,
    /// Max number of tokens in an answer.
    pub limit: Option<usize>,
    /// Form of the statistics; `None` for no statistics.
    pub stats: Option<StatsFormat>,
    /// Whether code runs in the emulator, which makes rates meaningless.
    pub emulated: bool,
}

/// Format of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StatsFormat {
    /// Lines to read.
    Text,
    /// One JSON document per text, each on one line.
    Json,
}

/// Schema of the JSON statistics.
const STATS: &str = "ixc.stats.v1";

/// Session, and the output of its text.
pub struct Writer<'a> {
    pub session: Session,
    pub params: TextParams<'a>,
    pub out: &'a mut dyn Write,
    pub seed: u64,
    /// Rate of the drive with streamed experts, measured before the run, in bytes per second.
    pub own_rate: Option<f64>,
    /// Progress of loading and prefill in the session.
    pub progress: Arc<ProgressCounter>,
    /// Whether this is a conversation: Ctrl-C then stops an answer even before it begins.
    pub converses: bool,
    /// Whether the message about long packing was printed.
    pub advised: bool,
    /// The machine's peak rates, once measured.
    pub limits: OnceCell<Option<Roofline>>,
    /// Duration of loading, in seconds.
    pub loaded: f64,
    /// Times of the last text.
    pub last: Option<Pace>,
}

/// Times of one text: of the prompt, and of the generated tokens.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub prefill: Phase,
    pub decode: Phase,
}

/// Generated text.
pub struct WrittenText {
    /// Tokens of the text.
    pub tokens: Vec<u32>,
    /// Whether Ctrl-C ended the text.
    pub interrupted: bool,
    /// Text as the parser splits it into reasoning, content and tool calls. Without a parser, all
    /// of it is content.
    pub answer: Answer,
}

impl Writer<'_> {
    /// Generates the model's answer in a conversation, and adds the answer to the conversation.
    ///
    /// # Errors
    /// [`Interrupted`] after Ctrl-C; the conversation then contains the text so far. Other errors
    /// leave the conversation unchanged.
    pub fn answer(&mut self, chat: &mut Chat) -> anyhow::Result<()> {
        let limit = self.params.limit;
        // After turns are dropped, the remaining conversation is prefilled again. So room is made
        // for a whole answer at once.
        let room = limit.unwrap_or(usize::MAX).min(chat::answer_room(self.session.model().context()));
        let FittedPrompt { prompt, dropped } = chat.fit(self.session.model(), room)?;
        if dropped > 0 {
            let (context, dropped) = (self.session.model().context(), count_text(dropped as u64, "oldest turn"));
            note!("ixc: the context of {context} tokens is full: the conversation goes on without its {dropped}");
        }
        let has_markers = prompt.parser.is_some();
        let WrittenText { tokens, interrupted, answer } = self.write(&prompt.tokens, limit, prompt.parser)?;
        // An answer that was interrupted before its first token is discarded.
        if interrupted && tokens.is_empty() {
            return Err(Interrupted.into());
        }
        if has_markers {
            chat.answered_with(answer);
        } else {
            let tokenizer = self.session.model().tokenizer()?;
            let text = without_added_space(tokenizer, &tokens, &answer.content).map_err(ixc_error::Error::from)?;
            chat.add_answer(text);
        }
        if interrupted { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Generates the text after these tokens, and writes it unchanged, or as `parser` splits it.
    ///
    /// # Errors
    /// When the tokens do not fit, a step fails, or standard output cannot be written.
    pub fn write(
        &mut self,
        tokens: &[u32],
        limit: Option<usize>,
        parser: Option<Parser>,
    ) -> anyhow::Result<WrittenText> {
        let before =
            self.session.model().engine().stream().filter(|_| self.params.stats.is_some()).map(ExpertCache::stats);
        let tokenizer = self.session.model().tokenizer()?.clone();
        let mut shown = DisplayedAnswer::new(parser);
        let mut last = '\n';
        let mut show = |out: &mut dyn Write, text: &str| -> io::Result<()> {
            last = text.chars().next_back().unwrap_or(last);
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        // A terminal gets the text word by word; a pipe gets every byte at once.
        terminal::set_text(Text::Prose);
        let out = &mut *self.out;
        let sampling = self.params.sampling.settings_for(self.seed, &tokenizer.end_of_generation(), &tokenizer)?;
        let mut watch = Some(Watch::new(&self.progress));
        let request = Request {
            limit,
            stop: self.params.sampling.stop.clone().into(),
            // Markers of answers are control tokens in some vocabularies.
            show_special: shown.reads_markers(),
            grammar: self.params.grammar.clone(),
            ..Request::new(tokens, sampling)
        };
        let (each, seconds) = LONG_STEP;
        let long = seconds * self.session.model().engine().max_tokens().div_ceil(each);
        let (begin, mut writing) = (Instant::now(), self.converses.then(|| TextGuard::begin(long)));
        let generation = self.session.generate(&request, |event| -> anyhow::Result<ControlFlow<()>> {
            if let Some(text) = event.text() {
                // Clear the progress line before text appears.
                drop(watch.take());
                // From here on, before text appears, Ctrl-C ends the text and not the program.
                writing.get_or_insert_with(|| TextGuard::begin(begin.elapsed()));
                show(out, &shown.push(text))?;
            }
            let is_interrupted = writing.as_ref().is_some_and(TextGuard::is_interrupted);
            Ok(if is_interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        drop(writing);
        drop(watch);
        let (rest, answer) = shown.finish(&generation.end);
        show(out, &rest)?;
        if last != '\n' {
            writeln!(out)?;
        }
        terminal::end_text();
        out.flush()?;
        self.last = Some(Pace { prefill: generation.prefill, decode: generation.decode });
        if generation.shifts > 0 {
            let (context, times) = (self.session.model().context(), count_text(generation.shifts as u64, "time"));
            note!("ixc: the context of {context} tokens was full {times}; old tokens were dropped");
        }
        if generation.end == End::Context {
            let (context, model) = (self.session.model().context(), self.session.model().facts().context);
            let more = if model > context {
                format!("; --ctx makes the context larger, up to {model} tokens")
            } else {
                String::new()
            };
            note!("ixc: the context of {context} tokens is full, so the text ends here{more}");
        }
        match self.params.stats {
            Some(StatsFormat::Text) => self.stats(&generation, before.as_ref()),
            Some(StatsFormat::Json) => self.stats_as_json(&generation)?,
            None if self.converses => self.note_pace(&generation),
            None => {}
        }
        self.advise(&generation);
        let interrupted = generation.end == End::Stopped;
        Ok(WrittenText { tokens: generation.tokens, interrupted, answer })
    }

    /// Prints the length of an answer, its speed, and the used part of the context.
    fn note_pace(&self, generation: &Generation) {
        let tokens = count_text(generation.tokens.len() as u64, "token");
        let Phase { tokens: timed, seconds, .. } = generation.decode;
        let rate = match timed > 0 && seconds > 0.0 {
            true => format!(", {:.1}/s", timed as f64 / seconds),
            false => String::new(),
        };
        let (used, context) = (self.session.model().engine().position(), self.session.model().context());
        print_dim(&format!("{tokens}{rate}, context {used} of {context}"));
    }

    /// Prints advice, once, if packing weights took a large part of the time.
    fn advise(&mut self, generation: &Generation) {
        let [packing, seconds] = [|phase: &Phase| phase.packing, |phase: &Phase| phase.seconds]
            .map(|part| part(&generation.prefill) + part(&generation.decode));
        if !self.advised && is_long(packing, seconds) {
            self.advised = true;
            note!(
                "ixc: packing weights took {packing:.1} of {seconds:.1} s; a plan of `ixc compile` has packed weights"
            );
        }
    }

    /// Prints the statistics as JSON, on one line, for programs.
    fn stats_as_json(&self, generation: &Generation) -> anyhow::Result<()> {
        // Read the peak memory first, because the measurements below take memory, too.
        let peak = ixc_compile::machine::system::peak_memory();
        let (session, limits) = (&self.session, self.limits());
        let part = |phase, stats| op_times::facts(phase, stats, limits);
        let (states, state_bytes) = session.model().engine().states();
        let guessed = session.drafter_name().map(|name| {
            let Tally { drafted, accepted, drafts, drafting, declined } = generation.speculation;
            json!({
                "by": name,
                "drafted": drafted,
                "accepted": accepted,
                "drafts": drafts,
                "seconds": drafting.as_secs_f64(),
                "declined": declined,
            })
        });
        let facts = json!({
            "ixc": ixc_compile::build::BUILD,
            "target": session.model().target().name(),
            "threads": session.model().threads(),
            "emulated": self.params.emulated,
            "load_seconds": self.loaded,
            "replaced": session.model().replaced_kernels(),
            "context": session.model().context(),
            "states": { "count": states.len(), "bytes": state_bytes },
            "limits": limits,
            "prefill": part(&generation.prefill, &generation.op_times.prefill),
            "decode": part(&generation.decode, &generation.op_times.decode),
            "guessed": guessed,
            "deferred": self.params.streaming.defer(),
            "prefetch": streaming::facts(session.model().engine()),
            "seed": self.seed,
            "peak_memory": peak,
        });
        print_stderr_unchanged(&serde_json::to_string(&Document::new(STATS, &facts))?);
        Ok(())
    }

    /// Returns the peak rates of this machine, measured once with the memory that the budget
    /// leaves; `None` for emulated code.
    fn limits(&self) -> Option<&Roofline> {
        let measure = || {
            if self.converses {
                note!("ixc: measuring the peak rates of this machine, once, for --stats");
            }
            self.progress.begin(Activity::Measuring, 0);
            let _watch = Watch::new(&self.progress);
            let taken = ixc_compile::machine::system::resident_memory().unwrap_or(0);
            let left = self.params.streaming.memory().map(|budget| budget.saturating_sub(taken));
            roofline::measure(self.session.model().target(), self.session.model().threads(), left)
        };
        self.limits.get_or_init(|| (!self.params.emulated).then(measure)).as_ref()
    }

    /// Prints the statistics of this text. `before` holds the counters of the expert cache at its
    /// start.
    fn stats(&mut self, generation: &Generation, before: Option<&Stats>) {
        // Read the peak memory first, because the measurements below take memory, too.
        let peak = ixc_compile::machine::system::peak_memory();
        for (part, phase) in [(Label::Prefill, &generation.prefill), (Label::Decode, &generation.decode)] {
            let (tokens, seconds) = (count_text(phase.tokens as u64, "token"), phase.seconds);
            let rate = if seconds > 0.0 { phase.tokens as f64 / seconds } else { 0.0 };
            let without = match phase.packing > 0.0 {
                true => format!(", {:.1} without packing", phase.rate_without_packing()),
                false => String::new(),
            };
            part.print(format_args!("{tokens} in {seconds:.2} s, {rate:.1} tokens/s{without}"));
        }
        if let Some(name) = self.session.drafter_name() {
            let Tally { drafted, accepted, drafts, drafting, declined } = generation.speculation;
            let share = if drafted > 0 { 100.0 * accepted as f64 / drafted as f64 } else { 0.0 };
            let (tokens, steps) = (count_text(drafted, "token"), count_text(drafts, "step"));
            stat!(Drafts, "{tokens} by {name} in {steps}, {accepted} accepted ({share:.0} %)");
            let (seconds, steps) = (drafting.as_secs_f64(), count_text(declined, "step"));
            stat!(Drafts, "drafting took {seconds:.2} s; {steps} had no draft because drafts would not save time");
        }
        let packing = generation.prefill.packing + generation.decode.packing;
        if packing > 0.0 {
            stat!(
                Packing,
                "{packing:.2} s of this run, for packing weights at their first use; a plan of `ixc compile` has packed weights"
            );
        }
        let Generation { prefill, decode, op_times: spent, .. } = generation;
        for (part, phase, stats) in [(Label::Prefill, prefill, &spent.prefill), (Label::Decode, decode, &spent.decode)]
        {
            op_times::note(part, phase, stats, self.limits());
        }
        if let Some(limits) = self.limits() {
            op_times::note_limits(limits);
        }
        if let (Some(store), Some(before)) = (self.session.model().engine().stream(), before) {
            let did = counts_since(store.stats(), before);
            streaming::note(store, &did, &generation.decode, self.session.model().threads());
            if let Some(report) = self.session.model().engine().predictions() {
                streaming::predictions(&report);
            }
            if let Some(drive) = self.session.model().drive() {
                let after = self.own_rate.and_then(|_| drive.rate_now(BASELINE));
                let own: Vec<f64> = self.own_rate.into_iter().chain(after).collect();
                streaming::note_drive(drive, &did.drive, &own);
                self.own_rate = after;
                let observed = PhaseMeasurement {
                    phase: generation.decode,
                    prompt: None,
                    // Pinned experts are hits regardless of routing, so the forecast does not
                    // apply.
                    defers: self.session.model().defers() || store.blocks_by_group().iter().any(|held| held.kept > 0),
                    own: (!own.is_empty()).then(|| own.iter().sum::<f64>() / own.len() as f64),
                };
                let path = self.params.model.path();
                let known = path.and_then(|path| {
                    StoredForecast::load(path, self.session.model().threads(), self.session.model().target())
                });
                for line in streaming::comparison_lines(&observed.compare(store, known.as_ref())) {
                    stat!(Forecast, "{line}");
                }
            }
        }
        if self.params.streaming.defer() > 0 {
            let experts = count_text(self.params.streaming.defer().into(), "expert");
            stat!(Deferral, "{experts} per token, added one layer late: the output is approximate");
        }
        if let Some(advised) = self.session.model().engine().advice_counts() {
            streaming::advice_counts(&advised);
        }
        match self.session.model().engine().pinned_processors() {
            Ok(processors) => stat!(Threads, "bound to processors {}", Ranges(processors)),
            Err(PinRefusal::Off) => {}
            Err(why) => stat!(Threads, "not bound to processors: {why}"),
        }
        nodes::note(self.session.model().engine());
        for PageUse { what, resident, large } in self.session.model().engine().pages() {
            stat!(Pages, "{what}: {} in memory, {} of it in pages of 2 MiB", Bytes(resident), Bytes(large));
        }
        let states = self.session.model().engine().state_bytes();
        if states.copies > 0 {
            let (own, shared, saved) = (states.own, states.shared, states.unshared.saturating_sub(states.shared));
            stat!(Sharing, "{} of states shared, {} not shared; saves {}", Bytes(shared), Bytes(own), Bytes(saved));
        }
        if let Some(refusal) = states.refusal {
            stat!(Sharing, "{} of {} copies are not shared: {refusal}", states.whole_copies, states.copies);
        }
        stat!(Seed, "{}", self.seed);
        if let Some(peak) = peak {
            stat!(Memory, "{} peak, including mapped weights", Bytes(peak));
        }
    }
}

/// Returns whether packing took long enough for a message.
fn is_long(packing: f64, seconds: f64) -> bool {
    packing >= LONG_PACKING.0 && packing >= seconds * LONG_PACKING.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_reported_only_if_long_and_significant() {
        assert!(is_long(8.0, 9.3));
        assert!(!is_long(0.4, 0.5) && !is_long(8.0, 100.0) && !is_long(0.0, 0.0));
    }
}
