//! Sizes on the command line: `6GiB`, `512MiB`, `1.5G`, or a number of bytes.

use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// Units and their bytes. Single letters are powers of two, as in other tools with memory sizes.
const UNITS: [(&str, f64); 12] = [
    ("kib", 1024.0),
    ("mib", 1048576.0),
    ("gib", 1073741824.0),
    ("tib", 1099511627776.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("k", 1024.0),
    ("m", 1048576.0),
    ("g", 1073741824.0),
    ("t", 1099511627776.0),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let right = || format!("{text:?} is not a size; expected 6GiB, 512MiB, 1.5G or a number of bytes");
        let lower = text.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((lower.strip_suffix(unit)?, *bytes)));
        let Some((number, unit)) = unit else {
            return lower.strip_suffix('b').unwrap_or(&lower).trim().parse().map(Size).map_err(|_| right());
        };
        let number = number.trim();
        // Rust's `parse` also accepts exponents and `inf`, which are no sizes.
        let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let bytes = number.parse::<f64>().ok().filter(|_| plain).ok_or_else(right)? * unit;
        // `u64::MAX as f64` is 2^64, the first float that does not fit.
        if bytes < u64::MAX as f64 { Ok(Size(bytes as u64)) } else { Err(right()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_are_bytes() {
        let cases = [
            ("6GiB", 6 << 30),
            ("512 mib", 512 << 20),
            ("1.5G", 3 << 29),
            ("2GB", 2_000_000_000),
            ("4096", 4096),
            ("7b", 7),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "GiB", "1e9", "infG", "-1", "6 GiBs", "99999999999T", "1..5G", "0x10"] {
            assert!(text.parse::<Size>().unwrap_err().contains("6GiB"), "{text}");
        }
    }
}
