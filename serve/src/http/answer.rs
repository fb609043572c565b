//! An answer in progress: its text split into deltas, and its end. Each interface has its own form
//! for deltas and ends.

use std::sync::Arc;
use std::time::Duration;

use ixc_generate::answer::AnswerText;
use ixc_generate::generator::{DraftCounts, End, Event, LogProbs, Request};
use ixc_text::chat::{Delta, Parser};
use ixc_text::template::Conversation;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use crate::http::app::RequestState;
use crate::http::client::{Client, wait_until};
use crate::http::error::HttpError;
use crate::http::request_log::{self, Record, Usage};
use crate::model::Constraint;
use crate::serving::Host;

/// Interval of messages that keep an idle stream open.
pub(crate) const PING: Duration = Duration::from_secs(15);

/// Part of an answer.
#[derive(Debug)]
pub(crate) enum AnswerPart {
    /// Deltas of the text.
    Deltas(Vec<Delta>),
    /// End of the answer.
    Ended(End),
}

/// Times of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnswerTimes {
    /// Time until the first token, waiting included.
    pub(crate) prompt: Duration,
    /// Time after the first token.
    pub(crate) generation: Duration,
}

/// Options for the answers to a conversation.
#[derive(Clone, Debug)]
pub(crate) struct AnswerOptions {
    /// Request whose tokens and grammar are still missing.
    pub(crate) request: Request,
    /// Whether the stop text is returned with the answer.
    pub(crate) includes_stop: bool,
    /// Whether the answer has at most one call.
    pub(crate) single_call: bool,
    /// Form of the answer.
    pub(crate) constraint: Option<Constraint>,
    /// Number of answers; each has its own seed.
    pub(crate) count: u32,
}

impl AnswerOptions {
    /// Creates the options of one answer of any form. Each interface then sets only the options
    /// that its requests have.
    pub(crate) fn new(request: Request) -> AnswerOptions {
        AnswerOptions { request, includes_stop: false, single_call: false, constraint: None, count: 1 }
    }
}

/// An answer that is being generated.
pub(crate) struct Answer {
    events: UnboundedReceiver<Event>,
    /// Splitter of the text.
    text: AnswerText,
    /// End of the answer, until the text before it was returned.
    end: Option<End>,
    /// Calls that may still begin.
    calls_left: usize,
    /// Whether a stop text is returned with the answer.
    includes_stop: bool,
    pub(crate) usage: Usage,
    drafts: DraftCounts,
    /// Times of the request, of the first token, and of the end.
    request_time: Instant,
    first_token_time: Option<Instant>,
    end_time: Option<Instant>,
    /// Probabilities of tokens whose text was not yet returned.
    log_probs: Vec<LogProbs>,
}

impl Answer {
    pub(crate) fn new(events: UnboundedReceiver<Event>, parser: Option<Parser>, prompt: usize) -> Answer {
        Answer {
            events,
            text: AnswerText::new(parser),
            end: None,
            calls_left: usize::MAX,
            includes_stop: false,
            usage: Usage { prompt, ..Usage::default() },
            drafts: DraftCounts::default(),
            request_time: Instant::now(),
            first_token_time: None,
            end_time: None,
            log_probs: Vec::new(),
        }
    }

    /// Begins the answers to a conversation.
    pub(crate) async fn to_conversation(
        app: &RequestState,
        conversation: Conversation,
        options: AnswerOptions,
    ) -> Result<Answers, HttpError> {
        let AnswerOptions { mut request, includes_stop, single_call, constraint, count } = options;
        check_answer_count(&app.model, 1, count)?;
        let (prompt, grammar) = app.constrained_prompt(conversation, constraint).await?;
        // The parser's markers are special tokens in some vocabularies, so their text must be
        // shown.
        request.show_special |= prompt.parser.is_some();
        (request.tokens, request.grammar) = (prompt.tokens, grammar);
        let mut answers = Answer::several(app, &[request], prompt.parser.as_ref(), count)?;
        for answer in &mut answers.list {
            answer.calls_left = if single_call { 1 } else { usize::MAX };
        }
        Ok(answers.including_stop(includes_stop))
    }

