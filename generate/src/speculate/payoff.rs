//! Number of draft tokens, chosen by measurements so that the most tokens per second result.
//!
//! For `n` texts, a step has `n` rows plus `m` draft tokens, and takes `time(n + m)`. It gives one
//! token for each text, and the accepted draft tokens. The `j`-th token of a draft is accepted with
//! a probability of about `a^j`, where `a` is the recent acceptance rate of a text's next token. So
//! draft tokens are added in the order of their probability, and `m` is the number that maximises
//!
//! ```text
//! (n + sum of a^j) / (time(n + m) + time to guess)
//! ```
//!
//! With `m = 0` nothing is drafted. On a dense model `time` hardly grows with a few rows, because
//! weights are read once. In a mixture of experts each row may need other experts, and `time` grows
//! as fast as the rows.
//!
//! Unknown times are estimated from the nearest known ones, so that these numbers of rows are
//! tried. Measurements expire ([`MEMORY`]). A step without drafts is taken now and then
//! ([`REFRESH`]), and a text without drafts gets a short one now and then ([`FIRST_PATIENCE`]).
//!
//! If other processes use the CPU, some steps take many times as long. So a time counts as at most
//! twice the previous average. The time of `n` rows counts as at most `n` times that of one row.
//!
//! The number of draft tokens changes no token of the text.

use super::MAX_ROWS;

/// Weight of a new time in the moving average; the next constant applies if the new time is
/// shorter.
const TIME_SHARE: f64 = 1.0 / 8.0;
const SHORT_TIME_SHARE: f64 = 1.0 / 4.0;
/// A step that took longer than this multiple of the average was delayed by other processes.
const DELAY_FACTOR: f64 = 2.0;
/// Steps after which a time is forgotten.
const MEMORY: u64 = 256;
/// Weight of an accepted or rejected token in the acceptance rate.
const ACCEPTANCE_SHARE: f64 = 1.0 / 12.0;
/// Initial acceptance rate of a draft's next token.
const FIRST_ACCEPTANCE: f64 = 0.7;
/// Number of steps with drafts before one without.
const REFRESH: u32 = 64;
/// Number of tokens without a draft before a text gets one again. It doubles after each rejected
/// draft, up to [`LAST_PATIENCE`].
const FIRST_PATIENCE: u32 = 16;
const LAST_PATIENCE: u32 = 256;
/// Length of a trial draft, in tokens.
const TRIAL: usize = 3;

/// Acceptance of the drafts for a text.
#[derive(Clone, Copy, Debug)]
struct TextStats {
    /// Recent acceptance rate of the next token.
    acceptance: f64,
    /// Tokens since the last draft.
    idle: u32,
    /// Number of tokens to wait without a draft.
    patience: u32,
}

impl Default for TextStats {
    fn default() -> TextStats {
        TextStats { acceptance: FIRST_ACCEPTANCE, idle: 0, patience: FIRST_PATIENCE }
    }
}

/// Limit of a text's draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftLimit {
    pub(super) slot: usize,
    pub(super) max_tokens: usize,
}

/// Measured times and acceptance, from which the gain of drafts is predicted.
#[derive(Debug)]
pub(super) struct Payoff {
    /// Seconds of a step by rows, and the step of the last measurement.
    times: [Option<(f64, u64)>; MAX_ROWS + 1],
    /// Steps so far.
    steps: u64,
    /// Number of steps with drafts since the last step without drafts, by the number of texts.
    since: [u32; MAX_ROWS + 1],
    /// Average seconds of drafting, and average length of the longest draft.
    guesses: (f64, f64),
    texts: Vec<TextStats>,
}

impl Default for Payoff {
    fn default() -> Payoff {
        Payoff {
            times: [None; MAX_ROWS + 1],
            steps: 0,
            since: [REFRESH; MAX_ROWS + 1],
            guesses: (0.0, 1.0),
            texts: Vec::new(),
        }
    }
}

/// Returns a moving average.
fn average(before: f64, new: f64) -> f64 {
    before + TIME_SHARE * (new - before)
}

impl Payoff {
    fn text(&mut self, slot: usize) -> &mut TextStats {
        if slot >= self.texts.len() {
            self.texts.resize(slot + 1, TextStats::default());
        }
        &mut self.texts[slot]
    }

    /// Begins another text in a slot.
    pub(super) fn begin(&mut self, slot: usize) {
        *self.text(slot) = TextStats::default();
    }

    /// Records a token without a draft.
    pub(super) fn record_token(&mut self, slot: usize) {
        let text = self.text(slot);
        text.idle = text.idle.saturating_add(1);
    }

