//! How fast a model runs: steps that are timed, of tokens that no text has.
//!
//! ```
//! use ixc::bench::Bench;
//! use ixc::session::{Session, SessionOptions};
//!
//! let mut bench = Bench::new(Session::open(None, &SessionOptions::default())?)?;
//! let (prefill, decode) = (bench.prefill(0, 32)?, bench.decode(0, 4)?);
//! assert_eq!((prefill.tokens, decode.tokens), (32, 4));
//! # Ok::<(), ixc::Error>(())
//! ```

use ixc_runtime::gauge::Activity;
use ixc_runtime::stats::Stats;

use crate::Error;
use crate::session::Session;
use crate::timing::{Meter, Phase};

/// A session that is measured.
#[derive(Debug)]
pub struct Bench {
    session: Session,
    /// Tokens that were timed.
    measured: usize,
}

impl Bench {
    /// Of a session, all of whose weights are packed first: no step that is timed does it.
    ///
    /// # Errors
    /// When a thread fails.
    pub fn new(mut session: Session) -> Result<Bench, Error> {
        session.engine.pack_weights()?;
        Ok(Bench { session, measured: 0 })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Where the time went since the last call.
    pub fn take_stats(&mut self) -> Stats {
        self.session.take_stats()
    }

    /// Times the prefill of `tokens` tokens behind `depth` others, which are computed before and do not count.
    ///
    /// # Errors
    /// When they do not fit into the context.
    pub fn prefill(&mut self, depth: usize, tokens: usize) -> Result<Phase, Error> {
        self.time(depth, tokens, Activity::Prompt, self.session.max_tokens())
    }

    /// Times the decode of `tokens` tokens, one after the other, behind `depth` others, which do not count.
    ///
    /// # Errors
    /// When they do not fit into the context.
    pub fn decode(&mut self, depth: usize, tokens: usize) -> Result<Phase, Error> {
        self.time(depth, tokens, Activity::Tokens, 1)
    }

    /// Times steps of so many tokens each.
    fn time(&mut self, depth: usize, tokens: usize, activity: Activity, step: usize) -> Result<Phase, Error> {
        let tokens = self.descend(depth, tokens)?;
        self.session.gauge.begin(activity, tokens.len() as u64);
        let meter = Meter::new(&self.session.engine);
        tokens.chunks(step).try_for_each(|part| self.session.feed(part))?;
        Ok(meter.phase(tokens.len(), &self.session.engine))
    }

    /// Brings `depth` tokens into the KV cache, those that are there already left as they are; the `tokens` that come next.
    fn descend(&mut self, depth: usize, tokens: usize) -> Result<Vec<u32>, Error> {
        let before = self.some_tokens(0, depth);
        // Other ones each time: experts that were streamed for the last ones are no help to these.
        let next = self.some_tokens(depth.saturating_add(self.measured), tokens);
        self.measured = self.measured.saturating_add(tokens);
        let session = &mut self.session;
        session.check(&[&before[..], &next].concat())?;
        let missing = &before[session.keep(&before)..];
        session.gauge.begin(Activity::Prompt, missing.len() as u64);
        missing.chunks(session.max_tokens()).try_for_each(|part| session.feed(part))?;
        Ok(next)
    }

    /// Tokens that differ from each other, so that routers choose as they do for text: `count` of a fixed sequence from `first` on.
    fn some_tokens(&self, first: usize, count: usize) -> Vec<u32> {
        // Knuth's multiplicative hash.
        let hash = |index: u64| index.wrapping_add(1).wrapping_mul(2_654_435_761) >> 7;
        let vocabulary = (self.session.vocabulary() as u64).max(1);
        (0..count as u64).map(|index| (hash(index.wrapping_add(first as u64)) % vocabulary) as u32).collect()
    }
}
