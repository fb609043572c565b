//! Tests of the samplers and of their settings.

use std::sync::Arc;

use super::*;
use proptest::prelude::*;

/// Softmax that computes in f64.
pub(super) struct Exact;

impl Softmax for Exact {
    fn probabilities(&self, logits: &[f32], inverse: f32, out: &mut [f32]) -> Result<(), StepError> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = logits.iter().map(|&x| (f64::from(x - max) * f64::from(inverse)).exp()).collect();
        let sum: f64 = e.iter().sum();
        out.iter_mut().zip(e).for_each(|(p, e)| *p = (e / sum) as f32);
        Ok(())
    }
}

/// Settings with all samplers off.
fn plain_settings() -> SamplerSettings {
    SamplerSettings { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7, ..SamplerSettings::default() }
}

/// Counts how often each token is drawn in `n` draws with one sampler.
fn counts(settings: SamplerSettings, logits: &[f32], n: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(settings).unwrap();
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(logits, &Exact).unwrap() as usize] += 1;
    }
    counts
}

#[test]
fn late_tokens_are_excluded_before_the_minimum_length() {
    let logits = [1.0, 5.0, 0.0];
    let settings = SamplerSettings { temperature: 0.0, late_tokens: vec![1], min_tokens: 2, ..plain_settings() };
    let mut sampler = Sampler::new(settings).unwrap();
    let drawn: Vec<u32> = (0..4).map(|_| sampler.sample(&logits, &Exact).unwrap()).collect();
    assert_eq!(drawn, [0, 0, 1, 1]);
    // If the mask allows only a token of `late_tokens`, that token is drawn.
    let mut sampler =
        Sampler::new(SamplerSettings { late_tokens: vec![1], min_tokens: 2, ..plain_settings() }).unwrap();
    assert_eq!(sampler.sample_allowed(&logits, Some(&[0b010]), &Exact).unwrap(), 1);
}

#[test]
fn excluded_tokens_are_never_sampled() {
    let logits = [3.0, 2.0, 1.0];
    let never = |banned: &[u32]| SamplerSettings { banned: banned.to_vec(), ..plain_settings() };
    assert_eq!(counts(SamplerSettings { temperature: 0.0, ..never(&[0, 9]) }, &logits, 5), [0, 5, 0]);
    let drawn = counts(never(&[0]), &logits, 500);
    assert!(drawn[0] == 0 && drawn[1] > 0 && drawn[2] > 0, "{drawn:?}");
    // If all tokens are banned, one of them is drawn nevertheless.
    assert_eq!(counts(never(&[0, 1, 2]), &logits, 5).iter().sum::<usize>(), 5);
}

#[test]
fn greedy_takes_the_largest_logit_then_the_lowest_id() {
    let mut sampler = Sampler::new(SamplerSettings::greedy()).unwrap();
    assert_eq!(sampler.sample(&[0.5, 2.0, f32::NEG_INFINITY, 2.0], &Exact), Ok(1));
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3], &Exact), Ok(0));
    assert_eq!(sampler.sample(&[], &Exact), Err(SampleError::NoLogits));
    let error = sampler.sample(&[0.0, f32::INFINITY], &Exact);
    assert_eq!(error, Err(SampleError::NotFinite { token: 1, value: f32::INFINITY }));
    assert!(matches!(sampler.sample(&[f32::NAN], &Exact), Err(SampleError::NotFinite { token: 0, .. })));
}

#[test]
fn log_probabilities_of_the_sampled_token_are_reported() {
    // The tokens have the probabilities 0.1, 0.2 and 0.7. Top-k keeps the last two, which then have
    // 2/9 and 7/9.
    let logits = [0.1f32, 0.2, 0.7].map(f32::ln);
    let settings = SamplerSettings { top_k: 2, ..plain_settings() };
    let mut sampler =
        Sampler::new(SamplerSettings { samplers: vec![Kind::TopK, Kind::Temperature], ..settings }).unwrap();
    let token = sampler.sample(&logits, &Exact).unwrap();
    let (own, best) = sampler.log_probabilities(token, 5);
    let shares: Vec<(u32, f32)> = best.iter().map(|one| (one.token, one.log_probability.exp())).collect();
    assert!(matches!(shares[..], [(2, a), (1, b)] if (a - 7.0 / 9.0).abs() < 1e-6 && (b - 2.0 / 9.0).abs() < 1e-6));
    assert_eq!(Some(&own), best.iter().find(|one| one.token == token));
    assert_eq!(sampler.log_probabilities(token, 1).1, best[..1]);
    assert!(sampler.log_probabilities(token, 0).1.is_empty());
    // Greedy sampling draws no token at random, so the token has probability 1.
    let mut greedy = Sampler::new(SamplerSettings::greedy()).unwrap();
    let token = greedy.sample(&logits, &Exact).unwrap();
    let certain = TokenLogProb { token: 2, log_probability: 0.0 };
    assert_eq!(greedy.log_probabilities(token, 5), (certain, vec![certain]));
}

