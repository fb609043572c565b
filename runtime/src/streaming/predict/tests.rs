//! Tests of the strategies with known routing, and of the measurement with known times.

use super::auto::{Auto, FIRST, HALF, LONGEST_REST, Score, WINDOW, WINDOWS_TO_KEEP};
use super::*;

const READ: Duration = Duration::from_millis(2);

fn observe(predictions: &mut Predictions, group: u32, experts: &[u32]) {
    predictions.observe(group, &RouterChoice { experts, waits: true, block_bytes: 1000, read_time: READ });
}

#[test]
fn each_strategy_predicts_by_its_rule() {
    let said = |strategy: Strategy| {
        let mut predictions = Predictions::new(StrategyChoice::Always(strategy), 2);
        for experts in [[5, 1], [5, 2], [3, 2], [5, 9]] {
            observe(&mut predictions, 1, &experts);
        }
        predictions.take_early_prediction(1, &[7, 8, 6]);
        let said = predictions.predict(1, 2, |_| true);
        observe(&mut predictions, 1, &[0]);
        (said, predictions.predict(1, 2, |_| true), predictions.predict(0, 2, |_| true))
    };
    // The experts of the last token come first, then those of the token before.
    assert_eq!(said(Strategy::Previous), (vec![5, 9], vec![0, 5], vec![]));
    assert_eq!(said(Strategy::Frequency), (vec![5, 2], vec![5, 2], vec![]));
    assert_eq!(said(Strategy::EarlyRouter), (vec![7, 8], vec![], vec![]), "what was said counts once");
    let mut off = Predictions::new(StrategyChoice::Off, 2);
    observe(&mut off, 0, &[1]);
    assert!(off.predict(0, 2, |_| false).is_empty());
    // An unknown layer is ignored without an error.
    observe(&mut off, 9, &[1]);
    off.take_early_prediction(9, &[1]);
    assert_eq!((off.predict(9, 2, |_| false), off.tally(Strategy::EarlyRouter, 9)), (vec![], Tally::default()));
}

#[test]
fn recall_precision_waste_and_savings_are_counted() {
    let mut predictions = Predictions::new(StrategyChoice::Off, 1);
    // The early router predicts 1, 2, 3 and 4; experts 2 and 4 are in memory. The router chooses 2,
    // 3 and 9.
    predictions.take_early_prediction(0, &[1, 2, 3, 4]);
    predictions.predict(0, 4, |expert| expert % 2 == 0);
    observe(&mut predictions, 0, &[2, 3, 9]);
    let tally = predictions.tally(Strategy::EarlyRouter, 0);
    let right = Tally { chosen: 3, predicted: 4, right: 2, useful: 1, useless: 1, wasted_bytes: 1000, saved: READ };
    assert_eq!(tally, right);
    assert_eq!((tally.recall(), tally.precision()), (2.0 / 3.0, 0.5));
    // The other strategies have no data yet, so they predict nothing and are not scored.
    assert_eq!(predictions.tally(Strategy::Previous, 0), Tally::default());
    // A choice without a prediction is not scored.
    observe(&mut predictions, 0, &[5]);
    assert_eq!(predictions.tally(Strategy::EarlyRouter, 0), right);
    assert_eq!((Tally::default().recall(), Tally::default().precision()), (0.0, 0.0));
}

/// Runs tokens whose time depends on the strategy in use. Returns the strategy of each token.
fn run(tokens: usize, time: impl Fn(usize, Option<Strategy>) -> u64) -> Vec<Option<Strategy>> {
    let mut predictions = Predictions::new(StrategyChoice::Auto, 1);
    (0..tokens)
        .map(|token| {
            let used = predictions.current();
            // Two of the three experts that the early router predicts are right. The layer uses the
            // same two experts every seventh token.
            let base = 10 * (token % 7) as u32;
            predictions.take_early_prediction(0, &[base, base + 1, 99]);
            let read = predictions.predict(0, 3, |_| false);
            assert_eq!(read.is_empty(), used.is_none());
            observe(&mut predictions, 0, &[base, base + 1]);
            predictions.end_token(Duration::from_micros(time(token, used)));
            used
        })
        .collect()
}

#[test]
fn auto_keeps_the_strategy_that_pays() {
    let measuring = 2 * HALF + WINDOW;
    let used = run(
        FIRST + 2 * measuring + WINDOWS_TO_KEEP * WINDOW,
        |token, used| if used.is_some() { 900 } else { 1000 } + token as u64 % 5,
    );
    let without = used.iter().filter(|used| used.is_none()).count();
    assert_eq!(without, 4 * HALF, "once behind the first tokens, and again after a while");
    assert!(used.iter().flatten().all(|strategy| *strategy == Strategy::EarlyRouter));
}

