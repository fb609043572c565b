//! Sets of numbers as regular expressions, with bounds and multiples.
//!
//! A number with a bound is written without an exponent, so that a regular expression can compare
//! its digits. Other numbers may have an exponent of at most two digits, which every JSON parser
//! can read.

use super::decimal::{Decimal, gcd};

/// Number of digits that an unbounded integer may have after its first digit.
const MORE_DIGITS: usize = 98;
/// Max number of multiples between two bounds that are listed individually.
const MAX_LISTED: i128 = 2000;

/// Bound of a set of numbers, inclusive or exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bound {
    pub value: Decimal,
    pub is_exclusive: bool,
}

/// Set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NumberSet {
    pub is_integer: bool,
    /// Whether integers are excluded.
    pub is_fraction: bool,
    pub min: Option<Bound>,
    pub max: Option<Bound>,
    /// Steps of the set. Each number must be a multiple of every step.
    pub steps: Vec<Decimal>,
}

/// Form of a set of numbers as a lexeme of the grammar.
#[derive(Debug)]
pub(super) enum NumberForm {
    /// Regular expressions that must all match.
    All(Vec<String>),
    /// Schema with `multipleOf`, which llguidance enforces itself.
    Steps(serde_json::Value),
}

impl NumberSet {
    /// Returns the numbers in both sets.
    pub fn and(&self, other: &NumberSet) -> NumberSet {
        let mut both = self.clone();
        both.is_integer |= other.is_integer;
        both.is_fraction |= other.is_fraction;
        other.min.iter().for_each(|bound| both.at_least(bound.clone()));
        other.max.iter().for_each(|bound| both.at_most(bound.clone()));
        both.steps.extend(other.steps.iter().cloned());
        both.steps.sort();
        both.steps.dedup();
        both
    }

    /// Adds a lower bound.
    pub fn at_least(&mut self, bound: Bound) {
        let is_weaker = self
            .min
            .as_ref()
            .is_some_and(|own| own.value.compare(&bound.value).then(own.is_exclusive.cmp(&bound.is_exclusive)).is_ge());
        if !is_weaker {
            self.min = Some(bound);
        }
    }

    /// Adds an upper bound.
    pub fn at_most(&mut self, bound: Bound) {
        let is_weaker = self
            .max
            .as_ref()
            .is_some_and(|own| own.value.compare(&bound.value).then(bound.is_exclusive.cmp(&own.is_exclusive)).is_le());
        if !is_weaker {
            self.max = Some(bound);
        }
    }

    /// Returns whether the set has a number, or `None` if this is not known.
    pub fn has(&self, number: &Decimal) -> Option<bool> {
        let is_in = |bound: &Option<Bound>, inside: std::cmp::Ordering| {
            bound.as_ref().is_none_or(|bound| {
                let order = number.compare(&bound.value);
                order == inside || order.is_eq() && !bound.is_exclusive
            })
        };
        if !is_in(&self.min, std::cmp::Ordering::Greater) || !is_in(&self.max, std::cmp::Ordering::Less) {
            return Some(false);
        }
        let integer = number.is_integer();
        if self.is_integer && !integer || self.is_fraction && integer {
            return Some(false);
        }
        let mut all = Some(true);
        for step in &self.steps {
            match number.is_multiple_of(step) {
                Some(false) => return Some(false),
                Some(true) => {}
                None => all = None,
            }
        }
        all
    }

    /// Returns whether the bounds exclude every number.
    pub fn is_empty(&self) -> bool {
        if self.is_integer && self.is_fraction {
            return true;
        }
        let (Some(min), Some(max)) = (&self.min, &self.max) else { return false };
        let order = min.value.compare(&max.value);
        if order.is_gt() || order.is_eq() && (min.is_exclusive || max.is_exclusive) {
            return true;
        }
        match (self.is_integer, self.integer_bounds()) {
            (true, Some((first, last))) => match self.integer_step() {
                Some(step) => first.div_euclid(step) * step + if first.rem_euclid(step) > 0 { step } else { 0 } > last,
                None => first > last,
            },
            _ => false,
        }
    }