proptest! {
    #[test]
    fn partial_sort_matches_a_full_sort(
        logits in prop::collection::vec(prop_oneof![(-4i8..4).prop_map(f32::from), Just(LOWEST_LOGIT)], 1..600),
        count in 1usize..100,
    ) {
        let count = count.min(logits.len());
        let mut all: Vec<u32> = (0..logits.len() as u32).collect();
        all.sort_by(|&a, &b| compare_descending(&logits, a, b));
        let mut found = Vec::new();
        largest(&logits, count, &mut found);
        prop_assert_eq!(&found[..], &all[..count]);
    }
}

#[test]
fn draws_follow_the_probabilities() {
    // The tokens have the probabilities 0.1, 0.2 and 0.7 at temperature 1. At temperature 0.5,
    // these are squared and divided by the sum of the squares. The limit is four standard
    // deviations of the frequency in 20000 draws.
    let logits = [0.1f32.ln(), 0.2f32.ln(), 0.7f32.ln()];
    for (temperature, expected) in [(1.0, [0.1, 0.2, 0.7]), (0.5, [0.01 / 0.54, 0.04 / 0.54, 0.49 / 0.54])] {
        let n = 20_000;
        let found = counts(SamplerSettings { temperature, ..plain_settings() }, &logits, n);
        for (count, p) in found.iter().zip(expected) {
            let (mean, deviation) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
            assert!((*count as f64 - mean).abs() < 4.0 * deviation, "{found:?} at {temperature}");
        }
    }
}

#[test]
fn top_k_top_p_min_p_keep_expected_tokens() {
    let p = [0.05f32, 0.4, 0.25, 0.2, 0.1];
    let logits = p.map(f32::ln);
    let kept = |settings| -> Vec<usize> {
        let counts = counts(settings, &logits, 2000);
        (0..p.len()).filter(|&i| counts[i] > 0).collect()
    };
    assert_eq!(kept(plain_settings()), [0, 1, 2, 3, 4]);
    assert_eq!(kept(SamplerSettings { top_k: 2, ..plain_settings() }), [1, 2]);
    assert_eq!(kept(SamplerSettings { top_k: 5, ..plain_settings() }), [0, 1, 2, 3, 4]);
    assert_eq!(kept(SamplerSettings { top_p: 0.6, ..plain_settings() }), [1, 2]);
    assert_eq!(kept(SamplerSettings { top_p: 0.66, ..plain_settings() }), [1, 2, 3]);
    assert_eq!(kept(SamplerSettings { top_p: 0.0, ..plain_settings() }), [1]);
    // Top-k keeps three tokens. The first of them has probability 0.4 / 0.85, which is less than
    // 0.5.
    assert_eq!(kept(SamplerSettings { top_k: 3, top_p: 0.5, ..plain_settings() }), [1, 2]);
    assert_eq!(kept(SamplerSettings { top_k: 3, top_p: 0.46, ..plain_settings() }), [1]);
    assert_eq!(kept(SamplerSettings { min_p: 0.45, ..plain_settings() }), [1, 2, 3]);
    assert_eq!(kept(SamplerSettings { min_p: 1.0, ..plain_settings() }), [1]);
    // Min-p applies before the temperature.
    assert_eq!(kept(SamplerSettings { min_p: 0.45, temperature: 20.0, ..plain_settings() }), [1, 2, 3]);
}

