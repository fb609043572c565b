//! A transport between processes that works with any [`Link`].
//!
//! Messages have headers, which are checked, and long messages are divided into frames. While this
//! rank computes or waits for hours for a request, a separate thread sends heartbeats. This thread
//! also receives the messages of open exchanges, because MPI transfers long messages only while a
//! process calls it.

use std::fmt;
use std::sync::TryLockError;
use std::time::Duration;

use crate::control::Control;
use crate::frames::{OpenExchange, Pending, State};
use crate::link::Link;
use crate::membership::{Membership, SILENCE, SUSPENDED};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Instant, Mutex, MutexGuard, Once, PoisonError};
use crate::{FINISHED, Incoming, Outgoing, Receipt, Transport, TransportError, check_peers, last_words};

/// Time between two updates of the membership.
const UPDATE: Duration = Duration::from_millis(50);
/// Time limit for sending the end of the group to the other ranks.
const FAREWELL: Duration = Duration::from_millis(300);
/// Time for which a rank with a failure waits for rank 0 to report it. After this time, the rank
/// reports the failure itself.
const CONFIRMATION: Duration = Duration::from_secs(2);
/// Time after which a failure of another rank has certainly been reported, even on a busy machine.
/// It includes the farewell, the confirmation, and the waiting times for the link before and
/// between them.
pub const REPORTED: Duration =
    FAREWELL.saturating_mul(3).saturating_add(CONFIRMATION).saturating_add(Duration::from_secs(1));
/// Time for which a failed rank waits for each lower rank to end the group first. With many ranks,
/// this time is shorter.
const PRECEDENCE: Duration = Duration::from_millis(300);
/// Max time for which a failed rank waits for all lower ranks together.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of rounds in which a waiting rank keeps its processor, because messages within a machine
/// take microseconds.
const SPINS: u32 = 200;
/// Number of rounds after which a waiting rank sleeps. Until then, it yields its processor to other
/// ranks.
const YIELDS: u32 = 20_000;
/// Time for which a waiting rank sleeps in each round after [`YIELDS`], for example between
/// requests.
const NAP: Duration = Duration::from_micros(200);
/// Time for which a rank that has waited for seconds sleeps in each round.
const SLEEP: Duration = Duration::from_millis(1);
/// Number of rounds until the sleep becomes [`SLEEP`] instead of [`NAP`].
const NAPS: u32 = YIELDS + 10_000;

/// Function that is called with a failure, on any thread. It must not use the transport.
pub type FailureFunction = Box<dyn Fn(&TransportError) + Send + Sync>;

/// Functions that handle a failure of another rank or of the link. They may be called even while no
/// exchange waits.
pub struct FailureHandler {
    /// Reports a failure that no other rank reports. Rank 0 reports the failures of all ranks.
    /// Another rank reports a failure only if rank 0 does not answer. If a rank has called
    /// [`Transport::end`], the failure is [`TransportError::Ended`] by that rank.
    pub report: FailureFunction,
    /// Reacts to any failure, after the other ranks have been informed. If another rank has
    /// reported the loss of a rank, the failure is [`TransportError::Silent`].
    pub react: FailureFunction,
}

/// Data that the threads of one rank share.
struct Shared<L> {
    rank: u32,
    state: Mutex<State<L>>,
    /// Time at which the link last answered, in milliseconds since `begin`.
    answered: AtomicU64,
    /// Time of the last update of the membership, in milliseconds since `begin`.
    updated: AtomicU64,
    begin: Instant,
    /// Whether the heartbeat thread must end.
    stops: AtomicBool,
    handler: FailureHandler,
    /// The only failure of the group that is handled. Other threads wait until its handler has
    /// returned. So a handler can end the process before these threads report the same failure.
    failure: Once,
    /// Whether any rank has reported the failure to the user.
    is_reported: AtomicBool,
}

/// A rank in a group of processes that are connected by links.
pub struct LinkedTransport<L: Link + 'static> {
    rank: u32,
    ranks: u32,
    shared: Arc<Shared<L>>,
    heartbeats: Mutex<Option<JoinHandle<()>>>,
    /// Whether this rank has ended the group or one of its exchanges has failed.
    has_failed: AtomicBool,
}

