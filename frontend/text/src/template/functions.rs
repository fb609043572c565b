//! Functions that Hugging Face transformers gives to templates, in addition to Jinja:
//! `raise_exception`, `strftime_now` and `tojson`. The output of `tojson` is that of Python's
//! `json.dumps(…, ensure_ascii=False)`.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::filters::spaces;
use super::python::{self, JsonStyle};

/// Implements `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(value: &Value, ascii: Option<Value>, indent: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let ascii = ascii.map_or_else(|| named.get("ensure_ascii"), |ascii| Ok(Some(ascii)))?;
    let indent = indent.map_or_else(|| named.get::<Option<Value>>("indent"), |indent| Ok(Some(indent)))?;
    let separators: Option<Value> = named.get("separators")?;
    let sorted: Option<Value> = named.get("sort_keys")?;
    named.assert_all_used()?;
    let invalid = |what: &str| Error::new(ErrorKind::InvalidOperation, what.to_owned());
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => spaces(&indent)?,
        }),
    };
    let (between, behind_key) = match separators.filter(|separators| !separators.is_none()) {
        // With indentation, each member is on its own line, so the comma has no space after it.
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        Some(separators) => {
            let texts: Vec<Value> = separators.try_iter()?.collect();
            match &*texts {
                [between, behind_key] => (python::text(between), python::text(behind_key)),
                _ => return Err(invalid("separators must be a list of two texts")),
            }
        }
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let style = JsonStyle { ascii: is_true(ascii), indent, between, behind_key, sorted: is_true(sorted) };
    style.write(value).map(Value::from).ok_or_else(|| invalid("cannot serialize to JSON"))
}

/// Implements `from_json`, which returns the value of a JSON text.
pub fn from_json(text: &str) -> Result<Value, Error> {
    let value = super::Json::new(text).and_then(|json| json.value());
    value.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Implements `is iterable` as in Python. `none` is not iterable, although minijinja treats it like
/// an empty list.
pub fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::Iterable || is_sequence(value)
}

/// Implements `is sequence` as in Python. It holds for values with a length and elements, including
/// texts and maps, and, as in Jinja, for an undefined value.
pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}

/// Implements `strftime_now(format)`. The time is UTC, because a prompt should not reveal the
/// machine's time zone.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(format, seconds)
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a time, given in seconds since 1970 in UTC, like C's `strftime` in the C locale.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day) = civil_from_days(days);
    let day_name = DAYS[((days + 4) % 7) as usize]; // 1970-01-01 was a Thursday.
    let month_name = MONTHS[month as usize - 1];
    let day_of_year = days + 1 - days_before(year);
    let hour_12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // A hyphen, as in `%-d`, means that the number is not padded.
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let number = |value: u64, width: usize| if bare { value.to_string() } else { format!("{value:0width$}") };
        let piece = match code {
            Some('a') => day_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('B') => month_name.to_owned(),
            Some('d') => number(day, 2),
            Some('D') => format!("{month:02}/{day:02}/{:02}", year % 100),
            Some('e') => format!("{day:2}"),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('j') => number(day_of_year, 3),
            Some('m') => number(month, 2),
            Some('M') => number(minute, 2),
            Some('p') => half.to_owned(),
            Some('s') => seconds.to_string(),
            Some('S') => number(second, 2),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('y') => number(year % 100, 2),
            Some('Y') => number(year, 4),
            Some('z') => "+0000".to_owned(),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let code: String = other.into_iter().collect();
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not support the code %{code}"),
                ));
            }
        };
        out.push_str(&piece);
    }
    Ok(out)
}

/// Returns the number of days from 1970-01-01 to January 1 of a later year.
fn days_before(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Returns the year, month and day for a number of days since 1970-01-01 (Howard Hinnant,
/// "chrono-compatible low-level date algorithms").
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn strftime_as_in_c() {
        // Output of `date -u -d @1709214245`: Thu Feb 29 13:44:05 UTC 2024
        let at = |format| strftime(format, 1_709_214_245).unwrap();
        assert_eq!(at("%d %b %Y"), "29 Feb 2024");
        assert_eq!(at("%A %B %-d, %I:%M %p %j %y %F %T"), "Thursday February 29, 01:44 PM 060 24 2024-02-29 13:44:05");
        assert_eq!(strftime("%F %a %j", 0).unwrap(), "1970-01-01 Thu 001");
        assert_eq!(strftime("%F %j", 4_102_444_799).unwrap(), "2099-12-31 365");
        assert!(strftime("%", 0).is_err() && strftime("%Q", 0).is_err());
    }
}