#[test]
fn recent_tokens_are_penalised_once_and_in_the_window_only() {
    let settings = SamplerSettings { repeat_penalty: 2.0, repeat_window: 2, ..SamplerSettings::greedy() };
    let mut sampler = Sampler::new(settings).unwrap();
    let logits = [3.0, 2.0, -1.0, 1.25];
    sampler.accept(0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits, &Exact), Ok(1)); // logits 1.5, 2.0, -1.0, 1.25: token 0 is penalised
    assert_eq!(sampler.sample(&logits, &Exact), Ok(0)); // logits 1.5, 1.0, -1.0, 1.25: tokens 0 and 1 are penalised
    assert_eq!(sampler.sample(&logits, &Exact), Ok(0)); // logits 1.5, 1.0, ...: tokens 1 and 0 are penalised
    assert_eq!(sampler.sample(&logits, &Exact), Ok(1)); // logits 1.5, 2.0, ...: token 1 is outside the window
    let mut sampler = Sampler::new(SamplerSettings { repeat_penalty: 2.0, ..SamplerSettings::greedy() }).unwrap();
    sampler.accept(1);
    assert_eq!(sampler.sample(&[-2.0, -1.0, -1.5], &Exact), Ok(2));
    // A token id beyond the vocabulary has no effect.
    sampler.accept(u32::MAX);
    assert_eq!(sampler.sample(&[1.0], &Exact), Ok(0));
}

#[test]
fn presence_and_frequency_penalties_reduce_recent_tokens() {
    let greedy = |presence_penalty, frequency_penalty| {
        let settings = SamplerSettings { presence_penalty, frequency_penalty, ..SamplerSettings::greedy() };
        let mut sampler = Sampler::new(settings).unwrap();
        [0, 0, 0, 1].into_iter().for_each(|token| sampler.accept(token));
        sampler.sample(&[3.0, 2.5, 1.0], &Exact).unwrap()
    };
    assert_eq!(greedy(0.0, 0.0), 0);
    assert_eq!(greedy(1.0, 0.0), 0); // logits 2.0, 1.5, 1.0
    assert_eq!(greedy(0.0, 0.3), 1); // logits 2.1, 2.2, 1.0
    assert_eq!(greedy(2.0, 0.0), 0); // logits 1.0, 0.5, 1.0: the lowest id of equal logits
    assert_eq!(greedy(1.0, 1.0), 2); // logits -1.0, 0.5, 1.0
}

#[test]
fn biases_are_added() {
    let biased = |bias: &[(u32, f32)]| {
        let settings = SamplerSettings { bias: bias.to_vec(), ..SamplerSettings::greedy() };
        Sampler::new(settings).unwrap().sample(&[3.0, 2.0, 1.0], &Exact).unwrap()
    };
    assert_eq!(biased(&[(1, 1.5)]), 1);
    assert_eq!(biased(&[(0, f32::NEG_INFINITY), (u32::MAX, 9.0)]), 1);
    assert_eq!(biased(&[(0, -100.0), (1, -100.0)]), 2);
}

/// Returns the tokens that are drawn with the given settings, and the share of draws of each token.
fn remaining(settings: SamplerSettings, logits: &[f32]) -> Vec<(usize, f64)> {
    let n = 40_000;
    let counts = counts(settings, logits, n);
    counts.into_iter().enumerate().filter(|(_, c)| *c > 0).map(|(i, c)| (i, c as f64 / n as f64)).collect()
}

fn tokens(left: &[(usize, f64)]) -> Vec<usize> {
    left.iter().map(|(token, _)| *token).collect()
}

#[test]
fn mask_restricts_sampling_to_allowed_tokens() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let only = |settings: SamplerSettings, mask: u32| {
        let mut sampler = Sampler::new(settings).unwrap();
        (0..200).map(|_| sampler.sample_allowed(&logits, Some(&[mask]), &Exact).unwrap()).collect::<Vec<_>>()
    };
    assert!(only(SamplerSettings::greedy(), 0b1100).iter().all(|token| *token == 2));
    // The mask allows fewer tokens than top-k would keep.
    let drawn = only(SamplerSettings { top_k: 3, ..plain_settings() }, 0b1010);
    assert!(drawn.contains(&1) && drawn.contains(&3) && !drawn.contains(&0) && !drawn.contains(&2));
    // If the mask allows only banned or forbidden tokens, these are drawn nevertheless.
    let never = SamplerSettings { banned: vec![2], bias: vec![(3, f32::NEG_INFINITY)], ..plain_settings() };
    assert!(only(never, 0b1100).iter().all(|token| [2, 3].contains(token)));
    let mut sampler = Sampler::new(plain_settings()).unwrap();
    assert_eq!(sampler.sample_allowed(&logits, Some(&[0]), &Exact), Err(SampleError::NothingAllowed));
    assert_eq!(sampler.sample_allowed(&logits, Some(&[]), &Exact), Err(SampleError::NothingAllowed));
}