    /// Begins `count` answers, at least one, to each request. The answers to one request are
    /// consecutive.
    pub(crate) fn several(
        app: &RequestState,
        requests: &[Request],
        parser: Option<&Parser>,
        count: u32,
    ) -> Result<Answers, HttpError> {
        check_answer_count(&app.model, requests.len(), count)?;
        let count = count.max(1);
        let one = |request: &Request, number: u32| {
            let mut request = request.clone();
            request.seed_offset = number;
            let prompt = request.tokens.len();
            let (send, events) = unbounded_channel();
            app.model.start(request, send)?;
            let parser = parser.map(|parser| parser.clone().with_ids(format!("call_{}-", app.next_id())));
            Ok(Answer::new(events, parser, prompt))
        };
        let numbered = requests.iter().flat_map(|request| (0..count).map(move |number| (request, number)));
        let list =
            numbered.map(|(request, number)| one(request, number)).collect::<Result<Vec<Answer>, HttpError>>()?;
        Ok(Answers {
            ended: vec![false; list.len()],
            count: count as usize,
            list,
            record: request_log::current(),
            model: Arc::clone(&app.model),
            deadline: Client::current().deadline(),
            limit: app.options.request_timeout,
        })
    }

    /// Returns the next part; `None` after the end.
    pub(crate) async fn next(&mut self) -> Result<Option<AnswerPart>, HttpError> {
        loop {
            if let Some(end) = self.end.take() {
                return Ok(Some(AnswerPart::Ended(end)));
            }
            let deltas = match self.events.recv().await {
                None => return Ok(None),
                Some(Event::Begun { reused, .. }) => {
                    self.usage.cached = reused;
                    continue;
                }
                Some(Event::Token { text, log_probs, .. }) => {
                    self.usage.generated += 1;
                    self.first_token_time.get_or_insert_with(Instant::now);
                    self.log_probs.extend(log_probs);
                    self.text.push(&text)
                }
                Some(Event::Text(text)) => self.text.push(&text),
                Some(Event::Drafted(counts)) => {
                    self.drafts += counts;
                    continue;
                }
                Some(Event::Computed { .. } | Event::Shifted) => continue,
                Some(Event::Ended { end, .. }) => self.finish(end),
                Some(Event::Failed(error)) => return Err(error.into()),
            };
            let deltas = self.limit_calls(deltas);
            if !deltas.is_empty() {
                return Ok(Some(AnswerPart::Deltas(deltas)));
            }
        }
    }

    /// Records the end, and returns the text that was withheld.
    fn finish(&mut self, end: End) -> Vec<Delta> {
        self.end_time = Some(Instant::now());
        self.events.close();
        let mut deltas = match &end {
            End::StopString(text) if self.includes_stop => self.text.push(text),
            _ => Vec::new(),
        };
        deltas.extend(self.text.end(&end));
        self.end = Some(end);
        deltas
    }

    /// Removes a call beyond the limit, and everything after it. Such a call ends the answer and
    /// stops its generation.
    fn limit_calls(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let mut allowed = Vec::with_capacity(deltas.len());
        for delta in deltas {
            if matches!(delta, Delta::Call(_)) {
                let Some(left) = self.calls_left.checked_sub(1) else {
                    self.end_time.get_or_insert_with(Instant::now);
                    self.events.close();
                    self.end = Some(End::Stopped);
                    return allowed;
                };
                self.calls_left = left;
            }
            allowed.push(delta);
        }
        allowed
    }
}

/// Refuses more answers than the server can compute and queue. Call it before anything is copied
/// for each answer.
///
/// # Errors
/// The error names the field that requests too many answers.
pub(crate) fn check_answer_count(model: &Host, prompts: usize, count: u32) -> Result<(), HttpError> {
    let facts = model.facts();
    let (count, capacity) = (count.max(1), facts.parallel.saturating_add(facts.queue).max(1));
    if prompts.saturating_mul(count as usize) <= capacity {
        return Ok(());
    }
    let (name, what) = match prompts {
        1 => ("n", format!("n is {count}")),
        _ => ("prompt", format!("the request has {prompts} prompts and n is {count}")),
    };
    let wrong = format!("{what}, but the server accepts at most {capacity} answers at once");
    Err(HttpError::invalid(Some(name), wrong))
}