#[test]
fn auto_disables_unprofitable_prediction_and_retries_rarely() {
    for with in [1000, 985, 1300] {
        let used = run(200 * WINDOW, |_, used| if used.is_some() { with } else { 1000 });
        let tried = used[FIRST..].iter().filter(|used| used.is_some()).count() / WINDOW;
        // The pauses are 1, 2, 4, ... 64 windows, which gives about 8 measurements in 200 windows.
        assert!((2..=9).contains(&tried), "{with}: {tried}");
        let last = used.iter().rposition(Option::is_some).unwrap();
        assert!(used.len() - last <= (LONGEST_REST + 2) * WINDOW, "it is tried again some time");
    }
}

#[test]
fn auto_ignores_a_general_speed_trend() {
    // Each token is faster than the previous one by this percentage, with any strategy.
    for percent in [1, 3, 5] {
        let faster = 1.0 - f64::from(percent) / 100.0;
        let used = run(FIRST + 2 * HALF + 2 * WINDOW, |token, _| (1e7 * faster.powi(token as i32)) as u64);
        assert!(used[FIRST + 2 * HALF + WINDOW..].iter().all(Option::is_none), "{percent} %: {used:?}");
    }
}

#[test]
fn a_prompt_ends_a_measurement() {
    // The first tokens after each prompt are predicted, and take 1 ms. The next ones are measured
    // without prediction, and take 9 ms. One token before that part of the measurement would end,
    // the next prompt interrupts it.
    let mut predictions = Predictions::new(StrategyChoice::Auto, 1);
    for _ in 0..20 {
        predictions.forget();
        for token in 0..FIRST + HALF - 1 {
            assert_eq!(predictions.current().is_some(), token < FIRST, "{token}: {}", predictions.explain());
            predictions.end_token(Duration::from_millis(if token < FIRST { 1 } else { 9 }));
        }
    }
    // If a prompt interrupts a later measurement, a strategy that was slower before is not used.
    let mut lost = Auto::new(true);
    let token = |lost: &mut Auto, took| {
        lost.end_token(Duration::from_millis(took), &[Score { strategy: Strategy::EarlyRouter, gain: 1 }])
    };
    for _ in 0..FIRST + 2 * HALF + WINDOW {
        token(&mut lost, 9);
    }
    while !lost.explain().contains("measuring") {
        token(&mut lost, 9);
    }
    lost.interrupt();
    assert!(lost.current().is_none() && lost.explain().contains("does not make decode faster"), "{}", lost.explain());
    let mut without = Predictions::new(StrategyChoice::Auto, 1).without_early_routers();
    for token in 0..FIRST + 1 {
        assert_eq!((without.current(), without.explain().contains("first tokens")), (None, token < FIRST));
        without.end_token(Duration::from_millis(1));
    }
}

/// Tests the decision and its reasons in four cases: at the start, with a faster strategy, with a
/// slower strategy, and without any gain.
#[test]
fn auto_reports_rejected_strategies_with_reasons() {
    let begin = |early: bool| Auto::new(early).decision();
    assert_eq!(begin(true).chosen, "router for the first 30 tokens");
    assert_eq!(begin(true).rejected[0].0, "no prediction");
    assert_eq!(begin(false).chosen, "no prediction for the first 30 tokens");
    assert_eq!(begin(false).rejected[0], ("router".to_owned(), "the plan has no early routers".to_owned()));
    let measured = |with: u64, gain: i64| {
        let mut auto = Auto::new(true);
        for _ in 0..FIRST + 2 * HALF + WINDOW {
            let took = Duration::from_millis(if auto.current().is_some() { with } else { 100 });
            auto.end_token(
                took,
                &[Score { strategy: Strategy::Previous, gain }, Score { strategy: Strategy::Frequency, gain: -1 }],
            );
        }
        auto.decision()
    };
    let (paid, lost, none) = (measured(80, 2), measured(99, 2), measured(80, 0));
    let of = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(what, why)| ((*what).to_owned(), (*why).to_owned())).collect()
    };
    let gained = |gain: i64| format!("{gain} more useful than useless reads in {WINDOW} tokens");
    let others = [("frequency", &*gained(-15)), ("router", &gained(0))];
    assert_eq!((&*paid.chosen, paid.why), ("previous", Some(format!("80.0ms a token; {}", gained(30)))));
    assert_eq!(paid.rejected, of(&[&[("no prediction", "100.0ms a token")][..], &others].concat()));
    assert_eq!((&*lost.chosen, lost.why.as_deref()), ("no prediction", Some("100.0ms a token")));
    let slow = ("previous", "99.0ms a token, which is not 2 % less");
    assert_eq!(lost.rejected, of(&[&[slow][..], &others].concat()));
    assert_eq!((&*none.chosen, none.rejected.len(), &none.rejected[0].1), ("no prediction", 3, &gained(0)));
    // If the user chose the strategy, there is no decision to report.
    for choice in [StrategyChoice::Off, StrategyChoice::Always(Strategy::Previous)] {
        assert_eq!(Predictions::new(choice, 1).decision(), None, "{choice}");
    }
}