#[test]
fn typical_p_keeps_tokens_of_expected_surprise() {
    // The entropy is 0.5 ln 2 + 0.3 ln(1/0.3) + 0.2 ln 5 = 1.0297 nats. The surprises 0.693, 1.204
    // and 1.609 differ from it by 0.337, 0.174 and 0.580.
    let logits = [0.5f32, 0.3, 0.2].map(f32::ln);
    let with = |typical_p| tokens(&remaining(SamplerSettings { typical_p, ..plain_settings() }, &logits));
    assert_eq!(with(0.2), [1]);
    assert_eq!(with(0.31), [0, 1]);
    assert_eq!(with(0.79), [0, 1]);
    assert_eq!(with(0.81), [0, 1, 2]);
}

#[test]
fn top_n_sigma_keeps_tokens_within_deviations() {
    // The logits have the mean 1 and the standard deviation sqrt((9 + 1 + 1 + 1 + 4) / 5) = 1.789.
    let logits = [4.0, 2.0, 0.0, 0.0, -1.0];
    let with = |top_n_sigma| {
        tokens(&remaining(SamplerSettings { top_n_sigma, temperature: 5.0, ..plain_settings() }, &logits))
    };
    assert_eq!(with(1.0), [0]);
    assert_eq!(with(1.12), [0, 1]);
    assert_eq!(with(2.24), [0, 1, 2, 3]);
    assert_eq!(with(0.0), [0, 1, 2, 3, 4]);
}

#[test]
fn masked_tokens_do_not_affect_the_deviation() {
    // The mask allows logits with the mean 2 and the standard deviation sqrt(2 / 3 * 4) = 1.633.
    let logits = [4.0, 2.0, 0.0, 9.0];
    let samplers = vec![Kind::Temperature, Kind::TopNSigma];
    let settings = SamplerSettings { temperature: 1.5, top_n_sigma: 1.0, samplers, ..plain_settings() };
    let mut sampler = Sampler::new(settings).unwrap();
    for _ in 0..500 {
        assert_eq!(sampler.sample_allowed(&logits, Some(&[0b0111]), &Exact), Ok(0));
    }
}

#[test]
fn penalties_after_a_cut_apply_to_remaining_tokens() {
    let penalised = |presence_penalty: f32, dry_multiplier: f32| {
        let samplers = vec![Kind::TopK, Kind::Penalties, Kind::Dry, Kind::Xtc];
        let settings = SamplerSettings { presence_penalty, dry_multiplier, top_k: 2, samplers, ..plain_settings() };
        let settings = SamplerSettings { xtc_probability: 1.0, xtc_threshold: 0.4, ..settings };
        let mut sampler = Sampler::new(settings).unwrap();
        [0, 1, 5, 0, 1].into_iter().for_each(|token| sampler.accept(token));
        sampler.sample(&[200.0, 200.0, 190.0, 190.0, 190.0, 199.0], &Exact).unwrap();
        let shares: Vec<f64> = [0, 1].map(|token: usize| f64::from(sampler.probabilities[token])).to_vec();
        assert!(shares.iter().sum::<f64>() > 0.99, "{presence_penalty} {dry_multiplier}: {shares:?}");
    };
    penalised(100.0, 0.0);
    penalised(100.0, 100.0);
}

#[test]
fn numeric_settings_are_set_by_name() {
    let with = |name: &str, value: f64| {
        let mut settings = SamplerSettings::default();
        let number = NUMBERS.iter().find(|number| number.name == name).unwrap();
        assert!((number.min..=number.max).contains(&value), "{name}");
        (number.set)(&mut settings, value);
        settings
    };
    assert_eq!((with("top_k", -1.0).top_k, with("temperature", -1.0).temperature), (0, 0.0));
    // The minimum and maximum of each range are valid values.
    for number in NUMBERS {
        for value in [number.min, number.max] {
            assert_eq!(with(number.name, value).check(), Ok(()), "{} = {value}", number.name);
        }
    }
    let mut cold = Sampler::new(SamplerSettings { temperature: -0.5, ..plain_settings() }).unwrap();
    assert_eq!(cold.sample(&[0.0, 1.0], &Exact), Ok(1));
}

