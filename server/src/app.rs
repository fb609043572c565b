//! What every request sees: the model, and how it is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ixc_frontend::template::Conversation;
use ixc_grammar::Matcher;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::error::HttpError;
use crate::model::{Constraint, Model, Prompt, Refusal};

/// Bodies up to so many bytes wait for no others: of as many as there are connections all fit.
pub(crate) const SMALL_BODY: u64 = 64 << 10;
/// Conversations that become prompts at once: each takes a process, and the memory of one.
const PROMPTS_AT_ONCE: usize = 4;

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
    /// Most bytes of all bodies at once that are larger than [`SMALL_BODY`], each until its answer begins.
    pub bodies_bytes: usize,
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
            bodies_bytes: 256 << 20,
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
    /// Bytes that large bodies may still have.
    bodies: Semaphore,
    /// Prompts that may still be made at once.
    prompts: Arc<Semaphore>,
    /// Answers so far, and what tells those of one server from another's.
    count: AtomicU64,
    started: u64,
}

impl<M> App<M> {
    pub(crate) fn new(model: Arc<M>, options: Options, ending: watch::Receiver<bool>) -> App<M> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let (bodies, prompts) = (Semaphore::new(options.bodies_bytes), Arc::new(Semaphore::new(PROMPTS_AT_ONCE)));
        App { model, options, ending, bodies, prompts, count: AtomicU64::new(0), started }
    }

    /// A name for an answer that no other has.
    pub(crate) fn next_id(&self) -> String {
        format!("{:x}-{}", self.started, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Room for a body of at most so many bytes, or of as many as a body may have; `None` where it does not come in time.
    pub(crate) async fn room(&self, bytes: Option<u64>) -> Option<SemaphorePermit<'_>> {
        let Options { body, body_bytes, bodies_bytes, .. } = self.options;
        let most = body_bytes.min(bodies_bytes) as u64;
        let bytes = bytes.map_or(most, |bytes| counted(bytes).min(most));
        let room = self.bodies.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX));
        tokio::time::timeout(body, room).await.ok()?.ok()
    }

    /// Gives back what a body does not take of its room, which is much where it did not say how long it is.
    pub(crate) fn shrink(room: &mut SemaphorePermit<'_>, bytes: usize) {
        let excess = room.num_permits().saturating_sub(counted(bytes as u64) as usize);
        drop(room.split(excess));
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }
}

impl<M: Model> App<M> {
    /// A conversation as a prompt. That may start a process, so threads of connections do not do it.
    pub(crate) async fn prompt(&self, conversation: Conversation) -> Result<Prompt, HttpError> {
        Ok(self.in_turn(move |model| model.prompt(&conversation)).await??)
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
        Ok(self.in_turn(both).await??)
    }

    /// What a text must be.
    pub(crate) async fn constrain(&self, constraint: Option<Constraint>) -> Result<Option<Matcher>, HttpError> {
        let Some(constraint) = constraint else { return Ok(None) };
        Ok(Some(self.blocking(move |model| model.constrain(&constraint, None)).await??))
    }

    /// What makes a prompt of a conversation, when few others are made. It goes on to its end, also where the client goes away.
    async fn in_turn<T: Send + 'static>(&self, work: impl FnOnce(&M) -> T + Send + 'static) -> Result<T, HttpError> {
        let turn = self.prompts.clone().acquire_owned().await;
        let turn = turn.map_err(|error| HttpError::failed(error.to_string()))?;
        self.blocking(move |model| {
            let _turn = turn;
            work(model)
        })
        .await
    }

    /// What takes long, on a thread that nobody waits for.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&M) -> T + Send + 'static) -> Result<T, HttpError> {
        let model = self.model.clone();
        let done = tokio::task::spawn_blocking(move || work(&model)).await;
        done.map_err(|error| HttpError::failed(error.to_string()))
    }
}

/// The bytes of a body for which there must be room.
fn counted(bytes: u64) -> u64 {
    if bytes > SMALL_BODY { bytes } else { 0 }
}

