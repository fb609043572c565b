//! Generation of texts.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::sync::Arc;

use ixc::answer::AnswerText;
use ixc::generator::{End, Event, Request};
use ixc::grammar::GrammarSource;
use ixc::runtime::sample::SamplerSettings;
use ixc::text::chat::{Answer, Delta, Parser, ToolCall};

use crate::arguments::{
    HandlePlace, SizedStruct, free, not_null, optional_string, read_struct, slice, texts, write_sized,
};
use crate::cancel::IxcCancel;
use crate::error::{Failure, IxcStatus, catch_failure, status};
use crate::flags;
use crate::model::{IxcModel, Running, Shared};
use crate::sampler::IxcSampler;

/// `ixc_part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum IxcPart {
    /// Text for the user.
    Content,
    /// Reasoning before the text.
    Reasoning,
    /// Name of a tool that is called.
    Call,
    /// Arguments of the last call.
    Arguments,
}

/// `ixc_piece`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcPiece {
    size: usize,
    text: *const c_char,
    bytes: usize,
    part: IxcPart,
    token: u32,
}

/// `ixc_text_callback`.
pub type IxcTextCallback = Option<unsafe extern "C" fn(user: *mut c_void, piece: *const IxcPiece) -> c_int>;

/// `ixc_generate_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcGenerateOptions {
    size: usize,
    sampler: *const IxcSampler,
    max_tokens: usize,
    stop: *const *const c_char,
    stop_count: usize,
    grammar: *const c_char,
    json_schema: *const c_char,
    on_text: IxcTextCallback,
    user: *mut c_void,
    cancel: *const IxcCancel,
    flags: u32,
    reserved: u32,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are pointers and numbers, and a null
// function is `None`.
unsafe impl SizedStruct for IxcGenerateOptions {}

/// `ixc_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum IxcEnd {
    /// The model ended the text.
    Token,
    /// The grammar allows no further token.
    Grammar,
    /// The text has the requested number of tokens.
    Limit,
    /// The context is full.
    Context,
    /// A stop text was generated.
    Stop,
    /// The callback stopped the text.
    Callback,
    /// The cancellation switch was set.
    Cancelled,
}

/// `ixc_stats`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcStats {
    size: usize,
    prompt_tokens: usize,
    computed_tokens: usize,
    generated_tokens: usize,
    prompt_seconds: f64,
    generation_seconds: f64,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are numbers.
unsafe impl SizedStruct for IxcStats {}

/// `ixc_call`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcCall {
    size: usize,
    id: *const c_char,
    name: *const c_char,
    arguments: *const c_char,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are pointers.
unsafe impl SizedStruct for IxcCall {}

/// A text with a terminating 0, for C.
#[derive(Debug)]
struct TerminatedText(Vec<u8>);

impl TerminatedText {
    fn new(text: String) -> TerminatedText {
        let mut bytes = text.into_bytes();
        bytes.push(0);
        TerminatedText(bytes)
    }

    fn len(&self) -> usize {
        self.0.len() - 1
    }
}

/// A tool call, for C.
#[derive(Debug)]
struct CallTexts {
    id: CString,
    name: CString,
    arguments: CString,
}

impl CallTexts {
    fn new(call: ToolCall) -> CallTexts {
        let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        CallTexts { id: text(call.id), name: text(call.name), arguments: text(call.arguments) }
    }
}

/// A generated text.
#[derive(Debug)]
pub struct IxcGeneration {
    content: TerminatedText,
    reasoning: TerminatedText,
    calls: Vec<CallTexts>,
    tokens: Vec<u32>,
    end: IxcEnd,
    stats: IxcStats,
}

/// Checked options of a generation.
pub(crate) struct GenerateOptions {
    settings: Arc<SamplerSettings>,
    limit: Option<usize>,
    stop: Arc<[String]>,
    source: Option<GrammarSource>,
    on_text: IxcTextCallback,
    user: *mut c_void,
    cancel: IxcCancel,
    flags: u32,
}