#[test]
fn xtc_leaves_out_all_likely_tokens_but_the_last() {
    let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
    let with = |xtc_probability, xtc_threshold| {
        remaining(SamplerSettings { xtc_probability, xtc_threshold, ..plain_settings() }, &logits)
    };
    assert_eq!(tokens(&with(1.0, 0.15)), [2, 3]);
    assert_eq!(tokens(&with(1.0, 0.25)), [1, 2, 3]);
    // If only one token is above the threshold, XTC keeps it.
    assert_eq!(tokens(&with(1.0, 0.35)), [0, 1, 2, 3]);
    assert_eq!(tokens(&with(1.0, 0.51)), [0, 1, 2, 3]);
    // XTC applies to half of the draws, so the first token is drawn with probability 0.4 / 2. The
    // limit is four standard deviations of the frequency in 40000 draws.
    let half = with(0.5, 0.15);
    assert!((half[0].1 - 0.2).abs() < 4.0 * (0.2f64 * 0.8 / 40_000.0).sqrt(), "{half:?}");
    // XTC also applies to greedy sampling.
    let cold = SamplerSettings {
        top_p: 1.0,
        min_p: 0.0,
        xtc_probability: 1.0,
        xtc_threshold: 0.15,
        ..SamplerSettings::greedy()
    };
    assert_eq!(tokens(&remaining(cold.clone(), &logits)), [2]);
    // XTC sees only the candidates that earlier samplers keep, 0.4 and 0.3. It keeps the less
    // likely one.
    assert_eq!(tokens(&remaining(SamplerSettings { top_k: 2, ..cold.clone() }, &logits)), [1]);
    assert_eq!(tokens(&remaining(SamplerSettings { min_p: 0.6, ..cold.clone() }, &logits)), [1]);
    // A sampler after XTC keeps the best of the tokens that XTC has not removed.
    let after = vec![Kind::Xtc, Kind::TopK, Kind::Temperature];
    assert_eq!(tokens(&remaining(SamplerSettings { top_k: 2, samplers: after, ..cold }, &logits)), [2]);
}

/// Returns the set of breakers with the given heads and tails.
fn breaker_set(all: &[(u32, Vec<u32>)]) -> Breakers {
    Breakers::new(all.iter().map(|(head, tail)| Breaker { head: *head, tail: tail.clone() }).collect())
}

#[test]
fn repetitions_are_found_and_end_at_breakers() {
    let found = |history: &[u32], breakers: &[(u32, Vec<u32>)]| {
        let found = samplers::repetitions(history, &breaker_set(breakers));
        let mut found: Vec<(u32, usize)> = found.into_iter().filter(|(_, length)| *length > 0).collect();
        found.sort_unstable();
        found
    };
    // Tokens 1 2 3 occurred before 4 and before 5, and 2 3 occurred before 6.
    assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3, 5, 2, 3, 6, 1, 2, 3], &[]), [(4, 3), (5, 3), (6, 2)]);
    assert_eq!(found(&[7, 7, 7, 7], &[]), [(7, 3)]);
    assert_eq!(found(&[1, 2, 3], &[]), []);
    // Token 1 is a breaker. The last 1 is followed by two tokens, so a repetition has at most two.
    assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3], &[(1, vec![])]), [(4, 2)]);
    // Tokens 1 2 are a breaker. The last 1 2 is followed by one token, so a repetition has at most
    // one.
    assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3], &[(1, vec![2])]), [(4, 1)]);
    assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3], &[(1, vec![9])]), [(4, 3)]);
    assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3], &[(3, vec![])]), []);
}

proptest! {
    #[test]
    fn dry_repetitions_match_brute_force_search(history in prop::collection::vec(0u32..3, 1..40)) {
        let found = samplers::repetitions(&history, &Breakers::default());
        let count = history.len();
        for token in 0..3 {
            let ends = (1..count).filter(|i| history[*i] == token);
            let common = |i: usize| (1..=i).take_while(|k| history[i - k] == history[count - k]).count();
            prop_assert_eq!(found.get(&token).copied().unwrap_or(0), ends.map(common).max().unwrap_or(0));
        }
    }
}