    /// Records that `accepted` of `drafted` draft tokens were accepted.
    pub(super) fn record_draft(&mut self, slot: usize, drafted: usize, accepted: usize) {
        let text = self.text(slot);
        for _ in 0..accepted {
            text.acceptance += ACCEPTANCE_SHARE * (1.0 - text.acceptance);
        }
        if accepted < drafted {
            text.acceptance -= ACCEPTANCE_SHARE * text.acceptance;
        }
        text.idle = 0;
        text.patience = if accepted > 0 { FIRST_PATIENCE } else { (text.patience * 2).min(LAST_PATIENCE) };
    }

    /// Records the time of drafting, and the length of the longest draft (0 for none).
    pub(super) fn record_drafting(&mut self, tokens: usize, seconds: f64) {
        let (seconds_before, tokens_before) = self.guesses;
        self.guesses = (average(seconds_before, seconds), average(tokens_before, tokens as f64));
    }

    /// Records the time of a step with `texts` texts and `rows` rows.
    pub(super) fn record_step(&mut self, texts: usize, rows: usize, seconds: f64) {
        self.steps += 1;
        if let Some(time) = self.times.get_mut(rows) {
            let known = time.filter(|(_, at)| self.steps - at <= MEMORY);
            let average = known.map_or(seconds, |(before, _)| {
                let share = if seconds < before { SHORT_TIME_SHARE } else { TIME_SHARE };
                before + share * (seconds.min(DELAY_FACTOR * before) - before)
            });
            *time = Some((average, self.steps));
        }
        if let Some(since) = self.since.get_mut(texts) {
            *since = if rows > texts { since.saturating_add(1) } else { 0 };
        }
    }

    /// Returns the estimated seconds of a step with `rows` rows: interpolated between measurements,
    /// constant outside of them, and 1 without any measurement.
    fn time(&self, rows: usize) -> f64 {
        let known = |at: usize| {
            let (time, measured) = (*self.times.get(at)?)?;
            (self.steps - measured <= MEMORY).then_some((at, time))
        };
        let least = (1..rows.min(MAX_ROWS)).find_map(known);
        let below = (0..=rows.min(MAX_ROWS)).rev().find_map(known);
        let above = (rows..=MAX_ROWS).find_map(known);
        let time = match (below, above) {
            (Some((low, before)), Some((high, behind))) if high > low => {
                before + (behind - before) * (rows - low) as f64 / (high - low) as f64
            }
            (Some((_, time)), _) | (None, Some((_, time))) => time,
            (None, None) => 1.0,
        };
        least.map_or(time, |(few, each)| time.min(each * rows.div_ceil(few) as f64))
    }