impl<L: Link> fmt::Debug for LinkedTransport<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkedTransport").field("rank", &self.rank).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

impl<L: Link> Shared<L> {
    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the link has answered, and updates the membership if an update is due.
    fn update(&self, state: &mut State<L>, now: Instant) {
        let (now_ms, period) = (self.milliseconds(now), UPDATE.as_millis() as u64);
        self.answered.store(now_ms, Ordering::Relaxed);
        if now_ms >= self.updated.load(Ordering::Relaxed) + period {
            state.membership.update(&mut state.link, now);
            self.updated.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Informs the other ranks and the handler about a failure. Only the first call has an effect.
    fn fail(&self, error: &TransportError) {
        self.failure.call_once(|| {
            // From now on, only this thread reads messages about the end of the group.
            if let Some(mut state) = self.lock_soon() {
                state.membership.set_end(error.clone());
            }
            match error {
                TransportError::Ended { reason, .. } if self.must_report() => {
                    (self.handler.report)(error);
                    self.say_farewell(&Control::End(reason.clone()));
                }
                // Another rank has ended the group, and so the other ranks know about the end.
                TransportError::Ended { .. } => {}
                // The link hangs, so no message can be sent to the other ranks.
                TransportError::Stuck { .. } => (self.handler.report)(error),
                // Rank 0 is silent and cannot report its own silence.
                TransportError::Silent { peer: 0, .. } => {
                    (self.handler.report)(error);
                    self.say_farewell(&Control::End(error.to_string()));
                }
                TransportError::Peer { .. }
                | TransportError::Length { .. }
                | TransportError::Sequence { .. }
                | TransportError::Control { .. }
                | TransportError::Silent { .. }
                | TransportError::Link { .. } => self.report_once(error, &error.to_string()),
            }
            self.is_reported.store(true, Ordering::Relaxed);
            let loss = self.reported_loss(error);
            (self.handler.react)(loss.as_ref().unwrap_or(error));
        });
    }

    /// Returns the loss of a rank that another rank has reported. Both then react in the same way:
    /// that rank cannot end the processes of other machines if the link to them is cut.
    fn reported_loss(&self, error: &TransportError) -> Option<TransportError> {
        if !matches!(error, TransportError::Ended { .. }) {
            return None;
        }
        let loss = self.lock_soon()?.membership.reported_loss(self.rank, Instant::now())?;
        // The rank that reported it ends first.
        thread::sleep(FAREWELL);
        Some(loss)
    }

    /// Returns whether this is rank 0 and another rank has asked it to report the end of the group.
    fn must_report(&self) -> bool {
        self.rank == 0 && self.lock_soon().is_some_and(|state| state.membership.needs_report())
    }

    /// Informs the other ranks about a failure of this rank. Rank 0 reports it, so that several
    /// ranks with the same failure cause only one report.
    fn report_once(&self, error: &TransportError, reason: &str) {
        if self.rank == 0 {
            (self.handler.report)(error);
            self.say_farewell(&Control::End(reason.to_owned()));
            return;
        }
        self.say_farewell(&Control::Failure(reason.to_owned()));
        if !self.awaits_rank_0() {
            (self.handler.report)(error);
        }
    }

    /// Waits until rank 0 has reported the end of the group, but for a limited time. Returns
    /// whether it has.
    fn awaits_rank_0(&self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < CONFIRMATION {
            let Some(mut state) = self.lock_soon() else { return false };
            let State { link, membership, .. } = &mut *state;
            let now = Instant::now();
            if membership.has_rank_0_ended(link, now) {
                return true;
            }
            if !membership.is_near(0, now) {
                return false;
            }
            drop(state);
            thread::sleep(SLEEP);
        }
        false
    }

    /// Locks the state. Gives up if another thread keeps the lock for long, because the link may
    /// hang in that thread.
    fn lock_soon(&self) -> Option<MutexGuard<'_, State<L>>> {
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) => thread::sleep(NAP),
            }
        }
        None
    }

    /// Ends the group for a reason of this rank, unless the group has already ended. `is_reported`
    /// is whether the user already knows the reason.
    fn end(&self, reason: &str, is_reported: bool) {
        self.failure.call_once(|| {
            let error = TransportError::Ended { by: self.rank, reason: reason.to_owned() };
            if let Some(mut state) = self.lock_soon() {
                state.membership.set_end(error.clone());
            }
            if is_reported {
                self.say_farewell(&Control::End(reason.to_owned()));
            } else {
                self.report_once(&error, reason);
            }
            self.is_reported.store(true, Ordering::Relaxed);
        });
    }

    /// Sends the end of the group to the other ranks.
    fn say_farewell(&self, message: &Control) {
        // If the link cannot be used, the other ranks notice that this rank is silent.
        let Some(mut state) = self.lock_soon() else { return };
        let State { link, membership, .. } = &mut *state;
        // If the link fails now, the other ranks notice that this rank is silent.
        if membership.send(link, message).is_ok() {
            let begin = Instant::now();
            while begin.elapsed() < FAREWELL && matches!(link.has_sent_all(), Ok(false)) {
                thread::sleep(SLEEP);
            }
        }
    }

    /// Sends heartbeats and moves messages of open exchanges until the transport is closed.
    fn send_heartbeats(&self) {
        let mut before = Instant::now();
        let mut is_open = false;
        while !self.stops.load(Ordering::Relaxed) {
            thread::park_timeout(if is_open { NAP } else { UPDATE });
            let now = Instant::now();
            let pause = now.saturating_duration_since(before);
            before = now;
            let end = match self.state.try_lock() {
                Ok(mut state) => {
                    self.update(&mut state, now);
                    let moved = state.move_open(self.rank);
                    is_open = !state.open.is_empty();
                    moved.err().or_else(|| state.membership.end().cloned())
                }
                // Another thread has the lock. It is exchanging messages and updates the
                // membership, or the link hangs in it.
                Err(_) => self.hang(now, pause),
            };
            if let Some(error) = end {
                return self.fail(&error);
            }
        }
    }
}