#[test]
fn dry_penalty_grows_exponentially_with_repetition_length() {
    let with = |dry_multiplier: f32, dry_breakers: Vec<(u32, Vec<u32>)>| {
        let dry_breakers = Arc::new(breaker_set(&dry_breakers));
        let settings = SamplerSettings { dry_multiplier, dry_base: 2.0, dry_breakers, ..SamplerSettings::greedy() };
        let mut sampler = Sampler::new(settings).unwrap();
        [0, 1, 2, 3, 0, 1, 2].into_iter().for_each(|token| sampler.accept(token));
        // Token 3 would continue a repetition of three tokens, so 0.5 * 2^(3 - 2) = 1 is subtracted
        // from its logit.
        sampler.sample(&[0.0, 0.0, 0.5, 1.4], &Exact).unwrap()
    };
    assert_eq!(with(0.0, vec![]), 3);
    assert_eq!(with(0.4, vec![]), 3); // logit of token 3: 1.4 - 0.8
    assert_eq!(with(0.5, vec![]), 2); // logit of token 3: 1.4 - 1.0
    // Because of the breaker, the repetition has only one token, which is not penalised.
    assert_eq!(with(0.5, vec![(1, vec![])]), 3);
    // A token that is a breaker itself is not penalised.
    assert_eq!(with(0.5, vec![(3, vec![])]), 3);
}

#[test]
fn the_temperature_follows_the_entropy() {
    let share = |logits: &[f32], range, exponent| {
        let settings = SamplerSettings { dynatemp_range: range, dynatemp_exponent: exponent, ..plain_settings() };
        remaining(settings, logits)[0].1
    };
    let logits = [2.0f32, 0.0];
    let p = 1.0 / (1.0 + (-2.0f64).exp());
    let certain = -(p * p.ln() + (1.0 - p) * (1.0 - p).ln()) / 2.0f64.ln();
    for (range, exponent) in [(0.5, 1.0), (1.0, 2.0)] {
        let temperature = (1.0 - range) + 2.0 * range * certain.powf(exponent);
        let expected = 1.0 / (1.0 + (-2.0 / temperature).exp());
        let found = share(&logits, range as f32, exponent as f32);
        let deviation = (expected * (1.0 - expected) / 40_000.0).sqrt();
        assert!((found - expected).abs() < 4.0 * deviation.max(1e-4), "{found} {expected}");
    }
}

#[test]
fn mirostat_holds_surprise_at_its_target() {
    // A Zipf distribution over 1000 tokens has an entropy of 7.5 bits.
    let logits: Vec<f32> = (1..=1000).map(|rank| -(rank as f32).ln()).collect();
    for mirostat in [1, 2] {
        for tau in [2.0f32, 3.0, 4.5] {
            let settings = SamplerSettings { mirostat, mirostat_tau: tau, ..plain_settings() };
            let mut sampler = Sampler::new(settings).unwrap();
            let (mut sum, n) = (0.0, 4000);
            for _ in 0..n {
                let before = sampler.surprise;
                sampler.sample(&logits, &Exact).unwrap();
                // A draw moves mirostat's limit by the difference from the target, times the
                // learning rate 0.1.
                sum += (before - sampler.surprise) / 0.1 + f64::from(tau);
            }
            let mean = sum / f64::from(n);
            // The limit stays bounded, so the mean difference from the target is near 0.
            assert!((mean - f64::from(tau)).abs() < 0.1, "version {mirostat}: {mean} for {tau}");
        }
    }
    let cold = SamplerSettings { mirostat: 2, ..SamplerSettings::greedy() };
    assert_eq!(Sampler::new(cold).unwrap().sample(&[0.0, 2.0], &Exact), Ok(1));
}