    /// Returns the first and the last integer within the bounds, if both fit into 100 bits.
    fn integer_bounds(&self) -> Option<(i128, i128)> {
        let (min, max) = (self.min.as_ref()?, self.max.as_ref()?);
        let whole = |bound: &Bound| -> Option<i128> {
            let magnitude: i128 = bound.value.integer_digits().parse().ok().filter(|whole| *whole < 1 << 100)?;
            Some(if bound.value.is_negative { -magnitude } else { magnitude })
        };
        let (first, last) = (whole(min)?, whole(max)?);
        let first = match min.value.is_integer() {
            true => first + i128::from(min.is_exclusive),
            false => first + i128::from(!min.value.is_negative),
        };
        let last = match max.value.is_integer() {
            true => last - i128::from(max.is_exclusive),
            false => last - i128::from(max.value.is_negative),
        };
        Some((first, last))
    }

    /// Returns the set with integer steps that have the same integer multiples as its own steps.
    fn with_integer_steps(&self) -> NumberSet {
        let mut own = self.clone();
        if self.is_integer {
            own.steps.iter_mut().for_each(|step| *step = step.integer_multiple().unwrap_or_else(|| step.clone()));
        }
        own
    }

    /// Returns the least common multiple of the steps, which must be integers.
    fn integer_step(&self) -> Option<i128> {
        let steps: Option<Vec<i128>> = self.steps.iter().map(|step| step.to_i128().filter(|step| *step > 0)).collect();
        let steps = steps.filter(|steps| !steps.is_empty())?;
        steps.into_iter().try_fold(1i128, |all, step| {
            let multiple = all / gcd(all, step) * step;
            (multiple < 1 << 64).then_some(multiple)
        })
    }

    /// Returns the set as a lexeme.
    ///
    /// # Errors
    /// If a `multipleOf` cannot be enforced.
    pub fn lexeme(&self) -> Result<NumberForm, String> {
        self.with_integer_steps().form_of_steps()
    }

    fn form_of_steps(&self) -> Result<NumberForm, String> {
        let steps: Vec<&Decimal> = self.steps.iter().filter(|step| !step.is_zero()).collect();
        let is_bounded = self.min.is_some() || self.max.is_some() || self.is_fraction || !steps.is_empty();
        let mut all = vec![match (self.is_integer, is_bounded) {
            (true, _) => format!("-?(?:0|[1-9][0-9]{{0,{}}})", self.longest()),
            (false, true) => format!("-?(?:0|[1-9][0-9]{{0,{}}})(?:\\.[0-9]{{1,{}}})?", self.longest(), self.finest()),
            (false, false) => {
                format!(
                    "-?(?:0|[1-9][0-9]{{0,{MORE_DIGITS}}})(?:\\.[0-9]{{1,{MORE_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
                )
            }
        }];
        all.extend(self.min.as_ref().map(at_least));
        all.extend(self.max.as_ref().map(at_most));
        if self.is_fraction {
            all.push("-?[0-9]{1,6}\\.[0-9]{0,7}[1-9]".to_owned());
        }
        let (tens, others): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.power_of_ten().is_some());
        all.extend(tens.iter().filter_map(|step| step.power_of_ten()).map(multiples_of_power));
        if others.is_empty() {
            return Ok(NumberForm::All(all));
        }
        if let Some(list) = self.enumeration().filter(|_| !self.is_fraction) {
            return Ok(NumberForm::All(vec![list]));
        }
        self.with_steps()
    }

    /// Returns the max number of digits that an integer of the set has after its first digit.
    fn longest(&self) -> usize {
        let of = |bound: &Option<Bound>| bound.as_ref().map_or(0, |bound| bound.value.integer_digits().len());
        MORE_DIGITS.max(of(&self.min)).max(of(&self.max))
    }

    /// Returns the max number of digits that a number of the set has after the decimal point.
    ///
    /// Doubles hold 15 digits. With this limit, a JSON parser that uses doubles compares a number
    /// with its bounds like a parser that keeps every digit.
    fn finest(&self) -> usize {
        let bounds = || self.min.iter().chain(&self.max).map(|bound| &bound.value);
        let whole = bounds().map(|value| value.integer_digits().len()).max().unwrap_or(0);
        let fraction = bounds().map(|value| value.fraction().len()).max().unwrap_or(0);
        fraction.max(15usize.checked_sub(whole).filter(|left| *left > 0).unwrap_or(15))
    }

    /// Returns an expression that lists all integers of a small set.
    fn enumeration(&self) -> Option<String> {
        let ((first, last), step) = (self.integer_bounds()?, self.integer_step()?);
        let begin = first.div_euclid(step) + i128::from(first.rem_euclid(step) > 0);
        let end = last.div_euclid(step);
        if end - begin >= MAX_LISTED || begin > end {
            return None;
        }
        let all: Vec<String> = (begin..=end).map(|count| (count * step).to_string()).collect();
        Some(format!("(?:{})", all.join("|")))
    }

    /// Returns a schema with one `multipleOf`, which llguidance enforces itself. The step's digits
    /// must fit into 32 bits, and the bounds into 53 bits.
    fn with_steps(&self) -> Result<NumberForm, String> {
        let step = match (self.steps.as_slice(), self.integer_step()) {
            (_, Some(step)) => step.to_string(),
            ([step], None) => format!("{}.{}", step.integer_digits(), step.fraction()),
            _ => return Err("several multipleOf with fractions cannot be enforced together; use one".to_owned()),
        };
        let digits = step.chars().filter(char::is_ascii_digit).collect::<String>();
        let is_small = digits.trim_start_matches('0').parse::<u32>().is_ok();
        let is_exact = |bound: &Option<Bound>| {
            bound.as_ref().is_none_or(|bound| bound.value.to_i128().is_some_and(|value| value.unsigned_abs() < 1 << 53))
        };
        let is_mixed = self.is_integer && self.integer_step().is_none();
        if is_mixed || !is_small || !is_exact(&self.min) || !is_exact(&self.max) {
            return Err(format!(
                "multipleOf {step} cannot be enforced here; steps of at most 9 digits between integers below 2^53 can"
            ));
        }
        let step: serde_json::Value = serde_json::from_str(&step)
            .map_err(|_| "multipleOf is not a number; expected a number above 0".to_owned())?;
        let kind = if self.is_integer { "integer" } else { "number" };
        let mut schema = serde_json::json!({"type": kind, "multipleOf": step});
        for (bound, inclusive, exclusive) in
            [(&self.min, "minimum", "exclusiveMinimum"), (&self.max, "maximum", "exclusiveMaximum")]
        {
            if let Some((bound, value)) = bound.as_ref().and_then(|bound| Some((bound, bound.value.to_i128()? as i64)))
            {
                schema[if bound.is_exclusive { exclusive } else { inclusive }] = value.into();
            }
        }
        if self.is_fraction {
            return Err("multipleOf together with a negated type cannot be enforced".to_owned());
        }
        Ok(NumberForm::Steps(schema))
    }
}