/// Answers in progress to the prompts of a request, the same number for each prompt.
pub(crate) struct Answers {
    list: Vec<Answer>,
    /// Number of answers to each prompt.
    count: usize,
    ended: Vec<bool>,
    /// The record of the request for the log.
    record: Option<Arc<Record>>,
    /// The model, which stays loaded while answers are generated.
    model: Arc<Host>,
    /// Time at which the answers must have ended, if the request has a time limit.
    deadline: Option<Instant>,
    /// The time limit of requests.
    limit: Option<Duration>,
}

impl Answers {
    /// Sets whether answers include the stop text.
    #[must_use]
    pub(crate) fn including_stop(mut self, includes_stop: bool) -> Answers {
        self.list.iter_mut().for_each(|answer| answer.includes_stop = includes_stop);
        self
    }

    /// Returns the model.
    pub(crate) fn model(&self) -> &Host {
        &self.model
    }

    /// Returns the next part with the number of its answer; `None` after the end of all answers.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<AnswerPart, HttpError>)> {
        let open: Vec<usize> = (0..self.list.len()).filter(|number| !self.ended[*number]).collect();
        if open.is_empty() {
            return None;
        }
        // Dropping the other futures is safe: each waits at a single point, before it takes an
        // event.
        let numbered = self.list.iter_mut().enumerate().filter(|(number, _)| open.contains(number));
        let next = futures_util::future::select_all(numbered.map(|(_, answer)| Box::pin(answer.next())));
        let next = wait_until(self.deadline, next).await;
        let (next, of, _) = next.unwrap_or_else(|| (Err(HttpError::late(self.limit)), 0, Vec::new()));
        let next = next.and_then(|next| next.ok_or_else(|| HttpError::server_error("the answer was not finished")));
        self.ended[open[of]] = !matches!(next, Ok(AnswerPart::Deltas(_)));
        if let (Err(error), Some(record)) = (&next, &self.record) {
            record.fail(error.message());
        }
        Some((open[of], next))
    }

    /// Returns the next part of the only answer.
    pub(crate) async fn next_of_one(&mut self) -> Result<Option<AnswerPart>, HttpError> {
        self.next().await.map(|(_, next)| next).transpose()
    }

    /// Returns the token probabilities of answer `number` that were not yet taken.
    pub(crate) fn take_log_probs(&mut self, number: usize) -> Vec<LogProbs> {
        self.list.get_mut(number).map(|answer| std::mem::take(&mut answer.log_probs)).unwrap_or_default()
    }

    /// Returns the times of an answer.
    pub(crate) fn times(&self, number: usize) -> AnswerTimes {
        let Some(answer) = self.list.get(number) else { return AnswerTimes::default() };
        let (begin, end) = (answer.request_time, answer.end_time.unwrap_or_else(Instant::now));
        match answer.first_token_time {
            Some(first) => AnswerTimes { prompt: first - begin, generation: end - first },
            None => AnswerTimes { prompt: end - begin, generation: Duration::ZERO },
        }
    }

    /// Returns the number of answers.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the counts of an answer's draft tokens.
    pub(crate) fn drafts(&self, number: usize) -> DraftCounts {
        self.list.get(number).map(|answer| answer.drafts).unwrap_or_default()
    }

    /// Returns the number of tokens of an answer and of its prompt.
    pub(crate) fn usage_of(&self, number: usize) -> Usage {
        self.list.get(number).map(|answer| answer.usage).unwrap_or_default()
    }

    /// Returns the number of tokens of all answers. The prompt of several answers counts once.
    pub(crate) fn usage(&self) -> Usage {
        let generated = self.list.iter().map(|answer| answer.usage.generated).sum();
        let prompts = self.list.chunks(self.count).filter_map(|answers| Some(answers.first()?.usage));
        prompts.fold(Usage { generated, ..Usage::default() }, |sum, usage| Usage {
            prompt: sum.prompt + usage.prompt,
            cached: sum.cached + usage.cached,
            ..sum
        })
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let Some(record) = &self.record else { return };
        let times = (0..self.list.len()).map(|number| self.times(number).generation);
        record.set_usage(self.usage(), times.max().unwrap_or_default());
    }
}
