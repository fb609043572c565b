//! Numbers in text for readers. All of `ixc` uses these units.
//!
//! | what | units | as |
//! | --- | --- | --- |
//! | amounts of memory, of files and of traffic | binary: B, KiB, MiB, GiB | [`Bytes`] |
//! | other counts | decimal: k, M, G | [`Count`] |
//! | things that are counted | the number itself and a noun that agrees with it | [`count_text`] |
//! | rates of drives and memories | decimal: GB/s, as vendors state them | |
//!
//! ```
//! use ixc_ir::units::{Bytes, Count, count_text};
//!
//! assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
//! assert_eq!(Count(15_234_000).to_string(), "15.2 M");
//! assert_eq!(count_text(1, "token"), "1 token");
//! assert_eq!(count_text(16, "token"), "16 tokens");
//! ```

use std::fmt;

/// A number of bytes, printed in binary units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let step = ((self.0.ilog2() / 10) as usize).min(UNITS.len());
        let (value, unit) = (self.0 as f64 / f64::powi(1024.0, step as i32), UNITS[step - 1]);
        // Whole numbers are printed without a fraction, such as `64 MiB`.
        if value.fract() == 0.0 { write!(f, "{value:.0} {unit}") } else { write!(f, "{value:.1} {unit}") }
    }
}

/// A count, printed in decimal units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["k", "M", "G", "T"];
        if self.0 < 1000 {
            return write!(f, "{}", self.0);
        }
        let step = ((self.0.ilog10() / 3) as usize).min(UNITS.len());
        write!(f, "{:.1} {}", self.0 as f64 / f64::powi(1000.0, step as i32), UNITS[step - 1])
    }
}

/// Returns a number with its noun, such as `1 token` or `2 tokens`. The plural of the noun must end
/// in `s`.
pub fn count_text(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_binary_units_and_counts_decimal_ones() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1.0 KiB"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!([Count(999), Count(1000)].map(|count| count.to_string()), ["999", "1.0 k"]);
    }

    #[test]
    fn nouns_agree_with_their_number() {
        assert_eq!([0, 1, 2].map(|number| count_text(number, "thread")), ["0 threads", "1 thread", "2 threads"]);
    }
}