/// Returns an expression for the multiples of `10^power`.
fn multiples_of_power(power: i64) -> String {
    match usize::try_from(power) {
        Ok(0) => "-?[0-9]+(?:\\.0+)?".to_owned(),
        Ok(zeros) => format!("-?(?:0|[0-9]+0{{{zeros}}})(?:\\.0+)?"),
        Err(_) => format!("-?[0-9]+(?:\\.[0-9]{{1,{}}}0*)?", power.unsigned_abs()),
    }
}

/// Returns an expression for the decimals without an exponent at or above a bound.
fn at_least(bound: &Bound) -> String {
    match (bound.value.is_negative, bound.value.is_zero()) {
        (true, _) => format!("(?:[0-9.]+|-(?:{}))", magnitude_at_most(bound)),
        (false, true) if !bound.is_exclusive => "[0-9.]+".to_owned(),
        (false, _) => magnitude_at_least(bound),
    }
}

/// Returns an expression for the decimals without an exponent at or below a bound.
fn at_most(bound: &Bound) -> String {
    match (bound.value.is_negative, bound.value.is_zero()) {
        (true, _) => format!("-(?:{})", magnitude_at_least(bound)),
        (false, true) if bound.is_exclusive => format!("-(?:{})", magnitude_at_least(bound)),
        (false, _) => format!("(?:-[0-9.]+|{})", magnitude_at_most(bound)),
    }
}

/// Returns an expression for the decimals without a sign whose magnitude is at or above the bound's
/// magnitude.
fn magnitude_at_least(bound: &Bound) -> String {
    let (whole, fraction) = (bound.value.integer_digits(), bound.value.fraction());
    let more = match (fraction.as_str(), bound.is_exclusive) {
        ("", false) => "(?:\\.[0-9]+)?".to_owned(),
        ("", true) => "\\.[0-9]*[1-9][0-9]*".to_owned(),
        (digits, exclusive) => {
            let mut all = vec![format!("{digits}[0-9]*{}", if exclusive { "[1-9][0-9]*" } else { "" })];
            for (at, digit) in digits.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
                all.push(format!("{}[{}-9][0-9]*", &digits[..at], char::from(digit + 1)));
            }
            format!("\\.(?:{})", all.join("|"))
        }
    };
    format!("(?:{whole}{more}|(?:{})(?:\\.[0-9]+)?)", greater_naturals(&whole))
}

