//! The prediction strategies.

use super::{Predictor, Strategy};

/// Number of tokens after which the counts of uses are halved, so that old uses are forgotten.
const HALVED_AFTER: u32 = 256;

/// Creates the predictor of a strategy for `groups` expert groups.
pub fn predictor(strategy: Strategy, groups: u32) -> Box<dyn Predictor> {
    match strategy {
        Strategy::Previous => Box::new(Previous(lists(groups))),
        Strategy::Frequency => Box::new(Frequency((0..groups).map(|_| Counts::default()).collect())),
        Strategy::EarlyRouter => Box::new(EarlyRouters(lists(groups))),
    }
}

fn lists(groups: u32) -> Vec<Vec<u32>> {
    (0..groups).map(|_| Vec::new()).collect()
}

fn set(lists: &mut [Vec<u32>], group: u32, experts: &[u32]) {
    if let Some(list) = lists.get_mut(group as usize) {
        experts.clone_into(list);
    }
}

/// For each group, the experts of the last token, then those of the token before.
struct Previous(Vec<Vec<u32>>);

impl Predictor for Previous {
    fn predict(&mut self, group: u32, width: usize) -> Vec<u32> {
        self.0.get(group as usize).map(|last| last.iter().copied().take(width).collect()).unwrap_or_default()
    }

    fn observe(&mut self, group: u32, experts: &[u32]) {
        let Some(list) = self.0.get_mut(group as usize) else { return };
        list.truncate(experts.len());
        list.retain(|expert| !experts.contains(expert));
        list.splice(..0, experts.iter().copied());
    }
}

#[derive(Default)]
struct Counts {
    /// For each expert, the number of tokens that used it. It is halved after each [`HALVED_AFTER`]
    /// tokens.
    uses: Vec<u32>,
    tokens: u32,
}

/// Counts of the uses of experts, for each group. The most used experts are predicted.
struct Frequency(Vec<Counts>);

impl Predictor for Frequency {
    fn predict(&mut self, group: u32, width: usize) -> Vec<u32> {
        let Some(counts) = self.0.get(group as usize) else { return Vec::new() };
        let used = (0u32..).zip(&counts.uses).filter(|(_, uses)| **uses > 0);
        let mut experts: Vec<_> = used.map(|(expert, &uses)| (std::cmp::Reverse(uses), expert)).collect();
        if width < experts.len() {
            experts.select_nth_unstable(width);
            experts.truncate(width);
        }
        experts.sort_unstable();
        experts.into_iter().map(|(_, expert)| expert).collect()
    }

    fn observe(&mut self, group: u32, experts: &[u32]) {
        let Some(counts) = self.0.get_mut(group as usize) else { return };
        counts.tokens += 1;
        if counts.tokens % HALVED_AFTER == 0 {
            counts.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
        for &expert in experts {
            // No model has layers with more experts than this bound.
            let Some(number) = usize::try_from(expert).ok().filter(|&number| number < 1 << 16) else { continue };
            if counts.uses.len() <= number {
                counts.uses.resize(number + 1, 0);
            }
            counts.uses[number] += 1;
        }
    }
}

/// For each group, the experts that the early router returned. Each prediction is used only once.
struct EarlyRouters(Vec<Vec<u32>>);

impl Predictor for EarlyRouters {
    fn predict(&mut self, group: u32, width: usize) -> Vec<u32> {
        self.0.get(group as usize).map(|stated| stated.iter().copied().take(width).collect()).unwrap_or_default()
    }

    fn observe(&mut self, group: u32, _: &[u32]) {
        set(&mut self.0, group, &[]);
    }

    fn take_early_prediction(&mut self, group: u32, experts: &[u32]) {
        set(&mut self.0, group, experts);
    }
}