impl GenerateOptions {
    /// Reads options.
    ///
    /// # Safety
    /// `at` is null or valid, and so is all that it points to.
    pub unsafe fn read(at: *const IxcGenerateOptions, model: &Shared) -> Result<GenerateOptions, Failure> {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let given = unsafe { read_struct("options", at) }?;
        flags::check(given.flags, flags::SHOW_SPECIAL | flags::IGNORE_END | flags::NO_CACHE | flags::RESUME_SAMPLER)?;
        if given.reserved != 0 {
            return Err(Failure::usage("options->reserved is not 0; expected 0"));
        }
        // SAFETY: the caller meets the conditions of `# Safety`.
        let settings = match unsafe { given.sampler.as_ref() } {
            Some(sampler) => sampler.settings(model)?,
            None => SamplerSettings::default(),
        };
        // SAFETY: the caller meets the conditions of `# Safety`.
        let stop = unsafe { texts("options->stop", given.stop, std::ptr::null(), given.stop_count) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let grammar = unsafe { optional_string("options->grammar", given.grammar) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let schema = unsafe { optional_string("options->json_schema", given.json_schema) }?;
        let source = match (grammar, schema) {
            (None, None) => None,
            (Some(grammar), None) => Some(GrammarSource::of_text(grammar)),
            (None, Some(schema)) => {
                let schema = serde_json::from_str(schema)
                    .map_err(|error| Failure::usage(format!("options->json_schema is not JSON: {error}")))?;
                Some(GrammarSource::Schema(schema))
            }
            (Some(_), Some(_)) => {
                return Err(Failure::usage("the options have both a grammar and a JSON schema; set only one"));
            }
        };
        Ok(GenerateOptions {
            settings: Arc::new(settings),
            limit: Some(given.max_tokens).filter(|&tokens| tokens > 0),
            stop: stop.into_iter().map(Into::into).collect(),
            source,
            on_text: given.on_text,
            user: given.user,
            // SAFETY: the caller meets the conditions of `# Safety`.
            cancel: unsafe { IxcCancel::read(given.cancel) },
            flags: given.flags,
        })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Assembler of an answer from the text of its tokens.
struct Assembler<'o> {
    options: &'o GenerateOptions,
    text: AnswerText,
    answer: Answer,
    is_stopped: bool,
}

impl<'o> Assembler<'o> {
    fn new(options: &'o GenerateOptions, text: AnswerText) -> Assembler<'o> {
        Assembler { options, text, answer: Answer::default(), is_stopped: false }
    }

    /// Adds text, and passes its parts to the callback.
    fn push(&mut self, text: &str, token: u32) {
        let deltas = self.text.push(text);
        self.extend(deltas, token);
    }

    fn extend(&mut self, deltas: Vec<Delta>, token: u32) {
        for delta in &deltas {
            match delta {
                Delta::Content(text) => self.give(IxcPart::Content, text, token),
                Delta::Reasoning(text) => self.give(IxcPart::Reasoning, text, token),
                Delta::Call(call) => {
                    self.give(IxcPart::Call, &call.name, token);
                    self.give(IxcPart::Arguments, &call.arguments, token);
                }
                Delta::Arguments(text) => self.give(IxcPart::Arguments, text, token),
            }
        }
        self.answer.extend(deltas);
    }

    /// Passes a piece of text to the callback, unless the piece is empty or the callback stopped
    /// the text.
    fn give(&mut self, part: IxcPart, text: &str, token: u32) {
        let Some(on_text) = self.options.on_text.filter(|_| !text.is_empty() && !self.is_stopped) else { return };
        let piece =
            IxcPiece { size: size_of::<IxcPiece>(), text: text.as_ptr().cast(), bytes: text.len(), part, token };
        // SAFETY: the caller of the C function guarantees that the callback takes any piece.
        self.is_stopped = unsafe { on_text(self.options.user, &piece) } != 0;
    }

    /// Ends the answer after its last token, and returns its last parts.
    fn finish(mut self, token: u32, end: &End) -> Answer {
        let deltas = self.text.end(end);
        self.extend(deltas, token);
        self.answer
    }
}

/// Result of a generation, before a handle for C is made of it.
pub(crate) struct Generated {
    pub answer: Answer,
    tokens: Vec<u32>,
    end: IxcEnd,
    stats: IxcStats,
}

impl From<Generated> for IxcGeneration {
    fn from(Generated { answer, tokens, end, stats }: Generated) -> IxcGeneration {
        IxcGeneration {
            content: TerminatedText::new(answer.content),
            reasoning: TerminatedText::new(answer.reasoning),
            calls: answer.calls.into_iter().map(CallTexts::new).collect(),
            tokens,
            end,
            stats,
        }
    }
}

/// Generates a text after a prompt. With a parser, the text is an answer with parts.
pub(crate) fn generate(
    model: &Shared,
    running: &mut Running,
    prompt: &[u32],
    options: &GenerateOptions,
    parser: Option<Parser>,
) -> Result<Generated, Failure> {
    options.cancel.check()?;
    let is_wanted = {
        let cancel = &options.cancel;
        move || !cancel.is_set()
    };
    let grammar = match &options.source {
        Some(source) => {
            let matcher = model.vocabulary()?.matcher_after(source, &[], &is_wanted);
            // A cancelled compilation of the grammar returns an error, so cancellation is checked
            // first.
            options.cancel.check()?;
            Some(matcher?)
        }
        None => None,
    };
    // Fails if the model has no tokenizer.
    model.tokenizer()?;
    let sampler = running.sampler.clone();
    let text = AnswerText::new(parser);
    let request = Request {
        limit: options.limit,
        ignore_end: options.has(flags::IGNORE_END),
        cache_prompt: !options.has(flags::NO_CACHE),
        sampler_state: sampler.filter(|_| options.has(flags::RESUME_SAMPLER)),
        stop: Arc::clone(&options.stop),
        show_special: text.reads_markers() || options.has(flags::SHOW_SPECIAL),
        grammar,
        ..Request::new(prompt, Arc::clone(&options.settings))
    };
    let mut assembler = Assembler::new(options, text);
    let (mut last, mut is_cancelled) = (0, false);
    let result = running.session.generate(&request, |event| -> Result<ControlFlow<()>, ixc::Error> {
        if let &Event::Token { token, .. } = event {
            last = token;
        }
        if let Some(text) = event.text() {
            assembler.push(text, last);
        }
        is_cancelled = options.cancel.is_set();
        Ok(match assembler.is_stopped || is_cancelled {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    });
    running.sampler = None;
    let generation = result.inspect_err(|_| running.text.clear())?;
    running.text = [prompt, &generation.tokens].concat();
    let is_stopped = assembler.is_stopped;
    let answer = assembler.finish(last, &generation.end);
    let end = match generation.end {
        End::Token(_) => IxcEnd::Token,
        End::StopString(_) => IxcEnd::Stop,
        End::Grammar => IxcEnd::Grammar,
        End::Limit => IxcEnd::Limit,
        End::Context => IxcEnd::Context,
        End::Stopped if is_stopped => IxcEnd::Callback,
        End::Stopped => IxcEnd::Cancelled,
    };
    let stats = IxcStats {
        size: size_of::<IxcStats>(),
        prompt_tokens: prompt.len(),
        computed_tokens: generation.prefill.tokens,
        generated_tokens: generation.tokens.len(),
        prompt_seconds: generation.prefill.seconds,
        generation_seconds: generation.decode.seconds,
    };
    Ok(Generated { answer, tokens: generation.tokens, end, stats })
}

/// Generates a text after the tokens of a prompt.
///
/// # Safety
/// `model` is null or open; `prompt` has `count` tokens; `options` is null or valid, and so is all
/// that it points to. `generation` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generate(
    model: *const IxcModel,
    prompt: *const u32,
    count: usize,
    options: *const IxcGenerateOptions,
    generation: *mut *mut IxcGeneration,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let place = unsafe { HandlePlace::new("generation", generation) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let prompt = unsafe { slice("prompt", prompt, Some(count)) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let options = unsafe { GenerateOptions::read(options, model) }?;
        let generated = generate(model, &mut *model.lock()?, prompt, &options, None)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.give(generated.into()) };
        Ok(())
    })
}

/// Frees a generation.
///
/// # Safety
/// `generation` is null, or came from a function that generates and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_free(generation: *mut IxcGeneration) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(generation) };
}

/// Returns a text of a generation, and writes its length unless `bytes` is null.
///
/// # Safety
/// `generation` is null or was not freed; `bytes` is null or has room for a number.
unsafe fn text_of(
    generation: *const IxcGeneration,
    bytes: *mut usize,
    text: fn(&IxcGeneration) -> &TerminatedText,
) -> *const c_char {
    catch_failure(std::ptr::null(), || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let text = text(not_null("generation", unsafe { generation.as_ref() })?);
        if !bytes.is_null() {
            // SAFETY: the caller meets the conditions of `# Safety`.
            unsafe { bytes.write_unaligned(text.len()) };
        }
        Ok(text.0.as_ptr().cast())
    })
}

/// Returns the text of a generation, without reasoning and calls.
///
/// # Safety
/// `generation` is null or was not freed; `bytes` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_text(generation: *const IxcGeneration, bytes: *mut usize) -> *const c_char {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { text_of(generation, bytes, |generation| &generation.content) }
}

/// Returns the reasoning of a generation.
///
/// # Safety
/// See [`ixc_generation_text`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_reasoning(
    generation: *const IxcGeneration,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { text_of(generation, bytes, |generation| &generation.reasoning) }
}

