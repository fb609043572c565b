//! Sorted numbers as ranges.

use std::fmt;

/// Sorted numbers as text, such as `0-3,8`.
pub struct Ranges<'a>(pub &'a [usize]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for range in self.0.chunk_by(|a, b| a + 1 == *b) {
            match range {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                _ => range.iter().try_for_each(|only| write!(f, "{comma}{only}"))?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn numbers_are_printed_as_ranges() {
        assert_eq!(Ranges(&[0, 1, 2, 3, 8, 10, 11]).to_string(), "0-3,8,10-11");
        assert_eq!(Ranges(&[]).to_string(), "");
    }
}
