//! A strict reader of Prometheus' text format, version 0.0.4:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::{BTreeMap, BTreeSet};

/// Metrics of a page.
#[derive(Debug)]
pub struct Page {
    /// Metrics by name, without labels.
    pub families: BTreeMap<String, Family>,
}

/// A metric.
#[derive(Debug)]
pub struct Family {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Samples of the metric: name, labels and value. Samples of a histogram have the metric's name
    /// with a suffix.
    pub samples: Vec<(String, Labels, f64)>,
}

/// Labels of a sample.
pub type Labels = BTreeMap<String, String>;

impl Page {
    /// Returns the sum of all samples with this name and these values of labels.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.families.values().flat_map(|family| &family.samples);
        let has = |of: &Labels| labels.iter().all(|(label, value)| of.get(*label).is_some_and(|found| found == value));
        let found: Vec<f64> = all.filter(|(n, l, _)| n == name && has(l)).map(|(_, _, value)| *value).collect();
        assert!(!found.is_empty(), "there is no {name} {labels:?}");
        found.iter().sum()
    }

    /// Reads a page of metrics. The error names the first rule that is broken.
    pub fn read(text: &str) -> Result<Page, String> {
        if !text.is_empty() && !text.ends_with('\n') {
            return Err("the last line has no end".into());
        }
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let (mut helped, mut open): (BTreeSet<String>, Option<String>) = (BTreeSet::new(), None);
        let mut series = BTreeSet::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
                is_name(name).then_some(()).ok_or_else(|| wrong("no name"))?;
                if help.is_empty() || !helped.insert(name.into()) {
                    return Err(wrong("empty, or said twice"));
                }
                open = None;
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
                if !["counter", "gauge", "histogram"].contains(&kind) || !helped.contains(name) {
                    return Err(wrong("another type, or no help before it"));
                }
                let family = Family { kind: kind.into(), samples: Vec::new() };
                if families.insert(name.into(), family).is_some() {
                    return Err(wrong("said twice"));
                }
                open = Some(name.into());
            } else {
                let (name, labels, value) = sample(line).ok_or_else(|| wrong("no sample"))?;
                let of = open.clone().ok_or_else(|| wrong("a sample without a type"))?;
                let family = families.get_mut(&of).ok_or_else(|| wrong("no type"))?;
                let parts: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                if !parts.iter().any(|part| name.strip_prefix(&*of) == Some(part)) {
                    return Err(wrong("a sample of another figure"));
                }
                if labels.contains_key("le") != name.ends_with("_bucket") {
                    return Err(wrong("le is for buckets"));
                }
                if !series.insert((name.clone(), labels.clone())) {
                    return Err(wrong("there twice"));
                }
                if family.kind == "counter" && (value.is_nan() || value < 0.0 || !name.ends_with("_total")) {
                    return Err(wrong("no counter"));
                }
                family.samples.push((name, labels, value));
            }
        }
        for (name, family) in &families {
            if family.samples.is_empty() {
                return Err(format!("{name} has no samples"));
            }
            if family.kind == "histogram" {
                is_histogram(name, family)?;
            }
        }
        Ok(Page { families })
    }
}

/// A sample of a histogram: the suffix of its name, the upper bound of its bucket, and its value.
type Part<'a> = (&'a str, Option<f64>, f64);

/// Checks a histogram for each set of labels: the values of the buckets do not decrease, and the
/// bucket `+Inf` equals the count.
fn is_histogram(name: &str, family: &Family) -> Result<(), String> {
    let mut by_labels: BTreeMap<Labels, Vec<Part>> = BTreeMap::new();
    for (part, labels, value) in &family.samples {
        let mut labels = labels.clone();
        let bound = labels.remove("le").map(|bound| if bound == "+Inf" { Ok(f64::INFINITY) } else { bound.parse() });
        let bound = bound.transpose().map_err(|_| format!("{part}: a bound is no number"))?;
        by_labels.entry(labels).or_default().push((&part[name.len()..], bound, *value));
    }
    for parts in by_labels.values() {
        let buckets: Vec<(f64, f64)> = parts.iter().filter_map(|(_, bound, value)| Some(((*bound)?, *value))).collect();
        let rises = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let one = |wanted: &str| {
            let mut found = parts.iter().filter(|(part, ..)| *part == wanted).map(|(.., value)| *value);
            found.next().filter(|_| found.next().is_none())
        };
        let last = buckets.last().filter(|(bound, _)| bound.is_infinite());
        if !rises || last.is_none() || last.map(|(_, count)| *count) != one("_count") || one("_sum").is_none() {
            return Err(format!("{name} is no histogram: {parts:?}"));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.chars().next().is_some_and(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

/// Returns the name, labels and value in a line.
fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return None;
    }
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            if !is_name(label) || label.contains(':') {
                return None;
            }
            let (mut value, mut chars) = (String::new(), after.char_indices());
            let end = loop {
                match chars.next()? {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next()?.1 {
                        'n' => '\n',
                        c @ ('"' | '\\') => c,
                        _ => return None,
                    }),
                    (_, c) => value.push(c),
                }
            };
            if labels.insert(label.into(), value).is_some() {
                return None;
            }
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    // No timestamp may follow the value. The value must not have a form that only Rust's parser
    // accepts.
    let is_number = !value.is_empty() && value.chars().all(|c| c.is_ascii_digit() || "+-.e".contains(c));
    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok().filter(|_| is_number)? };
    Some((name.into(), labels, value))
}

#[test]
fn invalid_metrics_pages_are_refused() {
    let head = "# HELP a_total Help.\n# TYPE a_total counter\n";
    let page = Page::read(&format!("{head}a_total{{m=\"x\\\"\\\\\\n\",n=\"\"}} 1e3\na_total 2\n")).unwrap();
    assert_eq!((page.sum("a_total", &[]), page.sum("a_total", &[("m", "x\"\\\n")])), (1002.0, 1000.0));
    for wrong in [
        "a_total 1",
        "a_total 1\n",
        "a_total -1\n",
        "a_total{m=\"x} 1\n",
        "a_total{m=\"\\x\"} 1\n",
        "a_total{m=\"x\"}1\n",
        "a_total{m=\"x\",m=\"y\"} 1\n",
        "a_total 1\na_total 1\n",
        "a_total  1\n",
        "a_total inf\n",
        "b_total 1\n",
        "",
        "a_total 1\n\n",
    ] {
        let head = if wrong == "a_total 1\n" { "" } else { head };
        assert!(Page::read(&format!("{head}{wrong}")).is_err(), "{wrong:?}");
    }
    let head = "# HELP h Help.\n# TYPE h histogram\n";
    let bucket = |bound: &str, count: u32| format!("h_bucket{{le=\"{bound}\"}} {count}\n");
    let whole = |buckets: &[(&str, u32)], rest: &str| {
        let buckets: String = buckets.iter().map(|(bound, count)| bucket(bound, *count)).collect();
        Page::read(&format!("{head}{buckets}{rest}")).is_ok()
    };
    assert!(whole(&[("1", 1), ("+Inf", 2)], "h_sum 3\nh_count 2\n"));
    assert!(!whole(&[("1", 1), ("+Inf", 2)], "h_sum 3\nh_count 1\n"));
    assert!(!whole(&[("1", 3), ("+Inf", 2)], "h_sum 3\nh_count 2\n"));
    assert!(!whole(&[("1", 1)], "h_sum 3\nh_count 1\n"));
    assert!(!whole(&[("+Inf", 2)], "h_count 2\n"));
}