#[test]
fn samplers_run_in_the_given_order() {
    let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
    let with = |samplers: &[Kind]| {
        let settings = SamplerSettings {
            temperature: 0.25,
            min_p: 0.6,
            top_k: 3,
            samplers: samplers.to_vec(),
            ..plain_settings()
        };
        tokens(&remaining(settings, &logits))
    };
    // With min-p first, 0.3 is kept, because it is at least 0.6 * 0.4. After temperature 0.25 it is
    // removed, because 0.3^4 is less than 0.6 * 0.4^4.
    assert_eq!(with(&[Kind::MinP, Kind::Temperature]), [0, 1]);
    assert_eq!(with(&[Kind::Temperature, Kind::MinP]), [0]);
    assert_eq!(with(&[Kind::TopK]), [0, 1, 2]);
    assert_eq!(with(&[]), [0, 1, 2, 3]);
    // Temperature 0 is greedy only if the list of samplers has the temperature sampler.
    let cold = SamplerSettings { temperature: 0.0, samplers: vec![Kind::TopK], top_k: 2, ..plain_settings() };
    assert_eq!(tokens(&remaining(cold, &logits)), [0, 1]);
    for row in &SAMPLERS {
        assert_eq!((Kind::from_name(row.name), Kind::from_letter(row.letter)), (Some(row.kind), Some(row.kind)));
        assert_eq!(row.kind.row().name, row.name);
    }
    assert_eq!(
        (Kind::from_name("typical"), Kind::from_name("top"), Kind::from_letter('z')),
        (Some(Kind::TypicalP), None, None)
    );
    assert_eq!(SAMPLERS.iter().map(|row| row.kind).collect::<Vec<_>>(), DEFAULT_SAMPLERS);
}

#[test]
fn settings_outside_their_range_are_errors() {
    for (settings, name) in [
        (SamplerSettings { temperature: 1001.0, ..plain_settings() }, "temperature"),
        (SamplerSettings { temperature: f32::NAN, ..plain_settings() }, "temperature"),
        (SamplerSettings { top_p: 1.1, ..plain_settings() }, "top_p"),
        (SamplerSettings { min_p: -1.0, ..plain_settings() }, "min_p"),
        (SamplerSettings { repeat_penalty: 0.0, ..plain_settings() }, "repeat_penalty"),
        (SamplerSettings { presence_penalty: 101.0, ..plain_settings() }, "presence_penalty"),
        (SamplerSettings { frequency_penalty: f32::NAN, ..plain_settings() }, "frequency_penalty"),
        (SamplerSettings { bias: vec![(1, f32::INFINITY)], ..plain_settings() }, "logit_bias"),
        (SamplerSettings { repeat_window: u32::MAX, ..plain_settings() }, "repeat_last_n"),
        (SamplerSettings { dry_window: u32::MAX, ..plain_settings() }, "dry_penalty_last_n"),
        (SamplerSettings { mirostat: 3, ..plain_settings() }, "mirostat"),
        (SamplerSettings { xtc_threshold: f32::NAN, ..plain_settings() }, "xtc_threshold"),
    ] {
        assert_eq!(Sampler::new(settings).unwrap_err().setting, name);
    }
}

proptest! {
    #[test]
    fn sampling_any_valid_input_is_deterministic(
        logits in prop::collection::vec(prop_oneof![-30.0f32..30.0, Just(f32::NEG_INFINITY)], 1..60),
        temperature in 0.0f32..3.0, top_k in 0u32..70, top_p in 0.0f32..=1.0, min_p in 0.0f32..=1.0, seed: u64,
        (typical_p, top_n_sigma, dynatemp_range) in (0.0f32..=1.0, -1.0f32..3.0, 0.0f32..2.0),
        (xtc_probability, xtc_threshold, dry_multiplier) in (0.0f32..=1.0, 0.0f32..=1.0, 0.0f32..3.0),
        mirostat in 0u32..3, samplers in Just(DEFAULT_SAMPLERS.to_vec()).prop_shuffle(),
    ) {
        let settings = SamplerSettings {
            temperature, top_k, top_p, min_p, seed, typical_p, top_n_sigma, dynatemp_range, xtc_probability, xtc_threshold,
            dry_multiplier, mirostat, samplers, ..plain_settings()
        };
        let mut twice = [Sampler::new(settings.clone())?, Sampler::new(settings)?];
        for _ in 0..5 {
            let [a, b] = twice.each_mut().map(|sampler| sampler.sample(&logits, &Exact));
            let token = a?;
            prop_assert_eq!(Ok(token), b);
            prop_assert!((token as usize) < logits.len());
            let finite = logits.iter().any(|logit| logit.is_finite());
            prop_assert!(!finite || logits[token as usize].is_finite());
        }
    }
}
