//! What every request sees: the model, and how it is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ixc_frontend::template::Conversation;
use ixc_grammar::Matcher;
use tokio::sync::watch;

use crate::error::HttpError;
use crate::model::{Constraint, Model, Prompt, Refusal};

/// How it serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys, one of which every request must have; none where anybody may ask.
    pub keys: Vec<String>,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long the head of a request may take.
    pub head: Duration,
    /// How long its body may take.
    pub body: Duration,
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// How long an answer may wait for its client to read on.
    pub write_stall: Duration,
    /// How long answers that are being made may go on after the end was asked for.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Options {
        let seconds = Duration::from_secs;
        Options {
            keys: Vec::new(),
            connections: 512,
            head: seconds(10),
            body: seconds(30),
            body_bytes: 32 << 20,
            write_stall: seconds(30),
            drain: seconds(30),
        }
    }
}

/// What every request sees.
pub(crate) struct App<M> {
    pub(crate) model: Arc<M>,
    pub(crate) options: Options,
    ending: watch::Receiver<bool>,
    /// Answers so far, and what tells those of one server from another's.
    count: AtomicU64,
    started: u64,
}

impl<M> App<M> {
    pub(crate) fn new(model: Arc<M>, options: Options, ending: watch::Receiver<bool>) -> App<M> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        App { model, options, ending, count: AtomicU64::new(0), started }
    }

    /// A name for an answer that no other has.
    pub(crate) fn next_id(&self) -> String {
        format!("{:x}-{}", self.started, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }
}

impl<M: Model> App<M> {
    /// A conversation as a prompt. That may start a process, so threads of connections do not do it.
    pub(crate) async fn prompt(&self, conversation: Conversation) -> Result<Prompt, HttpError> {
        Ok(self.blocking(move |model| model.prompt(&conversation)).await??)
    }

    /// A conversation as a prompt, and what the answer must be.
    pub(crate) async fn constrained_prompt(
        &self,
        conversation: Conversation,
        constraint: Option<Constraint>,
    ) -> Result<(Prompt, Option<Matcher>), HttpError> {
        let both = move |model: &M| -> Result<_, Refusal> {
            let prompt = model.prompt(&conversation)?;
            let grammar = constraint.map(|constraint| model.constrain(&constraint, Some(&prompt))).transpose()?;
            Ok((prompt, grammar))
        };
        Ok(self.blocking(both).await??)
    }

    /// What a text must be.
    pub(crate) async fn constrain(&self, constraint: Option<Constraint>) -> Result<Option<Matcher>, HttpError> {
        let Some(constraint) = constraint else { return Ok(None) };
        Ok(Some(self.blocking(move |model| model.constrain(&constraint, None)).await??))
    }

    /// What takes long, on a thread that nobody waits for.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&M) -> T + Send + 'static) -> Result<T, HttpError> {
        let model = self.model.clone();
        let done = tokio::task::spawn_blocking(move || work(&model)).await;
        done.map_err(|error| HttpError::failed(error.to_string()))
    }
}

/// The time, in seconds since 1970.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
