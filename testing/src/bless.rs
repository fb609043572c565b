//! The environment variable that makes tests rewrite their expected results: `IXC_BLESS`, with any
//! value except an empty one.

use std::ffi::OsStr;

/// Name of the environment variable.
const VARIABLE: &str = "IXC_BLESS";

/// Returns whether tests rewrite their expected results.
pub fn is_asked_for() -> bool {
    is_set(std::env::var_os(VARIABLE).as_deref())
}

/// Returns whether a variable has a non-empty value. In `IXC_BLESS= cargo test`, it has none.
fn is_set(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_bless_variable_means_unset() {
        assert!(!is_set(None) && !is_set(Some(OsStr::new(""))));
        assert!(is_set(Some(OsStr::new("1"))));
    }
}