/// The time, in seconds since 1970.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        EmbeddingRequest, Embeddings, Event, ExpertsAction, Facts, Refusal, Request, SlotAction, SlotDone, Status,
    };
    use serde_json::Value;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::sync::mpsc::UnboundedSender;
    use tokio::sync::oneshot;

    /// Tells of every prompt that it begins, and ends it when it is told to.
    struct Slow {
        begun: Sender<()>,
        end: Mutex<Receiver<()>>,
    }

    impl Model for Slow {
        fn facts(&self) -> &Facts {
            unreachable!()
        }

        fn encode(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>, Refusal> {
            unreachable!()
        }

        fn decode(&self, _: &[u32]) -> Result<String, Refusal> {
            unreachable!()
        }

        fn prompt(&self, _: &Conversation) -> Result<Prompt, Refusal> {
            self.begun.send(()).unwrap();
            self.end.lock().unwrap().recv().unwrap();
            Ok(Prompt { tokens: vec![1], text: String::new(), parser: None })
        }

        fn constrain(&self, _: &Constraint, _: Option<&Prompt>) -> Result<Matcher, Refusal> {
            unreachable!()
        }

        fn breakers(&self, _: Option<&[String]>) -> Result<Vec<(u32, Vec<u32>)>, Refusal> {
            unreachable!()
        }

        fn start(&self, _: Request, _: UnboundedSender<Event>) -> Result<(), Refusal> {
            unreachable!()
        }

        fn slot(&self, _: usize, _: SlotAction, _: oneshot::Sender<Result<SlotDone, Refusal>>) -> Result<(), Refusal> {
            unreachable!()
        }

        fn embed(&self, _: EmbeddingRequest, _: oneshot::Sender<Result<Embeddings, Refusal>>) -> Result<(), Refusal> {
            unreachable!()
        }

        fn experts(&self, _: ExpertsAction, _: oneshot::Sender<Result<Value, Refusal>>) -> Result<(), Refusal> {
            unreachable!()
        }

        fn status(&self) -> Status {
            unreachable!()
        }
    }

    fn slow(options: Options) -> (Arc<App<Slow>>, Receiver<()>, Sender<()>) {
        let ((begun, begins), (end, ends)) = (channel(), channel());
        let model = Arc::new(Slow { begun, end: Mutex::new(ends) });
        (Arc::new(App::new(model, options, watch::channel(false).1)), begins, end)
    }

    /// Also those whose clients are gone count: their processes run on.
    #[tokio::test]
    async fn few_prompts_are_made_at_once() {
        let (app, begins, end) = slow(Options::default());
        let ask = || {
            let app = app.clone();
            tokio::spawn(async move { app.prompt(Conversation::default()).await.map(|prompt| prompt.tokens) })
        };
        let asked: Vec<_> = (0..2 * PROMPTS_AT_ONCE).map(|_| ask()).collect();
        let (gone, stay) = asked.split_at(PROMPTS_AT_ONCE);
        while app.prompts.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for one in gone {
            one.abort();
        }
        for _ in 0..PROMPTS_AT_ONCE {
            begins.recv().unwrap();
        }
        tokio::task::yield_now().await;
        assert!(app.prompts.available_permits() == 0 && begins.try_recv().is_err());
        (0..2 * PROMPTS_AT_ONCE).for_each(|_| end.send(()).unwrap());
        for one in stay {
            while !one.is_finished() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(begins.try_iter().count(), PROMPTS_AT_ONCE);
    }

    #[tokio::test]
    async fn large_bodies_share_a_room() {
        let body = Duration::from_millis(1);
        let (app, ..) = slow(Options { body_bytes: 1 << 20, bodies_bytes: 2 << 20, body, ..Options::default() });
        let (one, two) = (app.room(Some(1 << 20)).await, app.room(None).await);
        assert!(one.is_some() && two.is_some() && app.room(Some(SMALL_BODY + 1)).await.is_none());
        assert!(app.room(Some(SMALL_BODY)).await.is_some() && app.room(Some(0)).await.is_some());
        // Of what was taken as long as could be, the rest is free.
        let mut two = two.unwrap();
        App::<Slow>::shrink(&mut two, 1 << 19);
        let three = app.room(Some(1 << 19)).await;
        assert!(three.is_some() && app.room(Some(SMALL_BODY + 1)).await.is_none());
        App::<Slow>::shrink(&mut two, 100);
        assert!(app.room(Some(1 << 19)).await.is_some());
        drop((two, three));
        assert!(app.room(Some(u64::MAX)).await.is_some());
    }
}
