//! Search for the smallest input with the same finding. Pieces of an input are removed as long as
//! the finding stays.

use std::time::{Duration, Instant};

/// Returns a small input for which `fails` returns true, as it does for `input`. Ends when no byte
/// can be removed, or when the time is over.
pub fn minimised(input: &[u8], time: Duration, mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let begin = Instant::now();
    let mut smallest = input.to_vec();
    let mut piece = smallest.len().div_ceil(2);
    while piece > 0 && begin.elapsed() < time {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < smallest.len() && begin.elapsed() < time {
            let end = (at + piece).min(smallest.len());
            let shorter = [&smallest[..at], &smallest[end..]].concat();
            if fails(&shorter) {
                smallest = shorter;
                has_shrunk = true;
            } else {
                at = end;
            }
        }
        // If no piece of this size could be removed, smaller pieces are tried.
        piece = if has_shrunk && piece > 1 { piece } else { piece / 2 };
        piece = piece.min(smallest.len());
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_necessary_bytes_remain() {
        let input: Vec<u8> = (0..200).chain(*b"nest{").chain(0..100).collect();
        let found = minimised(&input, Duration::from_secs(60), |bytes| {
            bytes.windows(2).any(|pair| pair == b"t{") && bytes.contains(&199)
        });
        assert_eq!(found, [199, b't', b'{']);
    }
}
