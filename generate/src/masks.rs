//! Masks of a grammar, computed on another thread while the engine computes.
//!
//! ```text
//! engine's thread   draw a ── step of the others ── mask arrives: step, draw b ── …
//! thread "masks"           └─ accept a, next mask ─┘                         └─ accept b, …
//! ```
//!
//! A mask of a usual grammar takes tens of microseconds. A mask of an ambiguous grammar may never
//! finish. So the thread's CPU time is counted, and a request that exceeds its [`Budget`] fails.
//! Other requests continue.
//!
//! Invariant: the allowed tokens do not depend on when masks arrive.
//!
//! Invariant: the thread ends soon after its [`Masks`] are dropped.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ixc_grammar::{Canceller, GrammarError, Matcher, ThreadClock};

/// Stack of a mask thread. It must be large, since grammars nest.
const STACK_BYTES: usize = 64 << 20;
/// Period of checks whether a late mask has exceeded its budget.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Max CPU time for masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// CPU time for all masks of a text, before time is added for tokens.
    pub text: Duration,
    /// CPU time added for each token.
    pub token: Duration,
}

impl Budget {
    /// Default budget. Masks of a usual grammar take a hundredth of it.
    pub const DEFAULT: Budget = Budget { text: Duration::from_secs(10), token: Duration::from_millis(20) };

    fn for_tokens(self, tokens: u32) -> Duration {
        self.text.saturating_add(self.token.saturating_mul(tokens))
    }

    fn error(self) -> GrammarError {
        GrammarError::MaskTime { seconds: self.text.as_secs(), milliseconds: self.token.as_millis() as u64 }
    }
}

