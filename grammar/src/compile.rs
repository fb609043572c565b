//! Compilation of grammars on a separate thread with a large stack. A panic of the thread becomes
//! an error. A thread that takes too long is abandoned.
//!
//! The compiler cannot be interrupted. After the time limit, or when the client has left, the
//! waiting thread returns an error. The compiling thread is then abandoned: it runs until it ends.
//! If [`MAX_ABANDONED`] threads are abandoned, further grammars are refused until one of these
//! ends.
//!
//! Invariant: a thread starts only while fewer than [`MAX_ABANDONED`] threads are abandoned. More
//! can be abandoned only if they were already running when the limit was reached.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::COMPILE_SECONDS;
use crate::{Canceller, GrammarError, Matcher, ThreadClock};

/// Stack size of the compiling thread. The compiler recurses as deep as the rules nest.
pub(crate) const STACK_BYTES: usize = 256 << 20;
/// Max number of abandoned threads that may still run.
const MAX_ABANDONED: usize = 4;
/// Period after which the waiting thread checks the time limit and the client.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// Compiler of grammars, which counts its abandoned threads.
#[derive(Debug, Default)]
pub(crate) struct Compiler {
    /// Number of abandoned threads that still run.
    abandoned_threads: Arc<AtomicUsize>,
}

/// State that the compiling thread and the waiting thread share.
#[derive(Default)]
struct SharedState {
    /// Whether the waiting thread has abandoned the compiling thread.
    is_abandoned: bool,
    /// Whether the compiling thread has ended.
    is_done: bool,
    /// Handle that stops the matcher's work, once a matcher exists.
    canceller: Option<Canceller>,
}

impl Compiler {
    /// Compiles a grammar, then accepts the tokens that the answer already has.
    ///
    /// # Errors
    /// If the grammar cannot be compiled or takes too long, the client has left, or too many
    /// abandoned threads run.
    pub fn compile(
        &self,
        compile: impl FnOnce() -> Result<Matcher, GrammarError> + Send + 'static,
        answer_tokens: &[u32],
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Matcher, GrammarError> {
        if self.abandoned_threads.load(Ordering::Relaxed) >= MAX_ABANDONED {
            return Err(GrammarError::Busy);
        }
        let failed = |message: &str| GrammarError::HelperFailed { message: message.to_owned() };
        let (send, compiled) = channel();
        let (tell_clock, clock) = channel();
        let (shared, abandoned_threads) =
            (Arc::new(Mutex::new(SharedState::default())), Arc::clone(&self.abandoned_threads));
        let (own, answer_tokens) = (
            EndGuard { shared: Arc::clone(&shared), abandoned_threads: Arc::clone(&abandoned_threads) },
            answer_tokens.to_vec(),
        );
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || {
            let _ = tell_clock.send(ThreadClock::of_current_thread());
            let _ = send.send(compile().and_then(|matcher| own.accept_all(matcher, &answer_tokens)));
            drop(own);
        });
        thread.map_err(|error| failed(&error.to_string()))?;
        let clock = clock.recv().map_err(|_| failed("the compiler panicked on this grammar"))?;
        let error = loop {
            match compiled.recv_timeout(POLL_PERIOD) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(failed("the compiler panicked on this grammar")),
                Err(RecvTimeoutError::Timeout) if !is_wanted() => break GrammarError::ClientGone,
                Err(RecvTimeoutError::Timeout) if clock.cpu_time().as_secs() >= COMPILE_SECONDS => {
                    break GrammarError::CompileTime;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if !shared.is_done {
            shared.is_abandoned = true;
            abandoned_threads.fetch_add(1, Ordering::Relaxed);
            shared.canceller.iter().for_each(Canceller::cancel);
        }
        Err(error)
    }
}

/// Guard that marks a thread as ended when it is dropped.
struct EndGuard {
    shared: Arc<Mutex<SharedState>>,
    abandoned_threads: Arc<AtomicUsize>,
}

impl EndGuard {
    /// Accepts the tokens that the answer already has.
    fn accept_all(&self, mut matcher: Matcher, answer_tokens: &[u32]) -> Result<Matcher, GrammarError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_abandoned {
            return Err(GrammarError::ClientGone);
        }
        shared.canceller = Some(matcher.canceller());
        drop(shared);
        for &token in answer_tokens {
            matcher.accept(token).map_err(|_| GrammarError::PrefixMismatch)?;
        }
        Ok(matcher)
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.is_done = true;
        if shared.is_abandoned {
            self.abandoned_threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
