//! Exchanges of rank 0 in a run of a test, as its plan states them and as counted.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_ir::units::Bytes;
use ixc_runtime::stats::ExchangeCounts;
use ixc_runtime::traffic::step_traffic;
use serde::Serialize;

/// Exchanges, and messages that rank 0 sends, in one run of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TestTraffic {
    exchanges: u64,
    messages: u64,
    bytes: u64,
}

/// Counted and planned exchanges of one run of a test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankTraffic {
    counted: TestTraffic,
    planned: TestTraffic,
    /// Time in exchanges, in seconds.
    waited: f64,
}

impl RankTraffic {
    /// Returns the mean of some rounds, and the numbers of a plan. A round has steps of up to
    /// `step` tokens, with the logits of the last token of each step.
    pub fn new(sum: ExchangeCounts, rounds: u64, plan: &Plan<Kernel>, tokens: usize, step: usize) -> RankTraffic {
        let rounds = rounds.max(1);
        let counted = TestTraffic {
            exchanges: sum.exchanges / rounds,
            messages: sum.messages / rounds,
            bytes: sum.bytes / rounds,
        };
        let step = step.max(1);
        let (steps, rest) = (tokens / step, tokens % step);
        let of_step = |tokens: usize| step_traffic(plan, u32::try_from(tokens).unwrap_or(u32::MAX), 1);
        let (whole, last) = (of_step(step), of_step(rest));
        let total = |whole: u64, last: u64| whole.saturating_mul(steps as u64).saturating_add(last);
        let planned = TestTraffic {
            exchanges: total(whole.exchanges, last.exchanges),
            messages: total(whole.messages, last.messages),
            bytes: total(whole.bytes, last.bytes),
        };
        RankTraffic { counted, planned, waited: sum.waited.as_secs_f64() / rounds as f64 }
    }

    /// Returns the numbers of a token, for a test with this many.
    pub fn text(&self, tokens: usize) -> String {
        let tokens = tokens.max(1) as f64;
        let numbers = |traffic: TestTraffic| {
            let each = |count: u64| count as f64 / tokens;
            let bytes = Bytes(each(traffic.bytes) as u64);
            format!("{:.2} exchanges, {:.2} messages, {bytes} sent", each(traffic.exchanges), each(traffic.messages))
        };
        let plan = match self.counted == self.planned {
            true => "as planned".to_owned(),
            false => format!("planned {}", numbers(self.planned)),
        };
        let waited = self.waited * 1e3 / tokens;
        format!("per token {}, {plan}; {waited:.3} ms of waiting", numbers(self.counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_compares_counted_with_planned_numbers() {
        let counted = TestTraffic { exchanges: 24, messages: 24, bytes: 49_152 };
        let traffic = RankTraffic { counted, planned: counted, waited: 0.004 };
        let expected = "per token 12.00 exchanges, 12.00 messages, 24 KiB sent, as planned; 2.000 ms of waiting";
        assert_eq!(traffic.text(2), expected);
        let planned = TestTraffic { messages: 20, ..counted };
        let expected = "per token 12.00 exchanges, 12.00 messages, 24 KiB sent, planned 12.00 exchanges, 10.00 \
                        messages, 24 KiB sent; 2.000 ms of waiting";
        assert_eq!(RankTraffic { planned, ..traffic }.text(2), expected);
    }
}