/// A bell that rings when a mask arrives, for a thread that waits for several masks.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    has_rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until [`Bell::ring`] was called since the last wait, but at most for `most`.
    pub fn wait(&self, most: Duration) {
        let has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(has_rung, most, |has_rung| !*has_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Message from the mask thread.
enum Message {
    /// The matcher accepted the token, or the text begins. `is_ended` tells whether the text is
    /// complete.
    Accepted {
        is_ended: bool,
    },
    Mask(Vec<u32>),
    Failed(GrammarError),
}

/// State of the next token's mask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The matcher is accepting the last token.
    Accepting,
    /// The matcher accepted the token, and the mask is being computed.
    Making,
    /// The mask is ready.
    Ready,
    /// The text is complete, and no token can follow.
    Ended,
}

/// Masks of one text's grammar, computed by a thread.
#[derive(Debug)]
pub(crate) struct Masks {
    tokens: Sender<u32>,
    messages: Receiver<Message>,
    bell: Arc<Bell>,
    canceller: Canceller,
    clock: Arc<Mutex<Option<ThreadClock>>>,
    budget: Budget,
    /// Number of tokens sent to the thread.
    sent: u32,
    /// Time of the last budget check.
    last_check: Instant,
    progress: Progress,
    mask: Vec<u32>,
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}

impl Masks {
    /// Starts the thread, which computes the first mask.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn follow(mut matcher: Matcher, budget: Budget, bell: &Arc<Bell>) -> std::io::Result<Masks> {
        let canceller = matcher.canceller();
        let ((tokens, accepted_tokens), (sender, messages)) = (channel(), channel());
        let clock = Arc::new(Mutex::new(None));
        let (ring, own_clock) = (Arc::clone(bell), Arc::clone(&clock));
        let thread = std::thread::Builder::new().name("masks".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            *own_clock.lock().unwrap_or_else(PoisonError::into_inner) = Some(ThreadClock::of_current_thread());
            // Rings on a panic, too: the waiting thread then finds the channel closed.
            let bell = RingOnDrop(ring);
            make(&mut matcher, &accepted_tokens, &sender, &bell.0);
            drop(sender);
        })?;
        Ok(Masks {
            tokens,
            messages,
            bell: Arc::clone(bell),
            canceller,
            clock,
            budget,
            sent: 0,
            last_check: Instant::now(),
            progress: Progress::Accepting,
            mask: Vec::new(),
        })
    }

    /// Receives the messages of the mask thread, and returns the state of the mask.
    ///
    /// # Errors
    /// When the grammar does not allow the last token, no token can follow it, or masks exceeded
    /// their budget.
    pub fn progress(&mut self) -> Result<&Progress, GrammarError> {
        loop {
            match self.messages.try_recv() {
                Ok(Message::Accepted { is_ended }) => {
                    self.progress = if is_ended { Progress::Ended } else { Progress::Making };
                }
                Ok(Message::Mask(mask)) => (self.mask, self.progress) = (mask, Progress::Ready),
                Ok(Message::Failed(error)) => return Err(error),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if self.is_pending() => {
                    return Err(GrammarError::AnswerMismatch { message: "the matcher of the grammar failed".into() });
                }
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if self.is_pending() && self.last_check.elapsed() >= CHECK_INTERVAL {
            self.last_check = Instant::now();
            let clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
            if clock.as_ref().is_some_and(|clock| clock.cpu_time() > self.budget.for_tokens(self.sent)) {
                self.canceller.cancel();
                return Err(self.budget.error());
            }
        }
        Ok(&self.progress)
    }

    /// Waits until the mask is ready or the text is complete, for at most `most`. Returns false on
    /// a timeout.
    ///
    /// # Errors
    /// See [`Masks::progress`].
    pub fn wait(&mut self, most: Duration) -> Result<bool, GrammarError> {
        let begin = Instant::now();
        while matches!(self.progress()?, Progress::Accepting | Progress::Making) {
            let Some(left) = most.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else { return Ok(false) };
            self.bell.wait(left.min(CHECK_INTERVAL));
        }
        Ok(true)
    }

    /// Waits until the matcher has accepted the last token. Returns whether the text is complete.
    ///
    /// # Errors
    /// See [`Masks::progress`].
    pub fn is_ended(&mut self) -> Result<bool, GrammarError> {
        while *self.progress()? == Progress::Accepting {
            self.bell.wait(CHECK_INTERVAL);
        }
        Ok(self.progress == Progress::Ended)
    }

    /// Waits for the mask. Returns `None` if the text is complete.
    ///
    /// # Errors
    /// See [`Masks::progress`].
    pub fn wait_for_mask(&mut self) -> Result<&[u32], GrammarError> {
        while !self.wait(Duration::MAX)? {}
        Ok(if self.progress == Progress::Ready { &self.mask } else { &[] })
    }

    /// Returns the mask, if it is ready.
    pub fn mask(&self) -> Option<&[u32]> {
        (self.progress == Progress::Ready).then_some(&self.mask)
    }

    /// Sends a token of the mask to the thread.
    pub fn accept(&mut self, token: u32) {
        // If the thread has ended, a later call of `progress` reports the error.
        let _ = self.tokens.send(token);
        (self.sent, self.progress) = (self.sent.saturating_add(1), Progress::Accepting);
        self.last_check = Instant::now();
    }

    /// Returns whether a message from the thread is still expected.
    pub fn is_pending(&self) -> bool {
        matches!(self.progress, Progress::Accepting | Progress::Making)
    }
}

/// Guard that rings the bell when the thread ends, also after a panic.
struct RingOnDrop(Arc<Bell>);

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Computes the first mask, and a mask after each token.
fn make(matcher: &mut Matcher, tokens: &Receiver<u32>, messages: &Sender<Message>, bell: &Bell) {
    let mut next = None;
    loop {
        let accepted = next.map_or(Ok(()), |token| matcher.accept(token));
        let is_ended = matcher.is_ended();
        let result = match accepted {
            Err(error) => messages.send(Message::Failed(error)),
            Ok(()) => messages.send(Message::Accepted { is_ended }).and_then(|()| {
                if is_ended {
                    return Ok(());
                }
                // Ring before the mask is computed, because a caller may wait only to learn whether
                // the text is complete.
                bell.ring();
                match matcher.token_mask() {
                    Ok(mask) => messages.send(Message::Mask(mask.to_vec())),
                    Err(error) => messages.send(Message::Failed(error)),
                }
            }),
        };
        bell.ring();
        match tokens.recv() {
            Ok(token) if result.is_ok() => next = Some(token),
            _ => return,
        }
    }
}