#[test]
fn auto_notices_when_prediction_stops_paying() {
    let change = 10 * WINDOW;
    let used = run(100 * WINDOW, |token, used| match used {
        Some(_) if token < change => 500,
        Some(_) => 1500,
        None => 1000,
    });
    assert!(used[FIRST + 2 * HALF + WINDOW..change].iter().all(Option::is_some));
    let late = used[change + (WINDOWS_TO_KEEP + 3) * WINDOW..].iter().filter(|used| used.is_some()).count();
    assert!(late <= 6 * WINDOW, "{late}");
}

#[test]
fn auto_never_tries_strategies_without_useful_reads() {
    let mut predictions = Predictions::new(StrategyChoice::Auto, 1);
    let mut read = 0;
    for token in 0..20 * WINDOW as u32 {
        let first = token < FIRST as u32;
        assert_eq!(predictions.current(), first.then_some(Strategy::EarlyRouter), "{}", predictions.explain());
        predictions.take_early_prediction(0, &[1000, 1001, 1002]);
        read += predictions.predict(0, 3, |_| false).len();
        observe(&mut predictions, 0, &[3 * token, 3 * token + 1]);
        predictions.end_token(Duration::from_millis(1));
    }
    assert_eq!(read, 3, "after the first token nobody is sure of these any more");
    assert!(predictions.explain().contains("without") || predictions.explain().contains("does not make decode faster"));
}

#[test]
fn required_confidence_rises_with_drive_time_and_waiting_layers() {
    let sure_of = |idle, right, wrong, waits: usize| {
        let mut predictions = Predictions::new(StrategyChoice::Off, 1);
        for i in 0..2000 {
            predictions
                .observe(0, &RouterChoice { experts: &[0], waits: i % 10 < waits, block_bytes: 1, read_time: READ });
        }
        let [idle, right, wrong] = [idle, right, wrong].map(|micros: u32| f64::from(micros) * 1e-6);
        predictions.pace(TokenTiming { idle, right, wrong });
        predictions.sure_enough()
    };
    let sure = |idle, wrong, waits| sure_of(idle, 1_000_000, wrong, waits);
    // Layers take a millisecond. The started reads of a wrong guess take 0.1, 1 and 50 ms.
    for waits in [1, 5, 10] {
        let [fast, alike, slow] = [100, 1000, 50_000].map(|wrong| sure(1000, wrong, waits));
        assert!(fast < alike && alike < slow && slow > 0.95, "{waits}: {fast} {alike} {slow}");
    }
    assert_eq!(sure(1000, 100, 1), MIN_GUESS_PROBABILITY);
    assert!((sure(1000, 1000, 10) - 0.5).abs() < 0.01);
    assert!(sure(1000, 1000, 1) < sure(1000, 1000, 5) && sure(0, 0, 0) == MIN_GUESS_PROBABILITY);
    // A small block is read in less time than a layer takes, so its read saves only that time.
    assert!((sure_of(1000, 100, 100, 10) - 0.5).abs() < 0.01);
    // If the drive is never idle, no guess is worth a read.
    assert!(sure(0, 1000, 5) > 0.99);
}

#[test]
fn unreliable_ranks_are_not_read_but_cached_ones_kept() {
    let mut predictions = Predictions::new(StrategyChoice::Always(Strategy::EarlyRouter), 1);
    let mut said = Vec::new();
    for token in 0..20 {
        let base = 10 * token;
        // The second guess is right and all others are wrong. The last guess is in memory.
        predictions.take_early_prediction(0, &[base, base + 1, base + 2, 7]);
        said = predictions.predict(0, 4, |expert| expert == 7).iter().map(|expert| expert.wrapping_sub(base)).collect();
        observe(&mut predictions, 0, &[base + 1, base + 5]);
    }
    assert_eq!(said, [1, 7u32.wrapping_sub(190)]);
    let tally = predictions.tally(Strategy::EarlyRouter, 0);
    // All four guesses are scored, but only reads count as useful or useless.
    assert_eq!((tally.predicted, tally.right), (80, 20));
    assert!(tally.useful > 17 && tally.useless < 6, "{tally:?}");
}