    /// Returns the number of draft tokens for each text, at most `room` in all. With `always`, uses
    /// all of the room.
    pub(super) fn counts(&mut self, texts: &[DraftLimit], room: usize, always: bool) -> Vec<usize> {
        let mut counts = vec![0; texts.len()];
        let stats: Vec<TextStats> = texts.iter().map(|text| *self.text(text.slot)).collect();
        // The likeliest token first; with `always`, all are equally likely.
        let rates: Vec<f64> = stats.iter().map(|text| if always { 1.0 } else { text.acceptance }).collect();
        let next = |counts: &[usize]| {
            let open = (0..texts.len()).filter(|&i| counts[i] < texts[i].max_tokens);
            let value = |i: usize| rates[i].powi(i32::try_from(counts[i] + 1).unwrap_or(i32::MAX));
            let better = |best: usize, i: usize| {
                let order = value(i).total_cmp(&value(best)).then(counts[best].cmp(&counts[i]));
                if order.is_gt() { i } else { best }
            };
            open.reduce(better).map(|i| (i, value(i)))
        };
        let is_stale = self.since.get(texts.len()).is_some_and(|since| *since >= REFRESH);
        if !always && is_stale {
            return counts;
        }
        let (mut best, mut rate) = (counts.clone(), texts.len() as f64 / self.time(texts.len()));
        let mut tokens = texts.len() as f64;
        let guess = self.guesses.0 / self.guesses.1.max(0.1);
        for more in 1..=room {
            let Some((i, value)) = next(&counts) else { break };
            counts[i] += 1;
            tokens += value;
            let deepest = counts.iter().max().copied().unwrap_or(0);
            let with = tokens / (self.time(texts.len() + more) + guess * deepest as f64);
            if always || with > rate {
                (best, rate) = (counts.clone(), with);
            }
        }
        let mut left = room - best.iter().sum::<usize>();
        for ((count, text), limit) in best.iter_mut().zip(&stats).zip(texts) {
            if *count == 0 && text.idle >= text.patience {
                *count = TRIAL.min(limit.max_tokens).min(left);
                left -= *count;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(slot: usize, max_tokens: usize) -> DraftLimit {
        DraftLimit { slot, max_tokens }
    }

    /// Simulates steps of one text with given times by rows, and an acceptance probability of
    /// `acceptance`. Returns the state and the number of draft tokens in each of `steps`.
    fn simulate_guesses(time: impl Fn(usize) -> f64, acceptance: f64, steps: usize) -> (Payoff, Vec<usize>) {
        let mut payoff = Payoff::default();
        let mut random = ixc_ir::random::Random::new(5);
        let mut all = Vec::new();
        for _ in 0..steps {
            let count = payoff.counts(&[limit(0, 8)], 8, false)[0];
            let accepted = (0..count).take_while(|_| (random.index(1000) as f64) < 1000.0 * acceptance).count();
            payoff.record_step(1, 1 + count, time(1 + count));
            if count > 0 {
                payoff.record_draft(0, count, accepted)
            } else {
                payoff.record_token(0)
            }
            all.push(count);
        }
        (payoff, all)
    }

    #[test]
    fn well_predicted_text_gets_long_drafts_at_free_rows() {
        let (_, counts) = simulate_guesses(|_| 1.0, 0.95, 400);
        let last = &counts[200..];
        assert!(last.iter().filter(|count| **count == 8).count() > 150, "{last:?}");
        // Now and then, a step has no draft.
        assert!((2..=4).contains(&last.iter().filter(|count| **count == 0).count()), "{last:?}");
    }

    #[test]
    fn drafting_stops_when_rows_cost_as_much_as_steps() {
        let (_, counts) = simulate_guesses(|rows| rows as f64, 0.8, 2000);
        let last = &counts[1000..];
        assert!(last.iter().filter(|count| **count > 0).count() <= 1000 / FIRST_PATIENCE as usize, "{last:?}");
        assert!(last.iter().any(|count| *count > 0), "it is tried again");
    }

    #[test]
    fn drafting_stops_when_no_draft_is_accepted() {
        let (_, counts) = simulate_guesses(|rows| 1.0 + 0.05 * rows as f64, 0.0, 2000);
        let last = &counts[1000..];
        assert!(last.iter().filter(|count| **count > 0).count() <= 1000 / LAST_PATIENCE as usize + 1, "{last:?}");
    }

    #[test]
    fn draft_length_maximises_the_payoff() {
        // Each four more rows take half a step more. Of three draft tokens 0.6 + 0.36 + 0.22 are
        // accepted, and of eight hardly more.
        let (payoff, counts) = simulate_guesses(|rows| 1.0 + 0.1 * rows as f64, 0.6, 1000);
        let last = &counts[500..];
        let mean = last.iter().sum::<usize>() as f64 / last.len() as f64;
        assert!((1.0..5.0).contains(&mean), "{mean}: {last:?}");
        assert!((payoff.texts[0].acceptance - 0.6).abs() < 0.35);
    }

    #[test]
    fn better_predicted_texts_get_more_draft_rows() {
        let mut payoff = Payoff::default();
        payoff.record_step(2, 2, 1.0);
        for _ in 0..20 {
            payoff.record_draft(0, 4, 4);
            payoff.record_draft(1, 4, 0);
        }
        let counts = payoff.counts(&[limit(0, 8), limit(1, 8)], 6, false);
        assert!(counts[0] >= 5 && counts[1] <= 1, "{counts:?}");
        assert_eq!(payoff.counts(&[limit(0, 8), limit(1, 8)], 6, true), [3, 3]);
        assert_eq!(payoff.counts(&[limit(0, 2), limit(1, 8)], 6, true), [2, 4]);
        payoff.begin(1);
        assert!(payoff.counts(&[limit(0, 8), limit(1, 8)], 12, false)[1] > 1);
    }

    #[test]
    fn step_times_are_interpolated_linearly() {
        let mut payoff = Payoff::default();
        assert!((payoff.time(3) - 1.0).abs() < 1e-12);
        payoff.record_step(1, 1, 2.0);
        payoff.record_step(1, 5, 4.0);
        for (rows, expected) in [(0, 2.0), (1, 2.0), (2, 2.5), (3, 3.0), (5, 4.0), (9, 4.0), (MAX_ROWS + 9, 4.0)] {
            assert!((payoff.time(rows) - expected).abs() < 1e-12, "{rows}");
        }
    }

    #[test]
    fn expensive_drafts_do_not_pay() {
        let mut payoff = Payoff::default();
        payoff.record_step(1, 1, 1.0);
        (0..100).for_each(|_| payoff.record_drafting(4, 8.0));
        assert_eq!(payoff.counts(&[limit(0, 8)], 8, false), [0]);
    }
}