/// Returns the tokens of a generation, and writes their number unless `count` is null.
///
/// # Safety
/// See [`ixc_generation_text`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_tokens(generation: *const IxcGeneration, count: *mut usize) -> *const u32 {
    catch_failure(std::ptr::null(), || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcGeneration { tokens, .. } = not_null("generation", unsafe { generation.as_ref() })?;
        if !count.is_null() {
            // SAFETY: the caller meets the conditions of `# Safety`.
            unsafe { count.write_unaligned(tokens.len()) };
        }
        Ok(tokens.as_ptr())
    })
}

/// Returns the reason of a generation's end, or -1.
///
/// # Safety
/// `generation` is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_end(generation: *const IxcGeneration) -> c_int {
    catch_failure(-1, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        Ok(not_null("generation", unsafe { generation.as_ref() })?.end as c_int)
    })
}

/// Writes counts and times of a generation.
///
/// # Safety
/// `generation` is null or was not freed; `stats` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_stats(generation: *const IxcGeneration, stats: *mut IxcStats) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let generation = not_null("generation", unsafe { generation.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { write_sized("stats", stats, &generation.stats) }
    })
}

/// Returns the number of tool calls.
///
/// # Safety
/// `generation` is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_call_count(generation: *const IxcGeneration) -> usize {
    catch_failure(0, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        Ok(not_null("generation", unsafe { generation.as_ref() })?.calls.len())
    })
}