/// Returns an expression for the decimals without a sign whose magnitude is at or below the bound's
/// magnitude.
fn magnitude_at_most(bound: &Bound) -> String {
    let (whole, fraction) = (bound.value.integer_digits(), bound.value.fraction());
    let less = match (fraction.as_str(), bound.is_exclusive) {
        ("", false) => Some("(?:\\.0+)?".to_owned()),
        ("", true) => None,
        (digits, exclusive) => {
            let zeros = digits.len() - digits.trim_start_matches('0').len();
            let mut all = if exclusive { Vec::new() } else { vec![format!("{digits}0*")] };
            if zeros > 0 {
                all.push(format!("0{{1,{zeros}}}"));
            }
            for (at, digit) in digits.bytes().enumerate().skip(zeros) {
                if at > zeros {
                    all.push(digits[..at].to_owned());
                }
                if digit > b'0' {
                    all.push(format!("{}[0-{}][0-9]*", &digits[..at], char::from(digit - 1)));
                }
            }
            Some(format!("(?:\\.(?:{}))?", all.join("|")))
        }
    };
    let mut all = Vec::new();
    all.extend(less.map(|less| format!("{whole}{less}")));
    all.extend(smaller_naturals(&whole).map(|below| format!("(?:{below})(?:\\.[0-9]+)?")));
    format!("(?:{})", all.join("|"))
}

/// Returns an expression for the natural numbers greater than a given number.
fn greater_naturals(number: &str) -> String {
    let mut all = vec![format!("[1-9][0-9]{{{},}}", number.len())];
    for (at, digit) in number.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        let rest = number.len() - at - 1;
        all.push(format!("{}[{}-9][0-9]{{{rest}}}", &number[..at], char::from(digit + 1)));
    }
    all.join("|")
}

/// Returns an expression for the natural numbers less than a given number, or `None` if none exist.
fn smaller_naturals(number: &str) -> Option<String> {
    let mut all = Vec::new();
    if number.len() > 1 {
        all.push("0".to_owned());
        all.push(format!("[1-9][0-9]{{0,{}}}", number.len() - 2));
    }
    for (at, digit) in number.bytes().enumerate() {
        let min = if at == 0 && number.len() > 1 { b'1' } else { b'0' };
        if digit > min {
            let rest = number.len() - at - 1;
            let range = format!("[{}-{}]", char::from(min), char::from(digit - 1));
            all.push(format!("{}{range}[0-9]{{{rest}}}", &number[..at]));
        }
    }
    (!all.is_empty()).then(|| all.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether all expressions of a set's lexeme match a text.
    fn matches(numbers: &NumberSet, text: &str) -> bool {
        let Ok(NumberForm::All(all)) = numbers.lexeme() else { panic!("steps") };
        all.iter().all(|regex| super::super::text::is_whole_match(regex, text))
    }

    #[test]
    fn number_regexes_respect_bounds() {
        let bounds = ["-123.45", "-10", "-1", "-0.05", "0", "0.05", "1", "9.99", "10", "100", "123.45", "199"];
        let tried = [
            "-1000", "-123.46", "-123.45", "-123.4", "-123", "-100", "-11", "-10.5", "-10", "-9", "-1.5", "-1",
            "-0.06", "-0.05", "-0.049", "0", "0.0", "0.04", "0.05", "0.050", "0.06", "0.5", "1", "1.0", "1.01", "9",
            "9.9", "9.99", "9.990", "9.991", "10", "10.0", "10.01", "99", "99.99", "100", "101", "123", "123.4",
            "123.45", "123.451", "123.5", "199", "199.0", "199.01", "200", "1000",
        ];
        for bound in bounds {
            for is_exclusive in [false, true] {
                let bound = Bound { value: Decimal::parse(bound), is_exclusive };
                let min = NumberSet { min: Some(bound.clone()), ..NumberSet::default() };
                let max = NumberSet { max: Some(bound.clone()), ..NumberSet::default() };
                for text in tried {
                    let number = Decimal::parse(text);
                    assert_eq!(matches(&min, text), min.has(&number).unwrap(), "{text} >= {bound:?}");
                    assert_eq!(matches(&max, text), max.has(&number).unwrap(), "{text} <= {bound:?}");
                }
            }
        }
    }
}
