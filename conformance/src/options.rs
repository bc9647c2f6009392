//! What a run is asked for besides a test binary's own arguments.

use std::path::PathBuf;

/// How to run a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Backends whose absence is a failure, by name.
    pub require: Vec<String>,
    /// Run also the cases that must wait long, and those that race twenty times.
    pub slow: bool,
    /// Where those run, run nothing else: what they cost is then counted apart.
    pub only_slow: bool,
    /// Where to write the report.
    pub report: Option<PathBuf>,
    /// Cases to run at once: twice the cores unless said otherwise. A test binary has `--test-threads` for it.
    pub threads: usize,
    /// Only cases whose id contains one of these; all if empty. For a programmatic run only.
    pub only: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        // A case waits for most of its time.
        let threads = 2 * std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self { require: Vec::new(), slow: false, only_slow: false, report: None, threads, only: Vec::new() }
    }
}

impl Options {
    /// Reads `CONFORMANCE_REQUIRE` (names, separated by commas), `CONFORMANCE_SLOW` (`1` or `only`) and `CONFORMANCE_REPORT` (a
    /// directory), looked up through `var`.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| var(name).filter(|value| !value.is_empty());
        let require = given("CONFORMANCE_REQUIRE").unwrap_or_default();
        let slow = given("CONFORMANCE_SLOW").filter(|value| value != "0");
        Self {
            require: require.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect(),
            slow: slow.is_some(),
            only_slow: slow.is_some_and(|value| value == "only"),
            report: given("CONFORMANCE_REPORT").map(PathBuf::from),
            ..Self::default()
        }
    }

    /// Runs also the cases that must wait long, and those that race twenty times.
    #[must_use]
    pub fn with_slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Runs only cases whose id contains `part`, or another `part` given so.
    #[must_use]
    pub fn with_only(mut self, part: impl Into<String>) -> Self {
        self.only.push(part.into());
        self
    }

    /// Makes the absence of the backend `name` a failure.
    #[must_use]
    pub fn with_required(mut self, name: impl Into<String>) -> Self {
        self.require.push(name.into());
        self
    }

    pub(crate) fn requires(&self, name: &str) -> bool {
        self.require.iter().any(|required| required == name)
    }

    pub(crate) fn chooses(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| id.contains(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables() {
        let read = |name: &'static str, value: &'static str| {
            Options::from_vars(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(Options::from_vars(|_| None), Options::default());
        assert_eq!(read("CONFORMANCE_REQUIRE", " local, k8s,").require, ["local", "k8s"]);
        let slow = |value| {
            let options = read("CONFORMANCE_SLOW", value);
            (options.slow, options.only_slow)
        };
        assert_eq!((slow("0"), slow("1"), slow("only")), ((false, false), (true, false), (true, true)));
        assert_eq!(read("CONFORMANCE_REPORT", "/r").report, Some(PathBuf::from("/r")));
    }
}