/// Writes a tool call.
///
/// # Safety
/// `generation` is null or was not freed; `call` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_generation_call(
    generation: *const IxcGeneration,
    number: usize,
    call: *mut IxcCall,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcGeneration { calls, .. } = not_null("generation", unsafe { generation.as_ref() })?;
        let found = calls.get(number).ok_or_else(|| {
            Failure::usage(format!(
                "there is no tool call {number}; the number of tool calls in the answer is {}",
                calls.len()
            ))
        })?;
        let found = IxcCall {
            size: size_of::<IxcCall>(),
            id: found.id.as_ptr(),
            name: found.name.as_ptr(),
            arguments: found.arguments.as_ptr(),
        };
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { write_sized("call", call, &found) }
    })
}

#[cfg(test)]
mod tests {
    use ixc::text::chat::format_of;

    use super::*;

    #[test]
    fn end_of_a_begun_call_is_that_of_all_interfaces() {
        let options = GenerateOptions {
            settings: Arc::default(),
            limit: None,
            stop: Arc::from([]),
            source: None,
            on_text: None,
            user: std::ptr::null_mut(),
            cancel: IxcCancel::default(),
            flags: 0,
        };
        let parser = || Some(Parser::new(format_of("<tool_call>"), ""));
        for end in [End::Token(2), End::StopString("x".into()), End::Grammar, End::Limit, End::Context, End::Stopped] {
            let (mut text, mut expected) = (AnswerText::new(parser()), Answer::default());
            let mut assembler = Assembler::new(&options, AnswerText::new(parser()));
            for piece in ["Wait. ", "<tool_call>{\"na"] {
                expected.extend(text.push(piece));
                assembler.push(piece, 0);
            }
            expected.extend(text.end(&end));
            assert_eq!(assembler.finish(0, &end), expected, "{end:?}");
        }
    }
}
