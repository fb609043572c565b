//! Decimal numbers of any size, for exact arithmetic on JSON's numbers.

use std::cmp::Ordering;

use serde_json::Number;

/// Max digits in a division with remainder. JSON numbers can be longer, because they have
/// exponents.
const MAX_SCALE: i64 = 700;

/// Decimal number `±0.d₁d₂… · 10^exponent`, without zeros at either end of its digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Decimal {
    pub is_negative: bool,
    /// Digits as ASCII characters. Zero has no digits.
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Converts a JSON number.
    pub fn from_number(number: &Number) -> Decimal {
        Decimal::parse(&number.to_string())
    }

    /// Reads a number like `-12.50e3`. Skips characters that are not part of a number.
    pub fn parse(text: &str) -> Decimal {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let power: i64 = power.parse().unwrap_or(0);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        let digits = all.trim_start_matches('0');
        let exponent = power + whole.len() as i64 - (all.len() - digits.len()) as i64;
        let digits = digits.trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Decimal { is_negative: false, digits, exponent: 0 };
        }
        Decimal { is_negative, digits, exponent }
    }

    pub fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Returns the digits of the magnitude before the decimal point. The result has at least one
    /// digit, `0`.
    pub fn integer_digits(&self) -> String {
        let Ok(length) = usize::try_from(self.exponent) else { return "0".to_owned() };
        match length {
            0 => "0".to_owned(),
            _ if self.digits.is_empty() => "0".to_owned(),
            _ if length <= self.digits.len() => self.digits[..length].to_owned(),
            _ => format!("{}{}", self.digits, "0".repeat(length - self.digits.len())),
        }
    }

    /// Returns the digits of the magnitude after the decimal point, without trailing zeros.
    pub fn fraction(&self) -> String {
        match usize::try_from(self.exponent) {
            Ok(length) => self.digits.get(length..).unwrap_or_default().to_owned(),
            Err(_) => format!("{}{}", "0".repeat(self.exponent.unsigned_abs() as usize), self.digits),
        }
    }

    pub fn is_integer(&self) -> bool {
        self.fraction().is_empty()
    }

    /// Returns a canonical text. Equal numbers have the same canonical text.
    pub fn canonical(&self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        if self.is_integer() && self.exponent < 400 {
            return format!("{sign}{}", self.integer_digits());
        }
        format!("{sign}0.{}e{}", self.digits, self.exponent)
    }

    /// Compares the values of two numbers.
    pub fn compare(&self, other: &Decimal) -> Ordering {
        let sign = |number: &Decimal| match () {
            () if number.is_zero() => 0,
            () if number.is_negative => -1,
            () => 1,
        };
        let magnitude = || self.exponent.cmp(&other.exponent).then_with(|| self.digits.cmp(&other.digits));
        match sign(self).cmp(&sign(other)) {
            Ordering::Equal if self.is_zero() => Ordering::Equal,
            Ordering::Equal if self.is_negative => magnitude().reverse(),
            Ordering::Equal => magnitude(),
            other => other,
        }
    }

    /// Returns whether the value is a multiple of a positive step. Returns `None` if the division
    /// has too many digits.
    pub fn is_multiple_of(&self, step: &Decimal) -> Option<bool> {
        if self.is_zero() {
            return Some(true);
        }
        // Both numbers are multiplied by a power of ten that makes them integers.
        let scale = |number: &Decimal| number.digits.len() as i64 - number.exponent;
        let scale_both = scale(self).max(scale(step));
        let zeros = |number: &Decimal| scale_both - scale(number);
        if zeros(self) > MAX_SCALE || zeros(step) > 38 {
            return None;
        }
        let step: u128 = format!("{}{}", step.digits, "0".repeat(zeros(step) as usize)).parse().ok()?;
        if step == 0 || step > u128::from(u64::MAX) * 1_000_000 {
            return None;
        }
        let digits = self.digits.bytes().chain(std::iter::repeat_n(b'0', zeros(self) as usize));
        Some(digits.fold(0u128, |rest, digit| (rest * 10 + u128::from(digit - b'0')) % step) == 0)
    }

    /// Returns `k` if the value is the power of ten `10^k`.
    pub fn power_of_ten(&self) -> Option<i64> {
        (self.digits == "1" && !self.is_negative).then_some(self.exponent - 1)
    }

    /// Returns the smallest integer that is a multiple of the value. The value must be positive.
    /// Returns `None` if it has too many digits.
    pub fn integer_multiple(&self) -> Option<Decimal> {
        let places = u32::try_from(self.digits.len() as i64 - self.exponent).ok()?;
        let (digits, scale): (i128, i128) = (self.digits.parse().ok()?, 10i128.checked_pow(places)?);
        Some(Decimal::parse(&(digits / gcd(digits, scale)).to_string()))
    }

    /// Returns the value as an integer, if it is one and fits into 128 bits.
    pub fn to_i128(&self) -> Option<i128> {
        let magnitude: i128 = self.is_integer().then(|| self.integer_digits())?.parse().ok()?;
        Some(if self.is_negative { -magnitude } else { magnitude })
    }
}

/// Returns the greatest common divisor of two integers.
pub(super) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact() {
        let one = Decimal::parse;
        for (text, whole, fraction) in [
            ("-9223372036854775808", "9223372036854775808", ""),
            ("1e3", "1000", ""),
            ("12.50e0", "12", "5"),
            ("5e-3", "0", "005"),
            ("0.0", "0", ""),
            ("1.5e-1", "0", "15"),
        ] {
            assert_eq!(
                (one(text).integer_digits().as_str(), one(text).fraction().as_str()),
                (whole, fraction),
                "{text}"
            );
        }
        let ordered = ["-1e300", "-2.5", "-2", "-1e-5", "0", "5e-324", "1", "9007199254740992", "9007199254740993"];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(one(a).compare(&one(b)), i.cmp(&j), "{a} {b}");
            }
        }
        assert_eq!(one("0.3").is_multiple_of(&one("0.1")), Some(true));
        assert_eq!(one("1e40").is_multiple_of(&one("7")), Some(false));
        assert_eq!(one("35").is_multiple_of(&one("7")), Some(true));
        assert_eq!(one("0.01").power_of_ten(), Some(-2));
        assert_eq!(one("2.5").integer_multiple(), Some(one("5")));
        assert_eq!(one("0.5").integer_multiple(), Some(one("1")));
    }
}