impl<L> Shared<L> {
    /// Returns a failure if the link has not answered for a long time while a thread was using it.
    /// `pause` is the time since the last call of this function.
    fn hang(&self, now: Instant, pause: Duration) -> Option<TransportError> {
        let now_ms = self.milliseconds(now);
        // This process was suspended, so the link could not answer.
        if pause > SUSPENDED {
            self.answered.store(now_ms, Ordering::Relaxed);
        }
        let silence = now_ms.saturating_sub(self.answered.load(Ordering::Relaxed));
        let hangs = u128::from(silence) > SILENCE.as_millis();
        hangs.then_some(TransportError::Stuck { rank: self.rank, seconds: SILENCE.as_secs() })
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begin).as_millis()).unwrap_or(u64::MAX)
    }
}

impl<L: Link + 'static> LinkedTransport<L> {
    /// Makes a transport that uses `link`. The handler is called once, if another rank or the link
    /// fails.
    ///
    /// # Errors
    /// Fails if the system refuses to start the heartbeat thread.
    pub fn new(link: L, handler: FailureHandler) -> std::io::Result<LinkedTransport<L>> {
        let (rank, ranks, begin) = (link.rank(), link.ranks(), Instant::now());
        let membership = Membership::new(ranks, begin);
        let shared = Arc::new(Shared {
            rank,
            state: Mutex::new(State::new(link, membership)),
            answered: AtomicU64::new(0),
            updated: AtomicU64::new(0),
            begin,
            stops: AtomicBool::new(false),
            handler,
            failure: Once::new(),
            is_reported: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let heartbeats = thread::Builder::new().name("heartbeats".into()).spawn(move || of_thread.send_heartbeats())?;
        Ok(LinkedTransport {
            rank,
            ranks,
            shared,
            heartbeats: Mutex::new(Some(heartbeats)),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Locks the state for an exchange. Fails if this rank has failed before. Messages of a failed
    /// exchange may still arrive, and later exchanges must not receive them as their own.
    fn lock(&self) -> Result<MutexGuard<'_, State<L>>, TransportError> {
        let state = self.shared.lock();
        if !self.has_failed.load(Ordering::Relaxed) {
            return Ok(state);
        }
        let unknown = || TransportError::Ended { by: self.rank, reason: "an exchange failed".to_owned() };
        Err(state.membership.end().cloned().unwrap_or_else(unknown))
    }

    /// Ends the group after an exchange has failed.
    fn fail(&self, error: &TransportError) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.shared.fail(error);
    }

    /// Exchanges messages. See [`Transport::exchange`].
    fn exchange_checked(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError> {
        let state = self.send_all(outgoing)?;
        let mut pending = Pending::new(incoming.len());
        let received = self.wait_for(state, |state| {
            state.receive_open(self.rank)?;
            let before: Vec<u32> = state.open.iter().flat_map(OpenExchange::senders).collect();
            if !before.is_empty() {
                return Ok(before);
            }
            state.receive_all(self.rank, incoming, &mut pending)?;
            Ok(pending.senders(incoming.iter().map(|message| message.from)).collect())
        });
        received.map(drop)
    }

    /// Begins an exchange. See [`Transport::begin`].
    fn begin_checked(&self, outgoing: &[Outgoing<'_>], incoming: Vec<Receipt>) -> Result<(), TransportError> {
        let mut state = self.send_all(outgoing)?;
        if let Some(error) = state.membership.end() {
            return Err(error.clone());
        }
        state.open.push_back(OpenExchange::new(incoming));
        drop(state);
        self.wake_heartbeats();
        Ok(())
    }

    /// Finishes the oldest open exchange. See [`Transport::finish`].
    fn finish_checked(&self) -> Result<Vec<Receipt>, TransportError> {
        let mut state = self.wait_for(self.lock()?, |state| {
            state.receive_open(self.rank)?;
            Ok(state.open.front().map(OpenExchange::senders).unwrap_or_default())
        })?;
        Ok(state.open.pop_front().map(OpenExchange::into_messages).unwrap_or_default())
    }

    /// Sends messages and returns the locked state.
    fn send_all(&self, outgoing: &[Outgoing<'_>]) -> Result<MutexGuard<'_, State<L>>, TransportError> {
        let mut state = self.lock()?;
        for message in outgoing {
            state.send(message).map_err(|error| error.of_rank(self.rank))?;
        }
        Ok(state)
    }

    /// Waits until all messages have arrived. `receive` takes the messages that have arrived, and
    /// returns the senders of those that have not. Also waits until all messages have been sent. If
    /// later exchanges are open, it does not wait for that, and the heartbeat thread continues to
    /// send.
    fn wait_for<'s>(
        &'s self,
        mut state: MutexGuard<'s, State<L>>,
        mut receive: impl FnMut(&mut State<L>) -> Result<Vec<u32>, TransportError>,
    ) -> Result<MutexGuard<'s, State<L>>, TransportError> {
        let mut round = 0;
        loop {
            // Messages that were sent before the end of the group still arrive.
            let senders = receive(&mut state)?;
            if senders.is_empty()
                && (state.link.has_sent_all().map_err(|error| error.of_rank(self.rank))? || state.open.len() > 1)
            {
                return Ok(state);
            }
            let now = Instant::now();
            self.shared.update(&mut state, now);
            if let Some(error) = state.membership.end() {
                return Err(error.clone());
            }
            if let Some(by) = senders.into_iter().find(|from| state.membership.left_before(*from, now)) {
                return Err(TransportError::Ended { by, reason: FINISHED.to_owned() });
            }
            drop(state);
            wait(round);
            round = round.saturating_add(1);
            state = self.shared.lock();
        }
    }

    /// Wakes the heartbeat thread, which sleeps for long periods while no exchange is open.
    fn wake_heartbeats(&self) {
        let heartbeats = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
        heartbeats.iter().for_each(|heartbeats| heartbeats.thread().unpark());
    }

    /// Waits until a lower rank ends the group, but for a limited time. All ranks often fail for
    /// the same reason, such as a missing file. In that case, only the lowest rank reports it.
    fn end_of_lower_rank(&self) -> Option<TransportError> {
        let begin = Instant::now();
        let patience = patience(self.rank, self.ranks);
        while !self.shared.failure.is_completed() && begin.elapsed() < patience {
            let mut state = self.shared.lock_soon()?;
            self.shared.update(&mut state, Instant::now());
            if let Some(error) = state.membership.end() {
                return Some(error.clone());
            }
            drop(state);
            thread::sleep(SLEEP);
        }
        None
    }

    /// Leaves the group and waits until all other ranks leave it.
    fn leave(&self) -> Result<(), TransportError> {
        let mut state = self.shared.lock();
        let State { link, membership, .. } = &mut *state;
        membership.leave(link)?;
        let mut round = 0;
        loop {
            self.shared.update(&mut state, Instant::now());
            if let Some(error) = state.membership.end() {
                return Err(error.clone());
            }
            let has_sent_all = state.link.has_sent_all().map_err(|error| error.of_rank(self.rank))?;
            if has_sent_all && state.membership.all_left(self.rank) {
                return Ok(());
            }
            drop(state);
            wait(round);
            round = round.saturating_add(1);
            state = self.shared.lock();
        }
    }

    /// Ends the heartbeat thread.
    fn stop_heartbeats(&self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        self.wake_heartbeats();
        let thread = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A failure handler on the heartbeat thread may drop the transport. A thread cannot wait
        // for its own end.
        if let Some(thread) = thread.filter(|heartbeats| heartbeats.thread().id() != thread::current().id()) {
            // The thread has no result. If the handler panicked, the panic message was printed.
            let _ = thread.join();
        }
    }
}

/// Returns how long a rank waits for lower ranks to end the group first. Each rank waits for a
/// different time, so that one rank is always the first.
fn patience(rank: u32, ranks: u32) -> Duration {
    PRECEDENCE.min(PATIENCE / ranks.max(1)).saturating_mul(rank)
}

/// Waits before the link is checked again.
fn wait(round: u32) {
    match round {
        0..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => thread::yield_now(),
        YIELDS..NAPS => thread::sleep(NAP),
        NAPS.. => thread::sleep(SLEEP),
    }
}

impl<L: Link + 'static> Transport for LinkedTransport<L> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn exchange(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError> {
        check_peers(self, outgoing, incoming.iter().map(|message| message.from))?;
        self.exchange_checked(outgoing, incoming).inspect_err(|error| self.fail(error))
    }

    fn begin(&self, outgoing: &[Outgoing<'_>], incoming: Vec<Receipt>) -> Result<(), TransportError> {
        check_peers(self, outgoing, incoming.iter().map(|message| message.from))?;
        self.begin_checked(outgoing, incoming).inspect_err(|error| self.fail(error))
    }

    fn finish(&self) -> Result<Vec<Receipt>, TransportError> {
        self.finish_checked().inspect_err(|error| self.fail(error))
    }

    fn end(&self, reason: &str) {
        self.has_failed.store(true, Ordering::Relaxed);
        if let Some(error) = self.end_of_lower_rank() {
            return self.shared.fail(&error);
        }
        self.shared.end(reason, false);
    }

    fn is_end_reported(&self) -> bool {
        self.shared.is_reported.load(Ordering::Relaxed)
    }

    fn end_of_group(&self) -> Option<TransportError> {
        self.shared.lock().membership.end().cloned()
    }

    fn close(&self) -> Result<(), TransportError> {
        self.leave().inspect_err(|error| self.shared.fail(error))?;
        // From now on, the end of the group is not a failure.
        self.shared.failure.call_once(|| {});
        self.stop_heartbeats();
        self.shared.lock().link.close();
        Ok(())
    }
}

impl<L: Link + 'static> Drop for LinkedTransport<L> {
    fn drop(&mut self) {
        // If this thread panics, the panic message was printed.
        self.shared.end(last_words(), true);
        self.stop_heartbeats();
    }
}

#[cfg(test)]
mod tests;
